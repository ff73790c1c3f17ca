"""``idode compare``: systems trained and measured on equal terms, in one table."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from idode.cli.parsing import INTERRUPTED, above_zero, natural, positive

if TYPE_CHECKING:
    from idode.progress import Bar
    from idode.studies.comparison import Bench, Comparison, Plan
    from idode.studies.comparison.table import Row

__all__ = ["add_arguments", "run", "tables"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode compare``."""
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder of all runs and of the table",
    )
    parser.add_argument(
        "--systems", metavar="A,B,...",
        help="which, see `idode train --list` [all but rectified-flow and i-DODE's ablations]",
    )  # fmt: skip
    parser.add_argument(
        "--seeds",
        default="0",
        metavar="0,1,...",
        help="seeds of training; each system is trained once for each [0]",
    )
    parser.add_argument(
        "--preset",
        default="digits",
        metavar="NAME",
        help="network and optimisation of all systems [digits]",
    )
    parser.add_argument(
        "--data", metavar="SPEC", help="data set, see `idode data list` [the preset's]"
    )
    parser.add_argument(
        "--steps", type=positive, metavar="N", help="training steps of each [the preset's]"
    )
    parser.add_argument(
        "--finetune", type=natural, default=0, metavar="N",
        help="second-order steps after training, for idode-vp and idode-sp [0]",
    )  # fmt: skip
    parser.add_argument(
        "--control",
        action="store_true",
        help="also --finetune steps without the second order, to compare with",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="change a setting of the preset, for all systems; a system's own come after it",
    )  # fmt: skip
    parser.add_argument(
        "--limit",
        type=positive,
        default=128,
        metavar="N",
        help="test images of the ODE values [128]",
    )
    parser.add_argument(
        "--tolerance", type=above_zero, default=0.02, metavar="TOL",
        help="solver error of the ODE values, in bits/dim rms for an image [0.02]",
    )  # fmt: skip
    parser.add_argument(
        "--samples",
        type=positive,
        default=128,
        metavar="N",
        help="samples drawn for NFE and FID [128]",
    )
    parser.add_argument("--device", metavar="DEVICE", help="cpu, cuda or cuda:1 [cuda if any]")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of DIR/compare.json here too"
    )
    parser.add_argument("--force", action="store_true", help="begin again, and replace FILE")
    parser.add_argument("--quiet", action="store_true", help="print the tables only")


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode compare``; the exit code."""
    from idode.cli.tables import check_output, write_json
    from idode.data import load
    from idode.runs.distributed import pick_device
    from idode.studies.comparison import Bench, check_folder, plain, store, summarise, write_page

    plan, out = _plan(args), args.out
    check_output(args.json, args.force or _ours(args.json))
    device, data = pick_device(args.device, 0), load(plan.spec)
    for entry in plan.entries():
        plan.config(entry, data.identity)  # all that can be refused is refused before any work
    if args.force:
        _clear(out)
    check_folder(out, plan, data.identity)
    bench = Bench(out, plan, data, device)
    for entry in plan.entries():
        bench.result(entry)
    store(out, plan)
    if not args.quiet:
        _tell_of_other_effort(bench, vars(args).keys())
    try:
        _carry_out(bench, args.quiet)
        found = summarise(bench)
    except KeyboardInterrupt:
        saved = f"{out} keeps what is done; go on by the same command"
        print(f"interrupted: {saved}", file=sys.stderr)
        return INTERRUPTED
    for path in (out / "compare.json", args.json):
        if path is not None:
            write_json(path, plain(found))
    page = write_page(out, found)
    _print(found)
    if not args.quiet:
        print(page)
    return 0


def _plan(args: argparse.Namespace) -> Plan:
    from idode.errors import InputError
    from idode.runs.systems import COMPARED, distinct
    from idode.studies.comparison import Effort, Plan

    try:
        seeds = tuple(int(word) for word in args.seeds.split(","))
    except ValueError:
        raise InputError(
            f"--seeds must be whole numbers with commas between them, got {args.seeds!r}"
        ) from None
    systems = distinct(COMPARED) if args.systems is None else tuple(args.systems.split(","))
    return Plan(
        systems=systems,
        seeds=seeds,
        preset=args.preset,
        data=args.data,
        settings=tuple(args.set),
        steps=args.steps,
        finetune=args.finetune,
        control=args.control,
        effort=Effort(limit=args.limit, tolerance=args.tolerance, samples=args.samples),
    )


def _ours(path: Path | None) -> bool:
    """Whether a file is an earlier comparison: the same command again may replace it."""
    try:
        return path is not None and "orderings" in json.loads(path.read_text())
    except (OSError, ValueError, TypeError):
        return False


def _clear(out: Path) -> None:
    """Remove the runs of a comparison, and nothing that idode did not write."""
    from idode.cli.session import clear
    from idode.runs.run import holds_run
    from idode.studies.comparison.plan import PLAN, stored_plan
    from idode.studies.comparison.results import RESULT

    if stored_plan(out) is None:
        return
    for folder in filter(holds_run, out.glob("*/seed-*")):
        (folder / RESULT).unlink(missing_ok=True)  # first: without its run it would count as done
        clear(folder)
        with contextlib.suppress(OSError):  # whatever else is in it stays
            folder.rmdir()
            folder.parent.rmdir()
    for name in ("compare.json", "compare.md", "compare.html"):
        (out / name).unlink(missing_ok=True)
    for name in ("curves-steps.png", "curves-seconds.png", "values.png"):
        (out / name).unlink(missing_ok=True)
    (out / PLAN).unlink()  # last: killed on the way, it is still a comparison to --force


def _tell_of_other_effort(bench: Bench, options: Collection[str]) -> None:
    """One line where runs are measured again, since they were with other settings.

    All that they had are named, each by its option if it is among ``options``.
    """
    from dataclasses import asdict

    from idode.studies.comparison.results import measured_with

    wanted = asdict(bench.plan.effort)
    found = [measured_with(entry.folder(bench.out)) for entry in bench.plan.entries()]
    others = [asdict(effort) for effort in found if effort not in (None, bench.plan.effort)]
    if others:
        changes = []
        for name, now in wanted.items():
            if old := sorted({other[name] for other in others} - {now}):
                told = f"--{name}" if name in options else name
                changes.append(f"{told} {' and '.join(map(str, old))} before, {now} now")
        print(f"{len(others)} of {len(found)} runs are measured again ({', '.join(changes)}); "
              "their training is kept", file=sys.stderr)  # fmt: skip


def _carry_out(bench: Bench, quiet: bool) -> None:
    """All runs, each with a line that says where it is."""
    from idode.progress import Bar

    entries = bench.plan.entries()
    for number, entry in enumerate(entries, 1):
        place = f"[{number}/{len(entries)}] {entry.name} seed {entry.seed}"

        with contextlib.ExitStack() as stack:

            def tell(part: str, place: str = place, stack: contextlib.ExitStack = stack) -> None:
                stack.close()  # the bar of training, before the parts that have none
                if not quiet:
                    print(f"{place}: {part}", file=sys.stderr)

            def watch(steps: int, stack: contextlib.ExitStack = stack) -> Bar:
                return stack.enter_context(Bar(steps, quiet))

            result = bench.carry_out(entry, watch, tell)
        spent = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in result.seconds.items())
        if not quiet and spent:
            print(f"{place}: {spent}", file=sys.stderr)
        for part, reason in result.failures.items():
            print(f"{place}: {part} failed: {reason}", file=sys.stderr)


def tables(rows: Sequence[Row]) -> str:
    """Values, then times: two tables, neither wider than a terminal; the page has them as one."""
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
    from idode.studies.comparison import legend
    from idode.studies.comparison.page import JUDGED

    print(f"{found.identity}, {found.steps} steps")
    print(tables(found.rows) + "\n")
    print("\n".join(legend(found)))
    for row in found.rows:
        for failure in row.failures:
            print(f"failed: {failure}")
    if found.verdicts:
        print()
        print(table(JUDGED, [verdict.texts() for verdict in found.verdicts]))
