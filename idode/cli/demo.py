"""``idode demo``: the whole way on the 8x8 digits, in a few minutes on two cores.

It runs the same commands a user would, prints each before it runs, and ends with a short story
of the figures they gave.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from idode.cli import COMMANDS
from idode.cli.parsing import parser_of, positive

__all__ = ["add_arguments", "run"]

MADE = {"run", "tuned", "report", "run.json", "tuned.json", "samples.png", "samples.json"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode demo``."""
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="folder of it all [demo]"
    )
    parser.add_argument(
        "--steps", type=positive, default=700, metavar="N", help="steps of training [700]"
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
    parser.add_argument("--quiet", action="store_true", help="print the story only")


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode demo``; the exit code."""
    from idode.errors import InputError

    out: Path = args.out
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give a folder for the demo with --out")
    found = {p.name for p in out.iterdir() if p.name[0] != "."} if out.exists() else set()
    if found - MADE:
        raise InputError(
            f"{out} holds {min(found - MADE)}, which is no demo's: give another folder"
        )
    if found and not args.force:
        raise InputError(f"{out} holds a demo: give another folder, or --force to replace it")
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    common = ["--force"] + (["--quiet"] if args.quiet else [])
    first, tuned = str(out / "run"), str(out / "tuned")
    # A solver's error well below the standard error of so few images will do.
    limit = ["--limit", str(args.limit), "--tolerance", "0.02"]
    _do(args, "train", ["digits", "--steps", str(args.steps), "--out", first, *common])
    _do(args, "finetune", [first, "--steps", str(args.finetune_steps), "--out", tuned, *common])
    for name in ("run", "tuned"):
        result = ["--json", str(out / f"{name}.json"), *limit, *common]
        _do(args, "evaluate", [str(out / name), *result])
    samples = ["--out", str(out / "samples.png"), "--json", str(out / "samples.json")]
    _do(args, "sample", [tuned, "--count", "64", "--solver", "dpm", *samples, *common])
    _do(args, "report", [tuned, "--before", first, "--out", str(out / "report"), *common])
    _story(out, time.perf_counter() - began)
    return 0


def _do(args: argparse.Namespace, name: str, argv: list[str]) -> None:
    """Print a command as a user would type it, and run it."""
    if not args.quiet:
        print(f"\n$ idode {name} {' '.join(argv)}", flush=True)
    module = COMMANDS[name]
    if module.run(parser_of(name).parse_args(argv)):
        raise KeyboardInterrupt  # a command only ends early when it was interrupted


def _story(out: Path, seconds: float) -> None:
    """What was done, with its figures, and where to look next."""
    import numpy as np

    from idode.data import load
    from idode.studies.coders import coder_bits

    before, after = (_read(out / f"{name}.json") for name in ("run", "tuned"))
    old, new = before["results"][0], after["results"][0]
    coders = coder_bits(np.asarray(load("digits").test[: after["images"]]))
    others = ", ".join(f"{name} {bits:.2f}" for name, bits in coders.items())
    print(
        f"""
The story, in bits per dimension ({after["images"]} test digits, 17 grey levels):
  the SDE's bound                     {before["sde_bound"]["bits_per_dim"]:.3f}
  the ODE's, truncated normal, K = 1  {old["bits_per_dim"]:.3f} ± {old["standard_error"]:.3f}
  after second-order fine-tuning      {new["bits_per_dim"]:.3f} ± {new["standard_error"]:.3f}
  solver evaluations for an image     {old["nfe"]:.0f}, after fine-tuning {new["nfe"]:.0f}
  ordinary coders on the same digits  {others}
It took {seconds:.0f} s. Look at {out / "samples.png"} and {out / "report" / "report.html"}, which
has the table of all bounds. Next, try: idode train fashion-mnist-small --out RUN"""
    )


def _read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value
