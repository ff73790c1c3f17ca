"""The options of ``idode evaluate`` that its numbers depend on."""

from __future__ import annotations

import argparse

from idode.cli.parsing import above_zero, natural, positive

__all__ = ["add_estimate_arguments"]


def add_estimate_arguments(parser: argparse.ArgumentParser) -> None:
    """How the numbers are made: noise, probes, solver."""
    parser.add_argument(
        "--dequantization", metavar="NAME",
        choices=("tn", "uniform", "variational", "learned", "none"),
        help="how integers become states: tn (truncated normal), uniform, variational, learned "
        "(by idode dequantize), or none for continuous data [tn]",
    )  # fmt: skip
    parser.add_argument(
        "--importance", type=positive, default=1, metavar="K",
        help="importance samples of the noise for each image; more give a tighter bound [1]",
    )  # fmt: skip
    parser.add_argument(
        "--closed-form", action="store_true",
        help="the paper's estimate for K = 1, with the entropy of the noise as a formula",
    )  # fmt: skip
    parser.add_argument(
        "--repeats", type=positive, default=1, metavar="R",
        help="independent repetitions for each image, averaged [1]",
    )  # fmt: skip
    parser.add_argument(
        "--probes", type=natural, default=1, metavar="N",
        help="Hutchinson probes for each divergence; 0 is exact and slow [1]",
    )  # fmt: skip
    parser.add_argument(
        "--fresh-probes", action="store_true", help="a new probe for each of the K samples"
    )
    parser.add_argument(
        "--solver", choices=("adams", "dopri5"), default="adams",
        help="adams on a calibrated grid, or the paper's adaptive dopri5 [adams]",
    )  # fmt: skip
    parser.add_argument(
        "--tolerance", type=above_zero, metavar="TOL",
        help="of the solver: adams in bits/dim, rms for an image [0.005]; dopri5 relative and "
        "absolute [1e-5]",
    )  # fmt: skip
    parser.add_argument(
        "--start", type=float, metavar="GAMMA",
        help="noise level where pixels enter the clock [follows from the dequantization]",
    )  # fmt: skip
    parser.add_argument(
        "--draws", type=positive, default=16, metavar="N",
        help="noise levels for each image of the SDE bound, an even number [16]",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=natural, default=0, metavar="S", help="seed of all noise [0]"
    )
