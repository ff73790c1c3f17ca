"""``idode report``: a run as one page with every figure of the paper."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from idode.data import Dataset
    from idode.report import Effort, Measurements
    from idode.run import Run

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode report``."""
    parser.add_argument("run", metavar="RUN", help="folder of a trained run, or pretrained:NAME")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="[RUN/report]")
    parser.add_argument("--data", metavar="SPEC", help="a data set [the one of the run]")
    parser.add_argument(
        "--before", metavar="RUN", help="the run it was fine-tuned from, to compare"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="images of the table of bounds [6]")
    parser.add_argument(
        "--full", action="store_true", help="the paper's numbers of draws, more images; far longer"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="such as cuda [cpu]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here too")
    parser.add_argument("--force", action="store_true", help="replace the report that is there")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode report``; the exit code."""
    from idode.commands.tables import check_output, write_json
    from idode.errors import InputError
    from idode.report import plain, sections, write
    from idode.report.page import refuse_existing
    from idode.report.sections import facts, lead, note
    from idode.run import SHIPPED, open_run

    opened = open_run(args.run)
    if args.out is None and args.run.startswith(SHIPPED):
        raise InputError(f"{args.run} is part of the package: say where with --out FOLDER")
    out = args.out or opened.path / "report"
    before = None if args.before is None else open_run(args.before)
    refuse_existing(out, args.force)
    check_output(args.json, args.force)
    m = _measure(args, opened, before)
    words = facts(m, opened.config)
    title = f"Report on {opened.path.resolve().name}"
    page = write(out, title, lead(m), words, sections(m), note(m), force=args.force)
    if args.json is not None:
        write_json(args.json, plain(m))
    if not args.quiet:
        print(f"{page}\n{lead(m)}\n{m.identity}")
    return 0


def _measure(args: argparse.Namespace, opened: Run, before: Run | None) -> Measurements:
    import sys

    from tqdm import tqdm

    from idode.report import measure
    from idode.report.measurements import STAGES

    data, effort = _data(args, opened), _effort(args)
    with tqdm(total=len(STAGES), disable=args.quiet, file=sys.stderr, unit="part") as bar:

        def progress(stage: str) -> None:
            bar.set_description(stage)
            bar.update(min(1, STAGES.index(stage)))

        found = measure(opened, data, effort, before=before, device=args.device, progress=progress)
        bar.update(1)
    return found


def _effort(args: argparse.Namespace) -> Effort:
    from dataclasses import replace

    from idode.report import FAST, FULL

    effort = FULL if args.full else FAST
    changes = {"seed": args.seed}
    if args.limit is not None:
        changes |= {"limit": args.limit, "images": max(args.limit, effort.images)}
    return replace(effort, **changes)


def _data(args: argparse.Namespace, opened: Run) -> Dataset:
    """The data to report on, after a warning if the model knows other."""
    import sys

    from idode.data import load, warning
    from idode.errors import InputError

    spec = args.data or opened.config.data
    if spec is None:
        raise InputError(f"{opened.path} names no data set: give one with --data SPEC")
    data = load(spec)
    text = None if opened.identity is None else warning(opened.identity, data.identity)
    if text is not None:
        print(f"warning: {text}", file=sys.stderr)
    return data
