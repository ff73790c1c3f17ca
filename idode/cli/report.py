"""``idode report``: one page with the paper's figures for a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from idode.cli.parsing import (
    RUN,
    add_data_argument,
    add_device_argument,
    add_json_arguments,
    add_quiet_argument,
    add_run_argument,
    add_seed_argument,
    positive,
)
from idode.studies.report.settings import FAST, FULL

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode report``."""
    add_run_argument(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder of the report [RUN/report]"
    )
    add_data_argument(parser)
    parser.add_argument(
        "--before",
        metavar="RUN",
        help=f"what to compare with: {RUN} [the one it was fine-tuned from, if still there]",
    )
    few, many = FAST.bounds_images, FULL.bounds_images
    parser.add_argument(
        "--limit",
        type=positive,
        metavar="N",
        help=f"test images in the table of bounds [{few}, with --full {many}]",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="the paper's numbers of draws and more images; takes far longer",
    )
    add_seed_argument(parser)
    add_json_arguments(parser, replaces="the report in FOLDER, and FILE of --json,")
    add_quiet_argument(parser)
    add_device_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run ``idode report``; the exit code."""
    from idode.cli.tables import check_output, write_json
    from idode.studies.report.report import report

    check_output(args.json, args.force)
    found = report(
        args.run,
        out=args.out,
        data=args.data,
        before=args.before,
        limit=args.limit,
        full=args.full,
        force=args.force,
        device=args.device,
        progress=not args.quiet,
        **({} if args.seed is None else {"seed": args.seed}),
    )
    if args.json is not None:
        write_json(args.json, found.to_json())
    if not args.quiet:
        print(found)
    return 0
