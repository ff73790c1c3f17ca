"""``idode demo``: train, fine-tune, evaluate, sample, report and compress the 8x8 digits.

It runs the same commands a user would, prints each before it runs, and ends with a summary of
their results.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from idode.cli.parsing import add_quiet_argument, positive
from idode.errors import InputError

__all__ = ["add_arguments", "run"]

RUNS = ("run", "tuned")
ARCHIVE, RESTORED = "digits.idode", "restored"
FILES = {"run.json", "tuned.json", "samples.png", "samples.json", "archive.json"}
OUTPUTS = {*RUNS, "report", *FILES, ARCHIVE, RESTORED}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode demo``."""
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="folder of all files [demo]"
    )
    parser.add_argument(
        "--steps", type=positive, default=800, metavar="N", help="steps of training [800]"
    )
    parser.add_argument(
        "--finetune-steps",
        type=positive,
        default=60,
        metavar="N",
        help="steps of second-order fine-tuning [60]",
    )
    parser.add_argument(
        "--limit", type=positive, default=64, metavar="N", help="test images to evaluate [64]"
    )
    parser.add_argument("--force", action="store_true", help="replace an earlier demo")
    add_quiet_argument(parser, but="errors and the summary")


def run(args: argparse.Namespace) -> int:
    """Run ``idode demo``; the exit code."""
    out: Path = args.out
    _check_folder(out, args.force)
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    for words in _commands(out, args.steps, args.finetune_steps, args.limit):
        common = ["--force", *(["--quiet"] if args.quiet else [])]
        if code := _run_command([*words, *common], args.quiet):
            return code
    _summary(out, time.perf_counter() - began)
    return 0


def _check_folder(out: Path, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give a folder for the demo with --out")
    found = {p.name for p in out.iterdir() if p.name[0] != "."} if out.exists() else set()
    if found - OUTPUTS:
        other = min(found - OUTPUTS)
        raise InputError(f"{out} holds {other}, which is not of a demo: give another folder")
    if found and not force:
        raise InputError(f"{out} holds a demo: give another folder, or --force to replace it")


def _commands(out: Path, steps: int, finetune_steps: int, limit: int) -> list[list[str]]:
    """The commands, without ``idode``."""
    first, tuned = str(out / "run"), str(out / "tuned")
    # A solver's error well below the standard error of so few images will do.
    few = ["--limit", str(limit), "--tolerance", "0.02"]
    samples = ["--out", str(out / "samples.png"), "--json", str(out / "samples.json")]
    return [
        # So short a training does not learn the images by heart.
        ["train", "digits", "--steps", str(steps), "--set", "net.dropout=0", "--out", first],
        ["finetune", first, "--steps", str(finetune_steps), "--out", tuned],
        *(["evaluate", str(out / n), "--json", str(out / f"{n}.json"), *few] for n in RUNS),
        ["sample", tuned, "--count", "64", "--solver", "dpm", *samples],
        ["report", tuned, "--before", first, "--out", str(out / "report")],
        [
            "compress",
            "digits",
            "--model",
            tuned,
            "--out",
            str(out / ARCHIVE),
            "--no-verify",
            "--json",
            str(out / "archive.json"),
        ],
        ["decompress", str(out / ARCHIVE), "--out", str(out / RESTORED)],
    ]


def _run_command(words: list[str], quiet: bool) -> int:
    """Print a command as a user would type it, and run it; the exit code."""
    from idode.cli.main import main

    if not quiet:
        print(f"\n$ idode {' '.join(words)}", flush=True)
    return main(words)


def _summary(out: Path, seconds: float) -> None:
    """Print the results, and where to look next."""
    import numpy as np

    from idode.data.loading import load
    from idode.studies.coders import coder_bits

    before, after = (_read(out / f"{name}.json") for name in RUNS)
    old, new = before["results"][0], after["results"][0]
    digits = np.asarray(load("digits").test)
    coders = coder_bits(digits[: after["images"]])
    others = ", ".join(f"{name} {bits:.2f}" for name, bits in coders.items())
    if not np.array_equal(np.load(out / RESTORED / "digits-test.npy"), digits):
        raise RuntimeError("the compressed digits did not come back as they were")
    sizes = {"idode": _read(out / "archive.json")["bytes_after"]}
    sizes |= {n: round(bits * digits.size / 8) for n, bits in coder_bits(digits).items()}
    archives = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
    print(
        f"""
Results in bits per dimension ({after["images"]} test digits, 17 grey levels):
  SDE bound                            {before["sde_bound"]["bits_per_dim"]:.3f}
  ODE, truncated normal, K = 1         {old["bits_per_dim"]:.3f} ± {old["standard_error"]:.3f}
  ODE after second-order fine-tuning   {new["bits_per_dim"]:.3f} ± {new["standard_error"]:.3f}
  solver evaluations for an image      {old["nfe"]:.0f}, after fine-tuning {new["nfe"]:.0f}
  image coders on the same digits      {others}
All {len(digits)} test digits, compressed and restored, in bytes: {archives}
It took {seconds:.0f} s. See {out / "samples.png"}, and {out / "report" / "report.html"} for a
table of all bounds. Next, try: idode train fashion-mnist-small --out RUN"""
    )


def _read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value
