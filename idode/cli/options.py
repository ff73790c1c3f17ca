"""Arguments that the commands that train share, and what they print."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idode.cli.parsing import add_device_argument, add_quiet_argument, natural, positive
from idode.errors import InputError

if TYPE_CHECKING:
    from idode.runs.config import Config
    from idode.runs.run import Run

__all__ = ["add_training_arguments", "print_settings", "print_summary", "training_arguments"]


def add_training_arguments(parser: argparse.ArgumentParser, steps: str, seed: str) -> None:
    """Arguments of every command that trains; ``steps`` and ``seed`` name their defaults."""
    parser.add_argument("--out", type=Path, metavar="RUN", help="folder of the new run")
    parser.add_argument(
        "--steps", type=positive, metavar="N", help=f"optimiser steps in all [{steps}]"
    )
    parser.add_argument(
        "--seed", type=natural, metavar="S", help=f"seed of everything random [{seed}]"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change any setting, such as train.lr=1e-3 or net.width=64; --dry-run lists them",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue from the last checkpoint in RUN, or start a new run if there is none",
    )
    parser.add_argument("--force", action="store_true", help="replace the run in that folder")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print all settings as JSON, and the memory they need on a GPU, and stop",
    )
    add_quiet_argument(parser)
    add_device_argument(parser)


def training_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """What was given of them, as keyword arguments of the API that resolve the settings."""
    if args.out is None and not args.dry_run:
        raise InputError("no run folder is given: say where with --out RUN")
    return {
        "out": args.out,
        "steps": args.steps,
        "seed": args.seed,
        "settings": args.set,
        "resume": args.resume,
        "force": args.force,
    }


def print_settings(config: Config, quiet: bool = False) -> None:
    """All settings as JSON on stdout; the memory of a GPU that they need on stderr."""
    from idode.runs.config import to_json
    from idode.training.memory_estimate import memory_lines

    print(json.dumps(to_json(config), indent=1))
    if not quiet:
        print("\n".join(memory_lines(config)), file=sys.stderr)


def print_summary(run: Run, seconds: float, device: str | None) -> None:
    """What was trained; only rank 0 of several processes prints."""
    from idode.runs.distributed import best_device, first_process

    if not first_process():
        return
    from idode.training.metrics import read_metrics

    lines = read_metrics(run.metrics)
    held_out = [line["held_out"] for line in lines if "held_out" in line][-1:]
    value = "".join(f", {found:.4f} bits/dim on test samples" for found in held_out)
    where = f"{seconds:.0f} s on {best_device(device)}"
    kept = run.config.train.hold_out
    apart = f"; the last {kept} training samples were held out (train.hold_out)" if kept else ""
    print(f"{run.path}: {run.config.train.steps} steps, {where}{value}\n{run.identity}{apart}")
