"""``idode sample``: draws from a run, as a grid of pictures, an array or a folder of images."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idode.cli import INTERRUPTED
from idode.cli.parsing import (
    add_device_argument,
    add_json_arguments,
    add_quiet_argument,
    add_run_argument,
    add_seed_argument,
    positive,
)
from idode.sampling import SAMPLERS

if TYPE_CHECKING:
    import torch

    from idode.diffusion.model import DiffusionODE
    from idode.evaluation.sample_parts import StoredParts
    from idode.ode.solvers import Solver
    from idode.sampling.samplers import Sampler
    from idode.sampling.samples import Samples

__all__ = ["SHARED", "add_arguments", "run"]

SHARED = True  # between the processes of torchrun

COUNT = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode sample``."""
    add_run_argument(parser)
    parser.add_argument(
        "--count", type=positive, default=COUNT, metavar="N", help=f"how many samples [{COUNT}]"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="OUT",
        help="FILE.png for a grid, FILE.npz for arrays, or a folder for one PNG each",
    )  # fmt: skip
    parser.add_argument(
        "--solver", choices=SAMPLERS, metavar="NAME",
        help=f"{SAMPLERS.described()} [dopri5]",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=positive, metavar="N",
        help="solver steps [dpm 20, rk4 100, ancestral 500; adams calibrates its own, dopri5 "
        "adapts]",
    )  # fmt: skip
    add_seed_argument(parser)
    parser.add_argument(
        "--likelihood",
        action="store_true",
        help="also the bits/dim of each sample, from the same solve",
    )
    parser.add_argument(
        "--fid", action="store_true", help="also the Fréchet distance (FID) to the training split"
    )
    parser.add_argument("--data", metavar="SPEC", help="data set for --fid [that of RUN]")
    parser.add_argument(
        "--batch-size", type=positive, metavar="B", help="samples drawn together [64]"
    )
    add_device_argument(parser)
    add_json_arguments(parser, replaces="OUT and FILE")
    add_quiet_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode sample``; the exit code."""
    from idode.cli.tables import check_different, check_output, write_json
    from idode.errors import InputError, NumericalError
    from idode.evaluation.run_store import model_hash
    from idode.evaluation.sample_parts import StoredParts
    from idode.runs.distributed import joined
    from idode.runs.run import open_run
    from idode.sampling.fid import FIDReference
    from idode.sampling.writing import check_out, write_samples

    solver = _solver(args)
    opened = open_run(args.run)
    settings = opened.config.model
    check_out(args.out, settings.shape, settings.levels, args.force)
    check_output(args.json, args.force)
    check_different({"--json": args.json, "--out": args.out})
    _check_memory(args.count, settings.shape)
    with joined(args.device) as world:
        device, data = world.device, opened.load_data(args.data) if args.fid else None
        reference = None
        if data is not None and world.writes:
            reference = FIDReference.for_data(data, device)
        model = opened.model(device)
        parts = StoredParts(args.out, _depends(args, model_hash(opened, model), device), world)
        try:
            drawn = _draw(args, model, solver, parts, args.quiet or not world.writes)
        except NumericalError as error:
            raise InputError(f"{args.run} cannot be sampled from: {error}") from None
    if not world.writes:
        return 0
    write_samples(args.out, drawn, settings.levels)
    figures = _figures(args, drawn, str(device))
    if reference is not None and drawn.complete:
        figures |= reference.figures(drawn.data)
    if args.json is not None:
        write_json(args.json, figures)
    if drawn.complete:
        parts.remove()
    if not args.quiet:
        _print(args, figures)
    if not drawn.complete:
        left = f"{len(drawn.x)} of {args.count} samples are in {args.out}"
        again = "re-run with --force to continue"
        print(f"idode sample: interrupted, {left}; {again}", file=sys.stderr)
    return 0 if drawn.complete else INTERRUPTED


def _check_memory(count: int, shape: tuple[int, ...]) -> None:
    """Refuse more samples than memory can hold: each as its state and as its pixels."""
    import torch

    from idode.errors import InputError
    from idode.runs.memory import available_bytes

    needed, there = 5 * count * math.prod(shape), available_bytes(torch.device("cpu"))
    if needed > there:
        raise InputError(
            f"{count} samples need {needed / 2**30:.3g} GB and there are {there / 2**30:.3g}: "
            "draw fewer at a time, each time with another --seed"
        )


def _solver(args: argparse.Namespace) -> Solver | Sampler:
    """The solver asked for; what does not go together is refused."""
    from idode.errors import InputError

    if args.data is not None and not args.fid:
        raise InputError(f"--data {args.data} is what --fid compares with: add --fid")
    if args.fid and args.count < 2:
        raise InputError("--fid needs the spread of at least 2 samples: raise --count")
    found: Solver | Sampler = SAMPLERS.build(args.solver or "dopri5", steps=args.steps)
    if args.likelihood and not getattr(found, "has_density", True):
        raise InputError(
            f"{args.solver} sampling has no path whose density is known: for likelihoods choose "
            "dopri5, adams or dpm"
        )
    return found


def _depends(args: argparse.Namespace, model: str, device: torch.device) -> dict[str, Any]:
    """What samples depend on, so that batches of others are not taken for these."""
    names = ("solver", "steps", "seed", "likelihood", "batch_size")
    return {"model": model, "device": device.type} | {name: getattr(args, name) for name in names}


def _draw(
    args: argparse.Namespace,
    model: DiffusionODE,
    solver: Solver | Sampler,
    parts: StoredParts,
    quiet: bool,
) -> Samples:
    from idode.progress import LateBar
    from idode.sampling.samples import sample

    given = {"seed": args.seed, "batch_size": args.batch_size}
    with LateBar("sample", quiet, args.count) as bar:
        bar.update(0)
        return sample(
            model,
            args.count,
            solver=solver,
            log_prob=args.likelihood,
            progress=bar.update,
            parts=parts,
            **{name: value for name, value in given.items() if value is not None},
        )


def _figures(args: argparse.Namespace, drawn: Samples, device: str) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "run": str(args.run),
        "out": str(args.out),
        "count": len(drawn.x),
        "complete": drawn.complete,
        "seed": args.seed or 0,
        "solver": args.solver or "dopri5",
        "steps": args.steps,
        "nfe": drawn.nfe,
        "seconds": drawn.seconds,
        "device": device,
        "precision": drawn.precision,
    }
    if drawn.log_p is not None and drawn.bits_per_dim is not None:
        bits = drawn.bits_per_dim
        figures["bits_per_dim"] = float(bits.mean())
        figures["bits_per_dim_std"] = float(bits.std()) if len(bits) > 1 else None
        figures["per_sample"] = {"log_p": drawn.log_p.tolist(), "bits_per_dim": bits.tolist()}
    return figures


def _print(args: argparse.Namespace, figures: dict[str, Any]) -> None:
    from idode.cli.tables import table

    count = figures["count"]
    header = ["solver", "samples", "NFE", "s/sample", "device"]
    row = [figures["solver"], str(count), f"{figures['nfe']:.0f}",
           f"{figures['seconds'] / count:.3f}", figures["device"]]  # fmt: skip
    notes = []
    if "bits_per_dim" in figures:
        spread = figures["bits_per_dim_std"]
        header += ["bits/dim", "std"]
        row += [f"{figures['bits_per_dim']:.4f}", "" if spread is None else f"{spread:.4f}"]
    if "fid" in figures:
        header += ["FID", f"FID of {figures['test_images']} test images"]
        row += [f"{figures['fid']:.3f}", f"{figures['fid_of_test_split']:.3f}"]
        notes.append(
            f"FID by {figures['fid_features']} features against the training split of "
            f"{figures['fid_data']}; it falls with the number of images, so compare at equal "
            "numbers."
        )
    print(table(header, [row]))
    print("\n".join([*notes, str(args.out)]))
