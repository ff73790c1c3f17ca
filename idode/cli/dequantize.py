"""``idode dequantize``: train the noise inside the bins for a run, which itself stays as it is."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from idode.cli.parsing import INTERRUPTED, RUN, above_zero, natural, positive

if TYPE_CHECKING:
    from idode.runs.run import Run

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode dequantize``."""
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="NEW",
        help="folder for a copy of the run that gets it [RUN itself]",
    )
    parser.add_argument(
        "--data", metavar="SPEC", help="data set, see `idode data list` [that of RUN]"
    )
    parser.add_argument(
        "--base",
        choices=("tn", "uniform"),
        default="tn",
        help="the noise that learning starts from: truncated normal or uniform [tn]",
    )
    parser.add_argument(
        "--steps", type=positive, default=2000, metavar="N", help="optimiser steps [2000]"
    )
    parser.add_argument(
        "--batch-size", type=positive, default=64, metavar="B", help="images in a step [64]"
    )
    parser.add_argument(
        "--lr", type=above_zero, default=1e-3, metavar="LR", help="learning rate at first [0.001]"
    )
    parser.add_argument(
        "--seed", type=natural, default=0, metavar="S", help="seed of everything random [0]"
    )
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="cpu or cuda [cpu]")
    parser.add_argument(
        "--force", action="store_true", help="replace the dequantizer that the run has"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode dequantize``; the exit code."""
    from idode.cli.matching import data_for, warn_of_other_data
    from idode.progress import Bar
    from idode.runs.dequantizer_file import DEQUANTIZER, save_dequantizer
    from idode.runs.run import holds_run, open_run
    from idode.training.dequantizer import Fitting, fit_dequantizer, fresh_dequantizer

    opened = open_run(args.run)
    folder = _folder(args, opened)
    fitting = Fitting(args.steps, args.batch_size, args.lr, args.seed)
    model = opened.model(args.device)
    fresh = fresh_dequantizer(model, tuple(opened.config.model.shape), args.base, args.seed)
    data = data_for(opened, args.data)
    warn_of_other_data(opened, data.identity, quiet=False)
    with Bar(fitting.steps, args.quiet) as bar:
        trained = fit_dequantizer(
            model, fresh, data.train, data.test, fitting, device=args.device,
            progress=lambda step, loss: bar.progress(step, {"loss": loss}),
        )  # fmt: skip
    if trained.interrupted and (folder / DEQUANTIZER).exists():
        print(f"interrupted after {trained.step} steps: {folder} keeps the dequantizer it had",
              file=sys.stderr)  # fmt: skip
        return INTERRUPTED
    if not holds_run(folder):
        _copy(opened, folder)
    save_dequantizer(folder, trained.learned, args.base, trained.step)
    if trained.interrupted:
        print(f"interrupted: {folder} has what {trained.step} steps taught; --force starts again",
              file=sys.stderr)  # fmt: skip
    elif not args.quiet:
        print(f"{folder}: {trained.step} steps on {data.identity}")
        print(f"{-trained.gain:+.4f} ± {trained.gain_error:.4f} bits/dim against {args.base} on "
              "held-out images (less is better), by the training objective; for the ODE's value: "
              f"idode evaluate {folder} --dequantization learned")  # fmt: skip
    return INTERRUPTED if trained.interrupted else 0


def _folder(args: argparse.Namespace, opened: Run) -> Path:
    """Where the dequantizer goes, refused before any work is done."""
    from idode.cli.session import claim
    from idode.errors import InputError
    from idode.runs.dequantizer_file import DEQUANTIZER, digest_of
    from idode.runs.run import SHIPPED, holds_run

    if args.out is None and str(args.run).startswith(SHIPPED):
        raise InputError(
            f"{args.run} comes with the package, which stays as it is: give a folder for a copy "
            "of it with --out NEW"
        )
    folder: Path = opened.path if args.out is None else args.out
    if not holds_run(folder):
        if not _half_copied(opened, folder):
            claim(folder, resume=None, force=args.force)
    elif folder != opened.path and digest_of(folder) != digest_of(opened.path):
        raise InputError(f"{folder} has another run than {opened.path}: give another folder")
    if (folder / DEQUANTIZER).exists() and not args.force:
        raise InputError(f"{folder} has a learned dequantization: replace it by --force")
    return folder


def _half_copied(opened: Run, folder: Path) -> bool:
    """Whether a folder is what a death in :func:`_copy` leaves: the model alone, as in the run."""
    from idode.runs.dequantizer_file import digest_of
    from idode.runs.run import MODEL

    names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    shown = [name for name in names if not name.startswith(".")]
    return shown == [MODEL] and digest_of(folder) == digest_of(opened.path)


def _copy(opened: Run, folder: Path) -> None:
    """The run's model in another folder; as a file, so that both have the same digest.

    It comes before what makes the folder a run, which therefore always has one.
    """
    from dataclasses import replace

    from idode.errors import InputError
    from idode.runs.run import MODEL
    from idode.storage import write_atomically

    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / MODEL, (opened.path / MODEL).read_bytes())
    except OSError as error:
        raise InputError(f"cannot write {folder / MODEL} ({error.strerror}): make room") from None
    try:
        replace(opened, path=folder).write_config()
    except InputError:
        (folder / MODEL).unlink()
        raise
