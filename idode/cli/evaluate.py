"""``idode evaluate``: bits per dimension of a data set under a run, with error bars."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idode.cli.estimates import add_estimate_arguments
from idode.cli.parsing import INTERRUPTED, RUN, positive

if TYPE_CHECKING:
    import torch

    from idode.data import Identity, Split
    from idode.diffusion.model import DiffusionODE
    from idode.evaluation.runner import Ledger
    from idode.likelihood.bits_per_dim import BitsPerDim, LikelihoodSettings
    from idode.likelihood.learned_dequantization import Learned
    from idode.likelihood.sde_bound import SDEBound
    from idode.runs.run import Run

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode evaluate``."""
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument(
        "--data", metavar="SPEC", help="data set, see `idode data list` [that of RUN]"
    )
    parser.add_argument(
        "--split", choices=("test", "train"), default="test", help="part of the data set [test]"
    )
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="only the first N images [all]"
    )
    add_estimate_arguments(parser)
    parser.add_argument(
        "--bounds", action="store_true",
        help="the paper's table: three dequantizations by K = 1, 5, 20",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=positive, default=64, metavar="B", help="images solved together [64]"
    )
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="cpu or cuda [cpu]")
    parser.add_argument(
        "--journal", type=Path, metavar="FILE",
        help="where finished batches are kept, to go on after an interruption "
        "[in RUN/evaluations]",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    parser.add_argument("--force", action="store_true", help="replace FILE of --json")
    parser.add_argument("--quiet", action="store_true", help="print the table only")


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode evaluate``; the exit code."""
    from idode.cli.matching import warn_of_other_data
    from idode.progress import Stages
    from idode.cli.tables import check_different, check_output
    from idode.evaluation.evaluate import open_journal
    from idode.evaluation.runner import Ledger
    from idode.runs.run import open_run
    from idode.training import joined

    check_output(args.json, args.force)
    check_different({"--json": args.json, "--journal": args.journal})
    opened = open_run(args.run)
    settings = _settings(args, opened.config.model.levels)
    split, identity = _data(args, opened)
    with joined(args.device) as world:
        model = opened.model(world.device)
        learned = _learned(args, opened, model, world.device)
        _check(args, model, settings, learned)
        quiet = args.quiet or not world.writes
        work = _work(args, settings, identity, world.device)
        with open_journal(opened, model, work, args.journal, world.rank, learned) as journal:
            warn_of_other_data(opened, identity, quiet=not world.writes)
            try:
                with Stages(quiet) as stages:
                    ledger = Ledger(stages, journal, world.rank, world.size)
                    bound, results = _measure(
                        args, model, split, settings, world.device, ledger, learned
                    )
            except KeyboardInterrupt:
                return _interrupted(journal.path)
        if world.writes:
            _print(args, opened, identity, len(results[0].per_image), bound, results)
        if not all(result.complete for result in results):
            return _interrupted(journal.path)
        if world.writes:
            _write(args, opened, identity, bound, results)
    return 0


def _interrupted(journal: Path) -> int:
    kept = f"{journal} keeps what is finished; give the same command again to go on"
    print(f"interrupted: {kept}", file=sys.stderr)
    return INTERRUPTED


def _write(
    args: argparse.Namespace,
    opened: Run,
    identity: Identity,
    bound: SDEBound | None,
    results: list[BitsPerDim],
) -> None:
    """The result as JSON; only a finished one, since it would refuse the command that goes on."""
    from idode.cli.tables import write_json
    from idode.evaluation.evaluate import summary

    if args.json is None:
        return
    value: dict[str, Any] = {
        "run": str(args.run),
        "parent": None if opened.parent is None else dataclasses.asdict(opened.parent),
        "data": identity.to_json(),
        "split": args.split,
        "images": len(results[0].per_image),
        "results": [dict(summary(result)) for result in results],
    }
    if bound is not None:
        value["sde_bound"] = {
            "bits_per_dim": bound.mean,
            "standard_error": bound.standard_error,
            "monte_carlo_error": bound.monte_carlo_error,
            "reconstruction": bound.reconstruction,
            "prior": bound.prior,
            "diffusion": bound.diffusion,
        }
    write_json(args.json, value)


def _data(args: argparse.Namespace, opened: Run) -> tuple[Split, Identity]:
    """The images to evaluate."""
    from idode.cli.matching import data_for

    data = data_for(opened, args.data)
    return getattr(data, args.split)[: args.limit], data.identity


def _learned(
    args: argparse.Namespace, opened: Run, model: DiffusionODE, device: torch.device
) -> Learned | None:
    """The run's dequantizer where it is asked for, or has a row in the table of bounds."""
    from idode.runs.dequantizer_file import has_dequantizer, load_dequantizer

    if args.dequantization == "learned" or (args.bounds and has_dequantizer(opened)):
        return load_dequantizer(opened, model, device)
    return None


def _check(
    args: argparse.Namespace,
    model: DiffusionODE,
    settings: LikelihoodSettings,
    learned: Learned | None,
) -> None:
    """Find what is wrong before anything is computed."""
    from idode.evaluation.evaluate import table_rows
    from idode.likelihood.estimator import dequantization_for

    for name in table_rows(learned) if args.bounds else (settings.dequantization,):
        dequantization_for(model, dataclasses.replace(settings, dequantization=name), learned)


def _work(
    args: argparse.Namespace,
    settings: LikelihoodSettings,
    identity: Identity,
    device: torch.device,
) -> dict[str, Any]:
    """All that the numbers depend on besides the model; but not how many images are taken."""
    return {
        "settings": dataclasses.asdict(settings),
        "bounds": args.bounds,
        "draws": args.draws,
        "split": args.split,
        "data": identity.to_json(),
        "device": device.type,
    }


def _settings(args: argparse.Namespace, levels: int | None) -> LikelihoodSettings:
    """How the numbers are made, for data with so many levels or continuous data."""
    from idode.errors import InputError
    from idode.likelihood.bits_per_dim import LikelihoodSettings

    if levels is None and args.bounds:
        raise InputError("--bounds compares ways from integers to states; this data is continuous")
    if levels is not None and args.dequantization == "none":
        raise InputError("--dequantization none is for continuous data: choose tn or another")
    if levels is not None and (args.draws < 2 or args.draws % 2):
        raise InputError(f"--draws: must be even and at least 2, got {args.draws}")

    return LikelihoodSettings(
        dequantization=args.dequantization or ("none" if levels is None else "tn"),
        importance=args.importance,
        closed_form=args.closed_form,
        repeats=args.repeats,
        probes=args.probes,
        fresh_probes=args.fresh_probes,
        solver=args.solver,
        tolerance=args.tolerance,
        start=args.start,
        seed=args.seed,
        batch_size=args.batch_size,
    )


def _measure(
    args: argparse.Namespace,
    model: DiffusionODE,
    split: Split,
    settings: LikelihoodSettings,
    device: torch.device,
    ledger: Ledger,
    learned: Learned | None,
) -> tuple[SDEBound | None, list[BitsPerDim]]:
    from idode.evaluation.evaluate import bounds_table
    from idode.likelihood.bits_per_dim import bits_per_dim
    from idode.likelihood.sde_bound import sde_bound

    bound = None
    if model.levels is not None:
        bound = sde_bound(
            model,
            split,
            draws=args.draws,
            seed=settings.seed,
            batch_size=settings.batch_size,
            device=device,
            ledger=ledger,
        )
    if args.bounds:
        return bound, bounds_table(model, split, settings, device, ledger, learned)
    return bound, [
        bits_per_dim(model, split, settings, device=device, ledger=ledger, learned=learned)
    ]


def _print(
    args: argparse.Namespace,
    opened: Run,
    identity: Identity,
    images: int,
    bound: SDEBound | None,
    results: list[BitsPerDim],
) -> None:
    from idode.cli.tables import table

    header = [
        "bound",
        "K",
        "bits/dim",
        "±",
        "images",
        "noise",
        "probe",
        "solver",
        "NFE",
        "s/img",
    ]
    rows = []
    if bound is not None:
        rows.append(
            ["SDE", "", f"{bound.mean:.4f}", f"{bound.standard_error:.4f}", "",
             f"{bound.monte_carlo_error:.4f}", "", "", f"{bound.nfe}",
             f"{bound.seconds / images:.3f}"]
        )  # fmt: skip
    for r in results:
        e, n = r.errors, len(r.per_image)
        rows.append(
            [f"ODE {r.settings.dequantization}", str(r.settings.importance), f"{r.mean:.4f}",
             f"{r.standard_error:.4f}", f"{e.images:.4f}", f"{e.dequantization:.4f}",
             f"{e.probe:.4f}", f"{e.solver:+.4f}", f"{r.nfe:.0f}", f"{r.seconds / n:.3f}"]
        )  # fmt: skip
    print(f"{args.run}: {args.split} split of {identity}, {images} images")
    if opened.parent is not None:
        print(f"fine-tuned from {opened.parent}")
    print(table(header, rows))
    print("± is the standard error of the mean; images, noise and probe are its parts, solver a")
    print(
        "likely bias, all in bits/dim. s/img shares out the search for the solver's steps as well."
    )
    for note in dict.fromkeys(note for r in results for note in r.notes):
        print(f"note: {note}")
