"""``idode evaluate``: bits per dimension of a data set under a run, with error bars."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idode.bounds import SDEBound
    from idode.data import Identity, Split
    from idode.likelihood import BitsPerDim, Settings
    from idode.model import DiffusionODE
    from idode.run import Run

__all__ = ["add_arguments", "run"]

INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode evaluate``."""
    parser.add_argument("run", metavar="RUN", help="folder of a trained or imported run")
    parser.add_argument("--data", metavar="SPEC", help="data set [the one of the run]")
    parser.add_argument("--split", choices=("test", "train"), default="test")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N images")
    parser.add_argument(
        "--dequantization", choices=("tn", "uniform", "variational", "none"), metavar="NAME",
        help="tn, uniform, variational, or none for continuous data [tn]",
    )  # fmt: skip
    parser.add_argument("--importance", type=int, default=1, metavar="K", help="draws [1]")
    parser.add_argument("--closed-form", action="store_true", help="the paper's K = 1 estimate")
    parser.add_argument("--repeats", type=int, default=1, metavar="R", help="repetitions [1]")
    parser.add_argument("--probes", type=int, default=1, metavar="N", help="probes; 0: exact [1]")
    parser.add_argument(
        "--fresh-probes", action="store_true", help="a new probe for each of the K draws"
    )
    parser.add_argument("--solver", choices=("adams", "dopri5"), default="adams")
    parser.add_argument(
        "--tolerance", type=float, metavar="TOL", help="[adams 0.005 bits/dim rms, dopri5 1e-5]"
    )
    parser.add_argument("--start", type=float, metavar="GAMMA", help="where pixels enter")
    parser.add_argument("--draws", type=int, default=16, metavar="N", help="of the SDE bound [16]")
    parser.add_argument("--bounds", action="store_true", help="the paper's table of bounds")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--batch-size", type=int, default=64, metavar="B")
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="such as cuda [cpu]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here too")
    parser.add_argument("--force", action="store_true", help="replace FILE")
    parser.add_argument("--quiet", action="store_true", help="print the table only")


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode evaluate``; the exit code."""
    from idode.commands.tables import check_output, write_json
    from idode.evaluation import summary
    from idode.run import open_run

    check_output(args.json, args.force)
    opened = open_run(args.run)
    split, identity = _data(args, opened)
    model = opened.model(args.device)
    settings = _settings(args, continuous=model.levels is None)
    bound, results = _measure(args, model, split, settings)
    _print(args, identity, len(results[0].per_image), bound, results)
    if args.json is not None:
        value: dict[str, Any] = {
            "run": str(args.run),
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
    return 0 if all(result.complete for result in results) else INTERRUPTED


def _data(args: argparse.Namespace, opened: Run) -> tuple[Split, Identity]:
    """The images to evaluate, after a warning if the model knows other ones."""
    from idode.data import load, warning
    from idode.errors import InputError

    spec = args.data or opened.config.data
    if spec is None:
        raise InputError(f"{opened.path} names no data set: give one with --data SPEC")
    if args.limit is not None and args.limit < 1:
        raise InputError(f"--limit must be at least 1, got {args.limit}")
    data = load(spec)
    wanted, levels = tuple(opened.config.model.shape), opened.config.model.levels
    if tuple(data.shape) != wanted or data.levels != levels:
        raise InputError(
            f"the model is for data of shape {wanted} with {levels} levels, {spec} has shape "
            f"{tuple(data.shape)} with {data.levels}: choose data of its kind"
        )
    if opened.identity is not None:
        text = warning(opened.identity, data.identity)
        if text is not None:
            print(f"warning: {text}", file=sys.stderr)
    return getattr(data, args.split)[: args.limit], data.identity


def _settings(args: argparse.Namespace, continuous: bool) -> Settings:
    from idode.likelihood import Settings

    return Settings(
        dequantization=args.dequantization or ("none" if continuous else "tn"),
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
    args: argparse.Namespace, model: DiffusionODE, split: Split, settings: Settings
) -> tuple[SDEBound | None, list[BitsPerDim]]:
    from tqdm import tqdm

    from idode.evaluation import DEQUANTIZATIONS, bounds_table, held_out_bound
    from idode.likelihood import bits_per_dim

    bound = None
    if model.levels is not None:
        bound = held_out_bound(model, split, args.draws, args.device)
    passes = len(DEQUANTIZATIONS) if args.bounds else 1
    with tqdm(total=passes * len(split), unit="image", disable=args.quiet, file=sys.stderr) as bar:
        if args.bounds:
            results = bounds_table(model, split, settings, args.device, bar.update)
        else:
            results = [
                bits_per_dim(model, split, settings, device=args.device, progress=bar.update)
            ]
    return bound, results


def _print(
    args: argparse.Namespace,
    identity: Identity,
    images: int,
    bound: SDEBound | None,
    results: list[BitsPerDim],
) -> None:
    from idode.commands.tables import table

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
    print(table(header, rows))
    print("± is the standard error of the mean; images, noise and probe are its parts, solver a")
    print("likely bias, all in bits/dim.")
    for note in {note for r in results for note in r.notes}:
        print(f"note: {note}")
