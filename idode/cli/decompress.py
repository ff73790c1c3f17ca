"""``idode decompress``: the files of an archive, all of them or some."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from idode.cli.parsing import RUN, add_quiet_argument, positive

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode decompress``."""
    parser.add_argument("file", type=Path, metavar="FILE", help="an archive of idode compress")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="where the files go"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME",
        help="restore this file alone, and decode no more blocks than it needs; may be repeated",
    )  # fmt: skip
    parser.add_argument("--model", metavar="RUN", help=f"{RUN} [the one the archive names]")
    parser.add_argument(
        "--jobs", type=positive, metavar="N", help="processes [one for each processor]"
    )
    parser.add_argument(
        "-f", "--force", action="store_true", help="replace files that exist, also FILE of --json"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    add_quiet_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run ``idode decompress``; the exit code."""
    from idode.cli.tables import check_output, write_json
    from idode.codec.decompress import decompress_files

    check_output(args.json, args.force)
    began = time.perf_counter()
    names = decompress_files(
        args.file, args.out, model=args.model, only=args.only, jobs=args.jobs, force=args.force,
        progress=not args.quiet,
    )  # fmt: skip
    if args.json is not None:
        write_json(args.json, {"files": names, "seconds": time.perf_counter() - began})
    if not args.quiet:
        print(f"{args.out}: {len(names)} files restored")
    return 0
