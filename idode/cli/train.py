"""``idode train``: a preset, data and a folder to a trained model."""

from __future__ import annotations

import argparse

from idode.cli.options import (
    add_training_arguments,
    print_settings,
    print_summary,
    training_arguments,
)
from idode.cli.parsing import add_data_argument

__all__ = ["SHARED", "add_arguments", "run"]

SHARED = True  # between the processes of torchrun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode train``."""
    parser.add_argument(
        "preset", nargs="?", metavar="PRESET", help="network and settings; --list shows them"
    )
    parser.add_argument(
        "--list", action="store_true", help="list the presets and the systems, and stop"
    )
    parser.add_argument(
        "--system",
        metavar="NAME",
        help="objective and schedule of a named system, see --list [i-DODE]",
    )
    add_data_argument(parser, default="the preset's")
    add_training_arguments(parser, steps="the preset's", seed="the preset's")


def list_names() -> None:
    """Print a line for each preset and each system."""
    from idode.runs.presets import SUMMARIES
    from idode.runs.systems import SYSTEMS

    for name, text in SUMMARIES.items():
        print(f"{name:24} {text}")
    print("\nsystems, for --system:")
    for name, system in SYSTEMS.items():
        print(f"{name:24} {system.summary}")


def run(args: argparse.Namespace) -> int:
    """Run ``idode train``; the exit code."""
    if args.list:
        list_names()
        return 0
    given = training_arguments(args)

    import time

    from idode.training.resolve import training_config
    from idode.training.train import train

    if args.dry_run:
        config = training_config(args.preset, system=args.system, **given)
        print_settings(config, args.quiet)
        return 0
    began = time.perf_counter()
    trained = train(
        args.preset,
        data=args.data,
        system=args.system,
        device=args.device,
        progress=not args.quiet,
        **given,
    )
    if not args.quiet:
        print_summary(trained, time.perf_counter() - began, args.device)
    return 0
