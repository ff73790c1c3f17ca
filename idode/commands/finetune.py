"""``idode finetune``: a trained run, and some more steps with the second-order objective."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode finetune``."""
    from idode.commands.session import add_training_arguments

    parser.add_argument("run", type=Path, metavar="RUN", help="the trained run to start from")
    parser.add_argument("--data", metavar="SPEC", help="a data set [that of the run]")
    parser.add_argument(
        "--ratio", type=float, metavar="R", help="weight of the second-order term [0.1]"
    )
    parser.add_argument("--probes", type=int, metavar="N", help="probes for each sample [1]")
    parser.add_argument(
        "--unbiased", action="store_true", help="square by two different probes [2 of them]"
    )
    add_training_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode finetune``; the exit code."""
    from idode.commands import session
    from idode.data import load
    from idode.errors import InputError
    from idode.run import Run, open_run
    from idode.training import finetuned, joined

    trained = open_run(args.run)
    config = finetuned(trained.config, args.ratio, args.probes, args.unbiased)
    config = session.resolve(config, args)
    if args.dry_run:
        return session.print_settings(config)
    spec = args.data or config.data
    if spec is None:
        raise InputError(f"{args.run} does not say what it was trained on: give --data SPEC")
    with joined(args.device) as world:
        out = session.needed(args.out)
        if out.resolve() == args.run.resolve():
            raise InputError(f"{out} is the run to start from: give another folder with --out")
        data = load(spec)
        session.check_same_data(trained, data)
        start = trained.weights()
        found = session.claim(out, args.resume, args.force, world)
        if found is not None:
            return session.session(session.resumed(found, args), data, world, args.quiet)
        started = Run(out, session.fitted(config, data), data.identity)
        return session.session(started, data, world, args.quiet, start)
