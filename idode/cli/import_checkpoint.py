"""``idode import``: a checkpoint file of the paper's authors, or of VDM, to a run folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from idode.cli.parsing import positive

__all__ = ["add_arguments", "run"]

# The clock of every published U-Net, whatever noise schedule was learned beside it.
GAMMAS = (-13.3, 5.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode import``."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="checkpoint, such as ckpt-6000000.flax"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="RUN", help="folder of the new run"
    )
    parser.add_argument(
        "--schedule",
        default="vp",
        metavar="NAME",
        help="schedule it was trained with, vp or sp [vp]",
    )
    parser.add_argument(
        "--predictor",
        default="normalized-velocity",
        metavar="NAME",
        help="what the network predicts; noise for plain VDM [normalized-velocity]",
    )
    parser.add_argument(
        "--raw", action="store_true", help="the last weights, not the averaged ones"
    )
    parser.add_argument("--data", metavar="SPEC", help="data set it was trained on [unknown]")
    parser.add_argument(
        "--levels", type=positive, default=256, metavar="N", help="levels of a pixel [256]"
    )
    parser.add_argument(
        "--size", type=positive, default=32, metavar="N", help="side of an image in pixels [32]"
    )
    parser.add_argument("--force", action="store_true", help="replace the run in that folder")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode import``; the exit code."""
    from idode.cli.session import claim, clear
    from idode.data import load
    from idode.diffusion.predictors import PREDICTORS
    from idode.diffusion.schedules import SCHEDULES
    from idode.errors import InputError, choose
    from idode.nets.flax_format import read
    from idode.nets.unet import UNet
    from idode.nets.vdm_weights import infer_config, learned_gamma_range, to_state_dict
    from idode.runs.config import Config, ModelConfig, fit
    from idode.runs.run import Run, diffusion_ode, save_model

    # What costs nothing is refused before a large file is read.
    claim(args.out, resume=None, force=args.force)
    choose("schedule", args.schedule, SCHEDULES)
    choose("predictor", args.predictor, PREDICTORS)
    tree = read(args.file)
    net = infer_config(tree, raw=args.raw, levels=args.levels)
    weights = to_state_dict(tree, net, raw=args.raw)
    learned = learned_gamma_range(tree, raw=args.raw)
    gamma_min, gamma_max = learned or GAMMAS
    config = Config(
        name=f"import:{args.file.name}",
        data=args.data,
        net=net,
        model=ModelConfig(
            schedule=args.schedule,
            predictor=args.predictor,
            gamma_min=gamma_min,
            gamma_max=gamma_max,
            clock=None if learned is None else GAMMAS,
            levels=args.levels,
            shape=(net.channels, args.size, args.size),
        ),
    )
    diffusion_ode(UNet(net), config)  # names are refused before anything is written
    data = None if args.data is None else load(args.data)
    if data is not None:
        config = fit(config, data.levels, data.shape)
        if config.net != net:
            raise InputError(
                f"{args.file} is a network for {net.channels} colours of {net.levels} levels, and "
                f"{args.data} is of shape {data.shape} with {data.levels}: give its own data"
            )
    clear(args.out)
    Run(args.out, config, None if data is None else data.identity).write_config()
    save_model(args.out, weights)
    if not args.quiet:
        count = sum(w.numel() for w in weights.values())
        print(
            f"{args.out}: {count} parameters, width {net.width}, depth {net.depth}, "
            f"{args.schedule}, predicts {args.predictor}, gamma {gamma_min:g} to {gamma_max:g}"
        )
    return 0
