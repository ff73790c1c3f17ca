"""``idode import``: a checkpoint file of the paper's authors, or of VDM, to a run folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from idode.cli.parsing import add_data_argument, add_quiet_argument, positive

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode import``."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="checkpoint, such as ckpt-6000000.flax"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="RUN", help="folder of the new run"
    )
    parser.add_argument(
        "--schedule", metavar="NAME", help="schedule it was trained with, vp or sp [vp]"
    )
    parser.add_argument(
        "--predictor",
        metavar="NAME",
        help="what the network predicts; noise for plain VDM [normalized-velocity]",
    )
    parser.add_argument(
        "--raw", action="store_true", help="the last weights instead of the averaged ones"
    )
    add_data_argument(parser, default="unknown")
    parser.add_argument(
        "--levels", type=positive, metavar="N", help="grey levels of a pixel [256]"
    )
    parser.add_argument(
        "--size", type=positive, metavar="N", help="side of an image in pixels [32]"
    )
    parser.add_argument("--force", action="store_true", help="replace the run in that folder")
    add_quiet_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run ``idode import``; the exit code."""
    from idode.nets.config import UNetConfig
    from idode.runs.importing import import_checkpoint

    names = ("schedule", "predictor", "data", "levels", "size")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    made = import_checkpoint(args.file, out=args.out, raw=args.raw, force=args.force, **given)
    if not args.quiet:
        net, model = made.config.net, made.config.model
        assert isinstance(net, UNetConfig)
        count = sum(weights.numel() for weights in made.weights().values())
        print(
            f"{made.path}: {count} parameters, width {net.width}, depth {net.depth}, "
            f"{model.schedule}, predicts {model.predictor}, gamma {model.gamma_min:g} to "
            f"{model.gamma_max:g}"
        )
    return 0
