"""``idode fid``: the Fréchet distance of samples on disk to a data set."""

from __future__ import annotations

import argparse
from pathlib import Path

from idode.cli.parsing import add_device_argument, add_json_arguments, add_quiet_argument

__all__ = ["SHARED", "add_arguments", "run"]

SHARED = True  # between the processes of torchrun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode fid``."""
    parser.add_argument(
        "samples", type=Path, metavar="SAMPLES",
        help="a folder of images, or FILE.npz, such as idode sample writes",
    )  # fmt: skip
    parser.add_argument(
        "--against", required=True, metavar="SPEC",
        help="data set whose training split they are compared with, see `idode data list`",
    )  # fmt: skip
    add_device_argument(parser)
    add_json_arguments(parser)
    add_quiet_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode fid``; the exit code."""
    import dataclasses

    from idode.cli.tables import check_output, table, write_json
    from idode.evaluation.fid import fid_of_samples

    check_output(args.json, args.force)
    found = fid_of_samples(args.samples, args.against, device=args.device)
    if found.rank:
        return 0
    if args.json is not None:
        write_json(args.json, {"samples": str(args.samples), **dataclasses.asdict(found)})
    if not args.quiet:
        header = ["images", "FID", f"FID of {found.test_images} test images"]
        row = [str(found.count), f"{found.fid:.3f}", f"{found.fid_of_test_split:.3f}"]
        print(table(header, [row]))
        print(
            f"FID by {found.features} features against the training split of {found.data}; it "
            "falls with the number of images, so compare at equal numbers."
        )
    return 0
