"""Lossless compression: rates, speed and other coders (docs/results/codec.md).

    python benchmarks/codec.py rate --steps 50 --bound --out docs/results/codec-cifar10-50.json
    python benchmarks/codec.py excess --limit 64 --steps 25 --out docs/results/codec-excess.json
    python benchmarks/codec.py coders --limit 32 --out docs/results/codec-coders.json
    python benchmarks/codec.py excess --limit 32 --steps 16 --out docs/results/codec-graph.json
    python benchmarks/codec.py graph --out docs/results

``rate`` keeps finished blocks in ``--cache``, coded and decoded, and resumes from there. It writes
its JSON after every block, so that a part of a long run is a result too.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import codec_blocks
import numpy as np
from codec_blocks import encode_blocks, pixels_hash, speed

import idode
from idode.codec.archive import BLOCK
from idode.codec.coder import Stack
from idode.codec.coding import model_for
from idode.codec.network import one_thread
from idode.data.loading import load
from idode.runs.run import MODEL, open_run
from idode.storage import checksum, write_atomically

MODELS = {
    "cifar10": "pretrained:cifar10-small",
    "fashion-mnist": "pretrained:fashion-mnist-small",
    "digits": "pretrained:digits",
}


def save(path, value):
    """Write figures, and print those that are short."""
    write_atomically(path, json.dumps(value, indent=1) + "\n")
    print(json.dumps({k: v for k, v in value.items() if not isinstance(v, list)}), flush=True)


def rate(args):
    """Size, speed and identity of a test set; decoding is in a new process."""
    kind = args.data.partition(":")[0]
    name = args.model or MODELS[kind]
    images = np.array(load(args.data).test[: args.limit])
    scheme = model_for(name).scheme(args.steps)
    size = args.block or min(BLOCK, -(-len(images) // args.jobs))
    cache = args.cache / f"{kind}-{weights_hash(name)}-{args.steps}-{size}"
    cache.mkdir(parents=True, exist_ok=True)
    blocks = [images[lo : lo + size] for lo in range(0, len(images), size)]
    figures = {"data": kind, "model": name, "steps": args.steps, "jobs": args.jobs, "block": size}

    def part(done):
        total, values = sum(f.stat().st_size for f, _ in done), sum(b.size for _, b in done)
        found = {"images": sum(len(b) for _, b in done), "blocks_bytes": total}
        rate = {"bits_per_dim": 8 * total / values}
        save(args.out, {**figures, "complete": False, **found, **rate})

    files, encoded = encode_blocks(scheme, blocks, cache, args.jobs, part)
    archive = cache / f"{len(images)}.idode"
    assemble(args, name, files, archive, size)
    words = [archive, "--jobs", args.jobs, "--cache", cache]
    told = subprocess.run(
        [sys.executable, codec_blocks.__file__, *map(str, words)], check=True, capture_output=True
    )
    decoded = json.loads(told.stdout)
    same = [d["pixels"] for d in decoded] == [pixels_hash(b) for b in blocks]
    found = {
        "complete": True,
        "images": len(images),
        "archive_bytes": archive.stat().st_size,
        "bits_per_dim": 8 * archive.stat().st_size / images.size,
        "identical_in_a_new_process": same,
        **speed("encode", encoded, args.jobs),
        **speed("decode", decoded, args.jobs),
    }
    save(args.out, {**figures, **found})
    if args.bound:
        bound = sde_bound(args, name, images)
        excess = 100 * (found["bits_per_dim"] / bound["bits_per_dim"] - 1)
        save(args.out, {**figures, **found, "sde_bound": bound, "excess_percent": excess})


def excess(args):
    """The rate of one batch, its initial bits taken off, over the SDE bound of the same images."""
    kind = args.data.partition(":")[0]
    images = np.array(load(args.data).test[: args.limit])
    model = model_for(args.model or MODELS[kind])
    scheme = model.scheme(args.steps)
    words = (len(images) * scheme.start_bits + 4096) // 32
    start = np.random.default_rng(0).bytes(4 * words)
    stack = Stack(start)
    before, cpu = stack.bits, time.process_time()
    with one_thread():
        scheme.encode(stack, images)
        encoding = time.process_time() - cpu
        rate = (stack.bits - before) / images.size
        again, cpu = Stack.of(stack.words()), time.process_time()
        found = scheme.decode(again, len(images))
        decoding = time.process_time() - cpu
    bound = model.ode.sde_bound(images, draws=args.draws)
    row = {
        "data": kind,
        "images": len(images),
        "steps": args.steps,
        "bits_per_dim": rate,
        "sde_bound": bound.mean,
        "sde_bound_monte_carlo_error": bound.monte_carlo_error,
        "excess_percent": 100 * (rate / bound.mean - 1),
        "pixels_and_initial_bits_restored": bool(np.array_equal(found, images))
        and again.unseal() == start,
        "encode_cpu_seconds_per_image": encoding / len(images),
        "decode_cpu_seconds_per_image": decoding / len(images),
    }
    rows = json.loads(args.out.read_text()) if args.out.exists() else {}
    save(args.out, {**rows, f"{kind}-{args.steps}": row})


def assemble(args, name, files, out, block):
    """The archive of blocks that are coded already."""
    from idode.codec.archive import write_archive
    from idode.codec.files import of_input

    contents = of_input(args.data, limit=args.limit)
    with out.open("wb") as file:
        write_archive(
            file,
            contents,
            model_for(name),
            steps=args.steps,
            block=block,
            coded=(f.read_bytes() for f in files),
        )


def weights_hash(name):
    """What is kept belongs to one model."""
    return checksum(open_run(name).path / MODEL)[:12]


def sde_bound(args, name, images):
    """The bound of the same images; kept, so that it can be computed before (``bound``)."""
    kind = args.data.partition(":")[0]
    file = args.cache / f"{kind}-{weights_hash(name)}-bound-{len(images)}-{args.draws}.json"
    if not file.exists():
        found = idode.load(name, device="cpu").sde_bound(images, draws=args.draws)
        value = {
            "bits_per_dim": found.mean,
            "standard_error": found.standard_error,
            "monte_carlo_error": found.monte_carlo_error,
            "draws": args.draws,
        }
        write_atomically(file, json.dumps(value))
    return json.loads(file.read_text())


def bound(args):
    """Only the bound, for ``rate --bound`` with the same images and draws."""
    name = args.model or MODELS[args.data.partition(":")[0]]
    args.cache.mkdir(parents=True, exist_ok=True)
    print(json.dumps(sde_bound(args, name, np.array(load(args.data).test[: args.limit]))))


def coders(args):
    """Ordinary coders, each image alone: size and images per second on one core."""
    from PIL import Image

    images = np.array(load(args.data).test[: args.limit])
    pictures = [
        np.ascontiguousarray(x[0] if len(x) == 1 else x.transpose(1, 2, 0)) for x in images
    ]

    def pillow(kind, **options):
        def size(pixels):
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, kind, **options)
            return file.tell()

        return size

    table = {
        "PNG": pillow("PNG"),
        "PNG optimised": pillow("PNG", optimize=True),
        "WebP fast": pillow("WEBP", lossless=True, quality=0, method=0),
        "WebP": pillow("WEBP", lossless=True, quality=50, method=3),
        "WebP best": pillow("WEBP", lossless=True, quality=100, method=6),
    }
    try:
        import imagecodecs

        for effort in (1, 3, 5, 7, 9):
            table[f"JPEG XL effort {effort}"] = lambda p, e=effort: len(
                imagecodecs.jpegxl_encode(p, lossless=True, effort=e)
            )
    except ImportError:
        print("imagecodecs is not installed: no JPEG XL")
    found = {}
    for name, size in table.items():
        if args.only not in (None, name):
            continue
        size(pictures[0])  # the first call of a library starts it
        cpu = time.process_time()
        total = sum(map(size, pictures))
        found[name] = {
            "bits_per_dim": 8 * total / images.size,
            "bytes_of_10000": total * 10000 / len(images),
            "images_per_cpu_second": len(images) / max(time.process_time() - cpu, 1e-9),
        }
        print(name, found[name], flush=True)
    save(args.out, {"data": args.data.partition(":")[0], "images": len(images), "coders": found})


def graph(args):
    """Rate against speed, of ordinary coders and of ours at several T, on the same images."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    coded = json.loads((args.out / "codec-coders.json").read_text())
    ours = list(json.loads((args.out / "codec-graph.json").read_text()).values())
    if any(row["images"] != coded["images"] for row in ours):
        raise SystemExit("the coders and ours have other numbers of images: run both alike")
    families = {"PNG": "s", "WebP": "^", "JPEG XL": "D"}
    names = {"PNG": "PNG", "WebP": "WebP", "JPEG XL": "JPEG XL, by effort"}
    figure, axes = plt.subplots(figsize=(7.5, 4.5))
    for color, (family, marker) in enumerate(families.items(), 1):
        rows = {k: v for k, v in coded["coders"].items() if k.startswith(family)}
        speeds = [v["images_per_cpu_second"] for v in rows.values()]
        rates = [v["bits_per_dim"] for v in rows.values()]
        axes.plot(speeds, rates, marker, color=f"C{color}", label=names[family])
        for i, (name, at) in enumerate(zip(rows, zip(speeds, rates, strict=True), strict=True)):
            text = name.removeprefix(family).removeprefix(" effort").strip() or "default"
            place = (0, -12 if i % 2 else 6)
            axes.annotate(text, at, place, textcoords="offset points", fontsize=7, ha="center")
    ours.sort(key=lambda row: row["steps"])
    speeds = [1 / row["encode_cpu_seconds_per_image"] for row in ours]
    rates = [row["bits_per_dim"] for row in ours]
    axes.plot(speeds, rates, "o-", color="C0", label="idode, by steps T")
    for row, at in zip(ours, zip(speeds, rates, strict=True), strict=True):
        axes.annotate(
            row["steps"], at, (0, -12), textcoords="offset points", fontsize=7, ha="center"
        )
    axes.margins(x=0.08, y=0.1)
    axes.set_xscale("log")
    axes.set_xlabel("images encoded per second of one core")
    axes.set_ylabel(f"bits/dim, first {coded['images']} CIFAR-10 test images")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(args.out / "codec.png", dpi=120)


def main():
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("rate", "bound", "excess", "coders", "graph"))
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--model")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--block", type=int, help="images of a block [1000, fewer of few images]")
    parser.add_argument(
        "--bound", action="store_true", help="also the SDE bound of the same images"
    )
    parser.add_argument("--only", help="one of the ordinary coders, such as 'JPEG XL effort 7'")
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--cache", type=Path, default=Path("/tmp/idode-codec"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/codec.json"))
    args = parser.parse_args()
    globals()[args.what](args)


if __name__ == "__main__":
    main()
