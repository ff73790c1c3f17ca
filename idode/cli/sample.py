"""``idode sample``: draws from a run, as a grid of pictures, an array or a folder of images."""

from __future__ import annotations

import argparse
import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idode.cli.parsing import INTERRUPTED, RUN, natural, positive

if TYPE_CHECKING:
    import torch

    from idode.diffusion.model import DiffusionODE
    from idode.sampling import Samples

__all__ = ["add_arguments", "run"]

OURS = re.compile(r"\d{5,}\.png")  # what a folder of samples holds
SOLVERS = ("dopri5", "adams", "dpm", "ancestral")  # of idode.sampling, which help need not load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode sample``."""
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument(
        "--count", type=positive, default=64, metavar="N", help="how many samples [64]"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="OUT",
        help="FILE.png for a grid, FILE.npz for arrays, or a folder for one PNG each",
    )  # fmt: skip
    parser.add_argument(
        "--solver", choices=SOLVERS, default="dopri5", metavar="NAME",
        help="dopri5 (the paper's), adams, dpm (good in 10 to 20 steps), ancestral [dopri5]",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=positive, metavar="N",
        help="solver steps [dpm 20, ancestral 500; adams calibrates its own, dopri5 adapts]",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=natural, default=0, metavar="S", help="seed of all noise [0]"
    )
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
        "--batch-size", type=positive, default=64, metavar="B", help="samples drawn together [64]"
    )
    parser.add_argument("--device", metavar="DEVICE", help="cpu, cuda or cuda:1 [cuda if any]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    parser.add_argument(
        "--force", action="store_true", help="replace OUT and FILE where they exist"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode sample``; the exit code."""
    from idode.cli.frechet import Judge
    from idode.cli.matching import data_for
    from idode.cli.tables import write_json
    from idode.errors import InputError, NumericalError
    from idode.runs.distributed import pick_device
    from idode.runs.run import open_run

    _check_request(args)
    opened = open_run(args.run)
    shape, levels = tuple(opened.config.model.shape), opened.config.model.levels
    _check_places(args, shape, levels)
    device = pick_device(args.device, 0)
    data = data_for(opened, args.data) if args.fid else None
    model = opened.model(device)
    judge = None if data is None else Judge(data, device)
    try:
        drawn = _draw(args, model, shape, device)
    except NumericalError as error:
        raise InputError(f"{args.run} cannot be sampled from: {error}") from None
    _write(args.out, drawn, levels)
    figures = _figures(args, drawn)
    if judge is not None and drawn.complete:
        figures |= judge.figures(drawn)
    if args.json is not None:
        write_json(args.json, figures)
    if not args.quiet:
        _print(args, figures)
    if not drawn.complete:
        left = f"{len(drawn.x)} of {args.count} samples are in {args.out}"
        print(f"idode sample: interrupted, {left}", file=sys.stderr)
    return 0 if drawn.complete else INTERRUPTED


def _check_request(args: argparse.Namespace) -> None:
    """Refuse what does not go together."""
    from idode.errors import InputError
    from idode.sampling.sampler import steps_of

    steps_of(args.solver, args.steps, args.likelihood)
    if args.data is not None and not args.fid:
        raise InputError(f"--data {args.data} is what --fid compares with: add --fid")
    if args.fid and args.count < 2:
        raise InputError("--fid needs the spread of at least 2 samples: raise --count")


def _check_places(args: argparse.Namespace, shape: tuple[int, ...], levels: int | None) -> None:
    from idode.cli.tables import check_different, check_output

    _check_out(args.out, shape, levels, args.force)
    check_output(args.json, args.force)
    check_different({"--json": args.json, "--out": args.out})


def _check_out(out: Path, shape: tuple[int, ...], levels: int | None, force: bool) -> None:
    """Refuse an output that cannot hold the samples, or that exists, before any work is done."""
    from idode.cli.tables import check_output
    from idode.errors import InputError
    from idode.sampling.pictures import check_images

    if out.suffix not in ("", ".png", ".npz") and not out.is_dir():
        raise InputError(
            f"{out} is no place for samples: give FILE.png, FILE.npz or a folder with --out"
        )
    if out.suffix != ".npz":
        check_images(shape, levels)
    if out.suffix and out.is_dir():
        raise InputError(f"{out} is a folder: give a file of that name elsewhere")
    if out.is_file() and not out.suffix:
        raise InputError(f"{out} is a file: give a folder, or the name of a .png or .npz file")
    if out.suffix or not out.is_dir():
        check_output(out, force)
    elif any(out.iterdir()) and not force:
        raise InputError(f"{out} is not empty: give another folder, or --force to replace samples")


def _draw(
    args: argparse.Namespace, model: DiffusionODE, shape: tuple[int, ...], device: torch.device
) -> Samples:
    import torch

    from idode.progress import LateBar
    from idode.sampling import sample

    with LateBar("sample", args.quiet, args.count) as late:
        late.update(0)
        return sample(
            model,
            args.count,
            shape,
            torch.Generator().manual_seed(args.seed),
            solver=args.solver,
            steps=args.steps,
            likelihood=args.likelihood,
            batch_size=args.batch_size,
            device=device,
            progress=late.update,
        )


def _write(out: Path, drawn: Samples, levels: int | None) -> None:
    import numpy as np

    from idode.cli.tables import write_file
    from idode.sampling.pictures import grid, png, to_bytes

    if out.suffix == ".npz":
        arrays: dict[str, Any] = {"data": drawn.data.numpy(), "x": drawn.x.numpy()}
        if drawn.log_p is not None and drawn.bits_per_dim is not None:
            arrays |= {"log_p": drawn.log_p.numpy(), "bits_per_dim": drawn.bits_per_dim.numpy()}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        write_file(out, buffer.getvalue())
        return
    assert levels is not None
    if out.suffix == ".png":
        write_file(out, png(grid(drawn.data, levels)))
        return
    out.mkdir(exist_ok=True)
    for old in [p for p in out.iterdir() if OURS.fullmatch(p.name)]:
        old.unlink()
    for i, image in enumerate(to_bytes(drawn.data, levels)):
        write_file(out / f"{i:05d}.png", png(image), sync=False)


def _figures(args: argparse.Namespace, drawn: Samples) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "run": str(args.run),
        "out": str(args.out),
        "count": len(drawn.x),
        "complete": drawn.complete,
        "seed": args.seed,
        "solver": args.solver,
        "steps": args.steps,
        "nfe": drawn.nfe,
        "seconds": drawn.seconds,
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
    header = ["solver", "samples", "NFE", "s/sample"]
    row = [args.solver, str(count), f"{figures['nfe']:.0f}", f"{figures['seconds'] / count:.3f}"]
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
