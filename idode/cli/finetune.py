"""``idode finetune``: a trained run, and some more steps with the second-order objective."""

from __future__ import annotations

import argparse
from pathlib import Path

from idode.cli.parsing import RUN, not_negative, positive

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode finetune``."""
    from idode.cli.session import add_training_arguments

    parser.add_argument("run", type=Path, metavar="START", help=f"what to start from: {RUN}")
    parser.add_argument(
        "--data", metavar="SPEC", help="data set, see `idode data list` [that of START]"
    )
    parser.add_argument(
        "--ratio", type=not_negative, metavar="R",
        help="weight of the second-order term [START's, 0.1 in every preset]",
    )  # fmt: skip
    parser.add_argument(
        "--probes", type=positive, metavar="N",
        help="Hutchinson probes for each sample [START's, 1 in every preset]",
    )  # fmt: skip
    parser.add_argument(
        "--unbiased", action="store_true",
        help="square by two different probes; takes at least 2",
    )  # fmt: skip
    add_training_arguments(parser, steps="START's finetune.steps", seed="START's")


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode finetune``; the exit code."""
    from idode.cli import session
    from idode.errors import InputError
    from idode.runs.config import Config
    from idode.runs.run import SHIPPED, open_run
    from idode.training import finetuned, joined, parent_of

    def decide() -> Config:
        out = args.out if args.dry_run else session.needed(args.out)
        if out is not None and out.resolve() == args.run.resolve():
            raise InputError(f"{out} is the run to start from: give another folder with --out")
        trained = open_run(args.run).config
        if args.unbiased and args.probes == 1:
            raise InputError("--probes: must be at least 2 with --unbiased, got 1")
        tuned = finetuned(trained, args.ratio, args.probes, args.unbiased)
        config = session.resolve(tuned, args)
        found = None if out is None else session.claim(out, args.resume, args.force)
        if found is None:
            return config
        if found.config.objective != config.objective:
            raise InputError(
                f"{out} has another objective than is asked for: resume it with its own --ratio, "
                "--probes and --unbiased"
            )
        return session.resumed(found, args)

    if args.dry_run:
        return session.print_settings(decide())
    with joined(args.device) as world:
        config = session.agreed(world, decide)
        # The others get the weights from rank 0, which alone needs to see the folders.
        if not world.writes:
            return session.session(config, args, world)
        trained = open_run(args.run)
        weights, shipped = trained.net().state_dict(), str(args.run).startswith(SHIPPED)
        parent = parent_of(trained, str(args.run if shipped else args.run.resolve()))
        return session.session(config, args, world, weights, parent)
