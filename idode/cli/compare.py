"""``idode compare``: systems trained and measured on equal terms, in one table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from idode.cli.parsing import (
    above_zero,
    add_data_argument,
    add_device_argument,
    add_json_arguments,
    add_quiet_argument,
    natural,
    positive,
)
from idode.storage import read_json
from idode.studies.comparison.settings import MeasurementSettings

if TYPE_CHECKING:
    from idode.studies.comparison.summary import Comparison
    from idode.studies.comparison.table import Row

__all__ = ["SHARED", "add_arguments", "run", "tables"]

SHARED = True  # between the processes of torchrun

# Options that are passed on under their own name where they are given.
OPTIONS = ("preset", "data", "steps", "finetune", "limit", "tolerance", "samples")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode compare``."""
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder of all runs and the table"
    )
    parser.add_argument(
        "--systems", metavar="A,B,...",
        help="which systems, see `idode train --list` [all but rectified-flow and ablations]",
    )  # fmt: skip
    parser.add_argument(
        "--seeds", metavar="0,1,...", help="train every system once with each of these seeds [0]"
    )
    parser.add_argument(
        "--preset", metavar="NAME", help="network and optimisation of all systems [digits]"
    )
    add_data_argument(parser, default="the preset's")
    parser.add_argument(
        "--steps", type=positive, metavar="N", help="training steps of each [the preset's]"
    )
    parser.add_argument(
        "--finetune", type=natural, metavar="N",
        help="second-order steps after training, for idode-vp and idode-sp [0]",
    )  # fmt: skip
    parser.add_argument(
        "--control",
        action="store_true",
        help="also train as many steps without the second-order term",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="change a setting of the preset for all systems; those of a system override it",
    )  # fmt: skip
    default = MeasurementSettings()
    parser.add_argument(
        "--limit", type=positive, metavar="N",
        help=f"test images of the ODE values [{default.limit}]",
    )  # fmt: skip
    parser.add_argument(
        "--tolerance", type=above_zero, metavar="TOL",
        help=f"solver error of the ODE values, in bits/dim rms per image [{default.tolerance}]",
    )  # fmt: skip
    parser.add_argument(
        "--samples", type=positive, metavar="N",
        help=f"samples drawn for NFE and FID [{default.samples}]",
    )  # fmt: skip
    add_json_arguments(
        parser,
        what="the figures of DIR/compare.json here too,",
        replaces="the comparison in DIR, and FILE of --json,",
    )
    add_quiet_argument(parser, but="the tables and errors")
    add_device_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run ``idode compare``; the exit code."""
    from idode.cli.tables import check_output, write_json
    from idode.runs.distributed import first_process
    from idode.studies.comparison.compare import compare

    given = {name: value for name in OPTIONS if (value := getattr(args, name)) is not None}
    if args.seeds is not None:
        given["seeds"] = _seeds(args.seeds)
    check_output(args.json, args.force or _is_comparison(args.json))
    found = compare(
        None if args.systems is None else args.systems.split(","),
        out=args.out,
        control=args.control,
        settings=args.set,
        force=args.force,
        device=args.device,
        progress=not args.quiet,
        **given,
    )
    if not first_process():
        return 0
    if args.json is not None:
        write_json(args.json, found.to_json())
    _print(found)
    if not args.quiet:
        print(found.page)
    return 0


def _seeds(text: str) -> tuple[int, ...]:
    from idode.errors import InputError

    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise InputError(
            f"--seeds must be whole numbers with commas between them, got {text!r}"
        ) from None


def _is_comparison(path: Path | None) -> bool:
    """Whether a file was written by this command, which may replace it when it is re-run."""
    try:
        return path is not None and "orderings" in read_json(path)
    except (OSError, ValueError, TypeError):
        return False


def tables(rows: Sequence[Row]) -> str:
    """Two tables, values and times, neither wider than a terminal; the page has them as one."""
    from idode.cli.tables import table
    from idode.studies.comparison.page import HEADER
    from idode.studies.comparison.table import METRICS

    lines = [HEADER, *([cell.replace(" ± ", "±") for cell in row.texts()] for row in rows)]
    parts = []
    for time in (False, True):
        columns = [0, *(i for i, m in enumerate(METRICS.values(), 1) if m.time is time)]
        header, *cells = ([line[i] for i in columns] for line in lines)
        parts.append(table(header, cells))
    return "\n\n".join(parts)


def _print(found: Comparison) -> None:
    from idode.cli.tables import table
    from idode.studies.comparison.page import CLAIMS_HEADER, legend

    print(f"{found.identity}, {found.steps} steps")
    print(tables(found.rows) + "\n")
    print("\n".join(legend(found)))
    for row in found.rows:
        for failure in row.failures:
            print(f"failed: {failure}")
    if found.verdicts:
        print()
        print(table(CLAIMS_HEADER, [verdict.texts() for verdict in found.verdicts]))
