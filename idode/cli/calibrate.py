"""``idode calibrate``: what known images look like to a model, for ``idode score``."""

from __future__ import annotations

import argparse
from pathlib import Path

from idode.cli.parsing import (
    add_data_argument,
    add_device_argument,
    add_json_arguments,
    add_quiet_argument,
    add_run_argument,
    add_seed_argument,
    positive,
)

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode calibrate``."""
    add_run_argument(parser)
    add_data_argument(parser)
    parser.add_argument(
        "--split", choices=("test", "train"),
        help="part of the data set; images that the model was trained on look too usual [test]",
    )  # fmt: skip
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="only the first N images [4000]"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE",
        help="where to keep the result [with RUN, or in the cache]",
    )  # fmt: skip
    add_seed_argument(parser)
    add_json_arguments(parser, replaces="FILE of --out and --json")
    add_quiet_argument(parser)
    add_device_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run ``idode calibrate``; the exit code."""
    from idode.cli.tables import check_different, check_output, write_json
    from idode.detection.calibrate import calibrate

    check_different({"--out": args.out, "--json": args.json})
    check_output(args.out, args.force)
    check_output(args.json, args.force)
    names = ("data", "split", "limit", "seed", "out", "device")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    found = calibrate(args.run, progress=not args.quiet, **given)
    if args.json is not None:
        write_json(args.json, found.to_json())
    if not args.quiet:
        about = found.about
        print(
            f"{args.run}: calibrated on {about['fitted'] + about['counted']} images of "
            f"{about['data']}, {about['counted']} of them for p-values (the least is "
            f"{found.least_p_value:.2g}); bits/dim to {found.bits_error:.3f}"
        )
    return 0
