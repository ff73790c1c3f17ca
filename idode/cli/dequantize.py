"""``idode dequantize``: train a learned dequantization for a run, which itself is not changed."""

from __future__ import annotations

import argparse
from pathlib import Path

from idode.cli.parsing import (
    above_zero,
    add_data_argument,
    add_device_argument,
    add_quiet_argument,
    add_run_argument,
    add_seed_argument,
    positive,
)
from idode.training.settings import DequantizerSettings

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode dequantize``."""
    default = DequantizerSettings()
    add_run_argument(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="NEW",
        help="folder for a copy of RUN with the dequantization [RUN itself]",
    )
    add_data_argument(parser)
    parser.add_argument(
        "--base",
        choices=("tn", "uniform"),
        help=f"the noise that learning starts from: truncated normal or uniform [{default.base}]",
    )
    parser.add_argument(
        "--steps", type=positive, metavar="N", help=f"optimiser steps [{default.steps}]"
    )
    parser.add_argument(
        "--batch-size", type=positive, metavar="B", help=f"images in a step [{default.batch_size}]"
    )
    parser.add_argument(
        "--lr", type=above_zero, metavar="LR", help=f"learning rate at the start [{default.lr}]"
    )
    add_seed_argument(parser, default=str(default.seed))
    add_device_argument(parser)
    parser.add_argument(
        "--force", action="store_true", help="replace the dequantizer that the run has"
    )
    add_quiet_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run ``idode dequantize``; the exit code."""
    from idode.training.dequantizer import fit_dequantizer

    names = ("base", "steps", "batch_size", "lr", "seed")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    fitted = fit_dequantizer(
        args.run,
        out=args.out,
        data=args.data,
        force=args.force,
        device=args.device,
        progress=not args.quiet,
        **given,
    )
    if not args.quiet:
        folder, base = fitted.run.path, given.get("base", DequantizerSettings.base)
        print(f"{folder}: {fitted.steps} steps on {fitted.identity}")
        print(
            f"{-fitted.gain:+.4f} ± {fitted.gain_error:.4f} bits/dim against {base} on held-out "
            "images (less is better), by the training objective; for the ODE's value: "
            f"idode evaluate {folder} --dequantization learned"
        )
    return 0
