"""``idode evaluate``: bits per dimension of a data set under a run, with error bars."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idode.cli import INTERRUPTED
from idode.cli.parsing import (
    above_zero,
    add_data_argument,
    add_device_argument,
    add_json_arguments,
    add_quiet_argument,
    add_run_argument,
    add_seed_argument,
    natural,
    positive,
)
from idode.errors import InputError
from idode.likelihood import DEQUANTIZATIONS
from idode.ode import PROBES, SOLVERS

if TYPE_CHECKING:
    from idode.evaluation.paired import PairedDifference
    from idode.evaluation.result import Evaluation
    from idode.likelihood.estimator import LikelihoodSettings

__all__ = ["SHARED", "add_arguments", "run"]

SHARED = True  # between the processes of torchrun

HEADER = ["bound", "K", "bits/dim", "±", "images", "noise", "probe", "solver", "NFE", "s/img"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode evaluate``."""
    add_run_argument(parser)
    parser.add_argument(
        "other", nargs="?", metavar="RUN2",
        help="a second model: print its difference to the first on the same images and noise",
    )  # fmt: skip
    add_data_argument(parser)
    parser.add_argument("--split", choices=("test", "train"), help="part of the data set [test]")
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="only the first N images [all]"
    )
    parser.add_argument(
        "--precision", type=above_zero, metavar="P",
        help="standard error of the test set's mean to reach, in bits/dim, by solving as few "
        "images as that takes, chosen at random [solve all]",
    )  # fmt: skip
    _add_settings_arguments(parser)
    parser.add_argument(
        "--bounds", action="store_true",
        help="the paper's table: three dequantizations, and a learned one if there is, by K = 1, "
        "5, 20",
    )  # fmt: skip
    parser.add_argument(
        "--draws", type=positive, metavar="N",
        help="noise levels for each image of the SDE bound, an even number [16]",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=positive, metavar="B", help="images solved together [64]"
    )
    parser.add_argument(
        "--checkpointing", action="store_true",
        help="save memory by computing activations again; the values are the same",
    )  # fmt: skip
    add_device_argument(parser)
    parser.add_argument(
        "--journal", type=Path, metavar="FILE",
        help="where finished batches are stored, to resume after an interruption "
        "[in RUN/evaluations]",
    )  # fmt: skip
    parser.add_argument(
        "--per-image", type=Path, metavar="FILE",
        help="write index, bits/dim and error of each image, as FILE.csv or FILE.npz",
    )  # fmt: skip
    add_json_arguments(parser, replaces="FILE of --json and --per-image")
    add_quiet_argument(parser, but="the table")


def _add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """How the values are computed: noise, probes, solver."""
    parser.add_argument(
        "--dequantization", metavar="NAME", choices=DEQUANTIZATIONS,
        help=f"how integers become states: {DEQUANTIZATIONS.described()} [tn]",
    )  # fmt: skip
    parser.add_argument(
        "--importance", type=positive, metavar="K",
        help="importance samples of the noise for each image; more give a tighter bound [1]",
    )  # fmt: skip
    parser.add_argument(
        "--closed-form", action="store_true",
        help="the paper's estimate for K = 1, with the entropy of the noise as a formula",
    )  # fmt: skip
    parser.add_argument(
        "--repeats", type=positive, metavar="R",
        help="independent repetitions for each image, averaged [1]",
    )  # fmt: skip
    parser.add_argument(
        "--probes", type=natural, metavar="N",
        help="Hutchinson probes for each divergence; 0 is exact and slow [1]",
    )  # fmt: skip
    parser.add_argument(
        "--probe", metavar="NAME", choices=PROBES,
        help=f"distribution of the probes: {PROBES.described()} [rademacher]",
    )  # fmt: skip
    parser.add_argument(
        "--solver", metavar="NAME", choices=SOLVERS,
        help=f"{SOLVERS.described()} [adams]",
    )  # fmt: skip
    parser.add_argument(
        "--tolerance", type=above_zero, metavar="TOL",
        help="of the solver: adams in bits/dim, rms for an image [0.005]; dopri5 relative and "
        "absolute [1e-5]",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=positive, metavar="N",
        help="equal solver steps of adams [calibrated] or rk4 [100]",
    )  # fmt: skip
    parser.add_argument(
        "--start", type=float, metavar="GAMMA",
        help="noise level where pixels enter the clock [follows from the dequantization]",
    )  # fmt: skip
    add_seed_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode evaluate``; the exit code."""
    from idode.cli.tables import check_different, check_output, write_json
    from idode.evaluation.paired import compare_models
    from idode.evaluation.per_image import check_file, per_image, write_columns

    if args.precision is not None:
        _refuse(args, "--precision", ["bounds", "draws"])
    if args.bounds:
        _refuse(args, "--bounds", ["importance", "dequantization", "closed_form"])
    if args.steps is not None:
        _refuse(args, "--steps", ["tolerance"])
    files = {"--json": args.json, "--journal": args.journal, "--per-image": args.per_image}
    check_different(files)
    for file in (args.json, args.per_image):
        check_output(file, args.force)
    if args.per_image is not None:
        check_file(args.per_image)
        _refuse(args, "--per-image", ["bounds"])
    if args.other is not None:
        alone = ["bounds", "journal", "draws", "precision", "checkpointing"]
        _refuse(args, "a second model", alone)
        pair = compare_models(args.run, args.other, **_arguments(args))
        first, columns, values = pair.first, pair.columns, pair.to_json
        complete = pair.first.complete and pair.second.complete
    else:
        first = _one(args)
        columns, values, complete = lambda: per_image(first), first.to_json, first.complete
    if first.rank:
        return 0
    if args.other is None:
        _print(first)
    else:
        _print_pair(pair)
    if not complete:
        kept = f"{first.store} keeps the finished batches; re-run the command to resume"
        print(f"interrupted: {kept}", file=sys.stderr)
        return INTERRUPTED
    # Only a finished result: another would be in the way of the command that resumes.
    if args.per_image is not None:
        write_columns(args.per_image, columns())
    if args.json is not None:
        write_json(args.json, values())
    return 0


def _refuse(args: argparse.Namespace, what: str, others: list[str]) -> None:
    """Refuse options that do not go with another."""
    for name in others:
        if getattr(args, name):
            option = name.replace("_", "-")
            raise InputError(f"--{option} does not go with {what}: leave one of them out")


def _arguments(args: argparse.Namespace) -> dict[str, Any]:
    """What one evaluation and a comparison have in common, as keyword arguments."""
    split = {} if args.split is None else {"split": args.split}
    return {
        "data": args.data,
        "limit": args.limit,
        "settings": _settings(args),
        "learned": args.dequantization == "learned",
        "device": args.device,
        "progress": not args.quiet,
        **split,
    }


def _one(args: argparse.Namespace) -> Evaluation:
    from idode.evaluation.evaluate import evaluate

    draws = {} if args.draws is None else {"draws": args.draws}
    more = {
        "table": args.bounds,
        "journal": args.journal,
        "checkpointing": args.checkpointing,
        "precision": args.precision,
        **draws,
    }
    return evaluate(args.run, **_arguments(args), **more)


def _settings(args: argparse.Namespace) -> LikelihoodSettings:
    """The settings with what the user gave; all else keeps its default."""
    from idode.likelihood.estimator import LikelihoodSettings

    given: dict[str, Any] = {
        "n_importance": args.importance,
        "repeats": args.repeats,
        "n_probes": args.probes,
        "seed": args.seed,
        "batch_size": args.batch_size,
        "closed_form": args.closed_form,
        "probe": None if args.probe is None else PROBES.build(args.probe),
    }
    if args.solver or args.tolerance or args.steps:
        given["solver"] = SOLVERS.build(
            args.solver or "adams", tolerance=args.tolerance, steps=args.steps
        )
    named = None if args.dequantization == "learned" else args.dequantization
    if named is not None or args.start is not None:
        given["dequantization"] = DEQUANTIZATIONS.build(named or "tn", start=args.start)
    return LikelihoodSettings(
        **{name: value for name, value in given.items() if value is not None}
    )


def _print(found: Evaluation) -> None:
    from idode.cli.tables import table
    from idode.evaluation.sampled import SampledBitsPerDim

    rows = []
    if found.sde is not None:
        b = found.sde
        rows.append(
            ["SDE", "", f"{b.mean:.4f}", f"{b.standard_error:.4f}", "",
             f"{b.monte_carlo_error:.4f}", "", "", f"{b.nfe}", f"{b.seconds / found.images:.3f}"]
        )  # fmt: skip
    for r in found.results:
        e, n, way = r.errors, len(r.per_image), r.settings.dequantization
        rows.append(
            [f"ODE {way.name if way else ''}", str(r.settings.n_importance), f"{r.mean:.4f}",
             f"{r.standard_error:.4f}", f"{e.images:.4f}", f"{e.dequantization:.4f}",
             f"{e.probe:.4f}", e.solver_text, f"{r.nfe:.0f}", f"{r.seconds / n:.3f}"]
        )  # fmt: skip
    sampled = [r for r in found.results if isinstance(r, SampledBitsPerDim)]
    print(f"{found.run}: {found.split} split of {found.data}, {found.images} images")
    if found.parent is not None:
        print(f"{found.parent.relation} {found.parent}")
    print(table(HEADER, rows))
    of = " of the whole test set" if sampled else ""
    print(
        f"± is the standard error of the mean{of}; images, noise and probe are its parts,\n"
        "solver a likely bias, all in bits/dim. s/img includes calibration of the solver, on "
        f"{found.device} in {found.precision}."
    )
    for result in sampled:
        print("\n".join(result.sampling.lines()))
        print(f"± for all images of this kind, not this test set: {result.population_error:.4f}")
    if len(found.results) == 1:
        print(_interval(found.results[0].interval(), ".4f"))
    if found.sde is not None and found.sde.code:
        print(f"of the SDE bound, {found.sde.code:.4f} bits/dim are the divergence of the codes")
    for note in dict.fromkeys(note for r in found.results for note in r.notes):
        print(f"note: {note}")


def _interval(ends: tuple[float, float], form: str) -> str:
    if not all(map(math.isfinite, ends)):
        return "95% interval: none, since it takes two images or more"
    return "95% interval: " + " to ".join(format(end, form) for end in ends)


def _print_pair(pair: PairedDifference) -> None:
    _print(pair.first)
    print()
    _print(pair.second)
    alike = "none, since one of the two does not vary"
    if not math.isnan(pair.correlation):
        alike = f"{pair.correlation:.3f}"
    print(
        f"\n{pair.second.run} minus {pair.first.run}: {pair} on the same {len(pair.per_image)} "
        f"images and noise\n{_interval(pair.interval(), '+.4f')}; correlation: {alike}; "
        f"unpaired, the error would be {pair.unpaired_error:.4f}"
    )
    for note in pair.notes:
        print(f"note: {note}")
