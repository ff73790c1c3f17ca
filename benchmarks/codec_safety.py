"""Lossless compression under attack: photographs, changed archives, killed processes.

python benchmarks/codec_safety.py photographs
python benchmarks/codec_safety.py mutations --count 10000
python benchmarks/codec_safety.py kills --count 100
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import numpy as np

import idode
from idode.cli.main import main as run_command
from idode.codec.coding import model_for
from idode.codec.compress import compress_files
from idode.codec.decompress import decompress_files
from idode.codec.extraction import Archive
from idode.data.loading import load


def photographs(args):
    """Ten photographs of other sizes: correct, and never larger than the best ordinary coder."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    from idode.codec import ordinary

    with tempfile.TemporaryDirectory() as folder:
        root, out = Path(folder) / "in", Path(folder) / "x.idode"
        root.mkdir()
        best = 0
        for i, (picture, scale) in enumerate(
            (p, s) for p in load_sample_images().images for s in (1, 0.7, 0.5, 0.31, 0.11)
        ):
            image = Image.fromarray(picture)
            image = image.resize((int(image.width * scale), int(image.height * scale)))
            image.save(root / f"{i}.png")
            pixels = np.asarray(image).transpose(2, 0, 1)
            best += len(ordinary.encode(np.ascontiguousarray(pixels))[1])
        done = compress_files(root, out, "pretrained:cifar10-small", exact=True, progress=False)
        decompress_files(out, Path(folder) / "back", progress=False)
        same = all(
            (Path(folder) / "back" / p.name).read_bytes() == p.read_bytes() for p in root.iterdir()
        )
        print(
            json.dumps(
                {
                    "files": done.files,
                    "PNG bytes": done.bytes_before,
                    "archive": done.bytes_after,
                    "best ordinary coder of each": best,
                    "over": done.bytes_after - best,
                    "identical": same,
                }
            )
        )


def mutations(args):
    """Changed archives: refused, or decoded right."""
    rng = random.Random(0)
    digits = np.array(load("digits").test[:40])
    data = idode.compress(digits, "pretrained:digits", steps=4, block=20)
    model = model_for("pretrained:digits")
    refused = right = 0
    for _ in range(args.count):
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            at = rng.randrange(len(changed))
            way = rng.randrange(4)
            if way == 0:
                changed[at] ^= 1 << rng.randrange(8)
            elif way == 1:
                del changed[at : at + rng.choice((1, 4, 100, len(changed)))]
            elif way == 2:
                changed[at:at] = rng.randbytes(rng.choice((1, 4, 100)))
            else:
                changed[at] = rng.randrange(256)
            if not changed:
                break
        try:
            archive = Archive(io.BytesIO(bytes(changed)), "x")
            (entry,) = archive.entries
            found = archive.images_of(entry, lambda: model, 1, lambda n: None)
            assert np.array_equal(found, digits), "a wrong image"
            right += 1
        except idode.InputError as error:
            refused += "\n" not in str(error)
    print(json.dumps({"mutations": args.count, "refused": refused, "decoded right": right}))


def forked(words):
    """``idode`` in a child that need not import anything, so that kills meet its work."""
    child = os.fork()
    if child == 0:
        os.setsid()
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os._exit(run_command([*map(str, words), "--quiet"]))
    return child


def kills(args):
    """Kill -9 at random moments of compress and decompress, in turn."""
    digits = np.array(load("digits").test[:60])
    rng = random.Random(0)
    figures = {"kills": 0, "met at work": 0, "whole archives": 0, "whole files": 0, "damage": 0}
    with tempfile.TemporaryDirectory() as folder:
        source, out, back = (Path(folder) / n for n in ("x.npy", "x.idode", "back"))
        np.save(source, digits)
        before = source.read_bytes()
        common = ["--model", "pretrained:digits", "--jobs", 1]
        ways = (
            ["compress", source, "--out", out, "--steps", 3, "--block", 20, *common],
            ["decompress", out, "--out", back, *common],
        )
        began = time.perf_counter()
        os.waitpid(forked(ways[0]), 0)
        longest, whole = [time.perf_counter() - began], out.read_bytes()
        began = time.perf_counter()
        os.waitpid(forked(ways[1]), 0)
        longest.append(time.perf_counter() - began)
        for i in range(args.count):
            out.unlink(missing_ok=True)
            (back / "x.npy").unlink(missing_ok=True)
            if i % 2:
                out.write_bytes(whole)
            child = forked(ways[i % 2])
            time.sleep(rng.uniform(0, 1.05) * longest[i % 2])
            os.killpg(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            figures["kills"] += 1
            figures["met at work"] += os.WIFSIGNALED(status)
            if i % 2 == 0 and out.exists():
                figures["whole archives"] += 1
                figures["damage"] += out.read_bytes() != whole
            if i % 2 and (back / "x.npy").exists():
                figures["whole files"] += 1
                figures["damage"] += (back / "x.npy").read_bytes() != before
            figures["damage"] += source.read_bytes() != before
    print(json.dumps(figures))


def main():
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("photographs", "mutations", "kills"))
    parser.add_argument("--count", type=int, default=100)
    args = parser.parse_args()
    globals()[args.what](args)


if __name__ == "__main__":
    main()
