"""``idode report``: a run as one page with every figure of the paper."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from idode.cli.parsing import RUN, natural, positive

if TYPE_CHECKING:
    from idode.runs.run import Run
    from idode.studies.report import Effort, Measurements

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode report``."""
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder of the report [RUN/report]"
    )
    parser.add_argument(
        "--data", metavar="SPEC", help="data set, see `idode data list` [that of RUN]"
    )
    parser.add_argument(
        "--before",
        metavar="RUN",
        help="a run to compare with [the one it was fine-tuned from, if still there]",
    )
    parser.add_argument(
        "--limit",
        type=positive,
        metavar="N",
        help="test images of the table of bounds [6, with --full 64]",
    )
    parser.add_argument(
        "--full", action="store_true", help="the paper's numbers of draws, more images; far longer"
    )
    parser.add_argument(
        "--seed", type=natural, default=0, metavar="S", help="seed of all noise [0]"
    )
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="cpu or cuda [cpu]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    parser.add_argument(
        "--force", action="store_true", help="replace the report in FOLDER, and FILE"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode report``; the exit code."""
    from idode.cli.tables import check_output, write_json
    from idode.errors import InputError
    from idode.runs.run import REPORT, SHIPPED, open_run
    from idode.studies.report import plain, sections, write
    from idode.studies.report.page import refuse_existing
    from idode.studies.report.sections import facts, lead, note

    opened = open_run(args.run)
    if args.out is None and args.run.startswith(SHIPPED):
        raise InputError(f"{args.run} is part of the package: say where with --out FOLDER")
    out = args.out or opened.path / REPORT
    refuse_existing(out, args.force, ours=args.out is None)
    check_output(args.json, args.force)
    before = _before(args, opened)
    m = _measure(args, opened, before)
    words = facts(m, opened.config)
    title = f"Report on {opened.path.resolve().name}"
    page = write(out, title, lead(m), words, sections(m), note(m), force=args.force)
    if args.json is not None:
        write_json(args.json, plain(m))
    if not args.quiet:
        print(f"{page}\n{lead(m)}\n{m.identity}")
    return 0


def _before(args: argparse.Namespace, opened: Run) -> Run | None:
    """The run to compare with: the one asked for, else what this one was fine-tuned from."""
    from idode.errors import InputError
    from idode.runs.run import open_run

    if args.before is not None:
        return open_run(args.before)
    if opened.parent is None:
        return None
    try:
        found = open_run(opened.parent.run)
        if opened.parent.has(found):
            return found
        state = "has changed since"
    except (InputError, OSError):
        state = "is not there any more"
    if not args.quiet:
        print(f"note: {opened.parent.run}, where it was fine-tuned from, {state}", file=sys.stderr)
    return None


def _measure(args: argparse.Namespace, opened: Run, before: Run | None) -> Measurements:
    from idode.cli.matching import data_for
    from idode.progress import LateBar
    from idode.runs.distributed import pick_device
    from idode.studies.report import measure
    from idode.studies.report.measurements import stages

    data, effort = data_for(opened, args.data), _effort(args)
    device = pick_device(args.device, 0)
    parts = stages(before is not None)
    with LateBar("part", args.quiet, len(parts)) as late:

        def progress(stage: str) -> None:
            late.bar.set_description(stage)
            late.update(min(1, parts.index(stage)))

        found = measure(opened, data, effort, before=before, device=device, progress=progress)
        late.update(1)
    return found


def _effort(args: argparse.Namespace) -> Effort:
    from dataclasses import replace

    from idode.studies.report import FAST, FULL

    effort = FULL if args.full else FAST
    changes = {"seed": args.seed}
    if args.limit is not None:
        changes |= {"limit": args.limit, "images": max(args.limit, effort.images)}
    return replace(effort, **changes)
