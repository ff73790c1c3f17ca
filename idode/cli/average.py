"""``idode average``: the weights of a run, averaged with a width that is chosen afterwards."""

from __future__ import annotations

import argparse
from pathlib import Path

from idode.cli.parsing import (
    above_zero,
    add_data_argument,
    add_device_argument,
    add_quiet_argument,
    add_run_argument,
)

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode average``."""
    add_run_argument(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="RUN", help="folder of the new run"
    )
    parser.add_argument(
        "--width",
        type=above_zero,
        metavar="W",
        help="standard deviation of the average, as a share of the training [the best on the "
        "training images that train.hold_out kept apart]",
    )
    add_data_argument(parser)
    parser.add_argument("--force", action="store_true", help="replace the run in that folder")
    add_quiet_argument(parser)
    add_device_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run ``idode average``; the exit code."""
    from idode.training.averaging import average

    names = ("out", "width", "data", "device", "force")
    made = average(args.run, **{name: getattr(args, name) for name in names})
    if not args.quiet:
        named = {f"width {width:g}": bits for width, bits in made.bounds.items()}
        if made.own is not None:
            named["the run's own"] = made.own
        for name, bits in named.items():
            print(f"{name:13}  SDE bound {bits:.4f} bits/dim on held-out training images")
        for width in made.left_out:
            print(f"width {width:<7g}  left out: there are too few snapshots for it")
        if made.own is not None and made.own <= min(made.bounds.values()):
            print(f"no width is better than {args.run} as it is")
        error = f"relative error of its profile {made.error:.1e}"
        print(f"{made.run.path}: average of width {made.width:g}, {error}")
    return 0
