"""``idode finetune``: a trained run, and more steps with the second-order objective."""

from __future__ import annotations

import argparse

from idode.cli.options import (
    add_training_arguments,
    print_settings,
    print_summary,
    training_arguments,
)
from idode.cli.parsing import RUN, add_data_argument, not_negative, positive

__all__ = ["SHARED", "add_arguments", "run"]

SHARED = True  # between the processes of torchrun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode finetune``."""
    parser.add_argument("run", metavar="START", help=f"what to start from: {RUN}")
    add_data_argument(parser, default="that of START")
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
        help="estimate the square with two different probes; needs at least 2",
    )  # fmt: skip
    add_training_arguments(parser, steps="START's finetune.steps", seed="START's")


def run(args: argparse.Namespace) -> int:
    """Run ``idode finetune``; the exit code."""
    given = training_arguments(args)
    given |= {"ratio": args.ratio, "probes": args.probes, "unbiased": args.unbiased}

    import time

    from idode.data.loading import load
    from idode.runs.run import open_run
    from idode.training.resolve import (
        check_held_out,
        check_start,
        finetuning_config,
        for_data,
    )
    from idode.training.train import finetune

    if args.dry_run:
        trained = open_run(args.run)
        config = finetuning_config(trained, **given)
        if args.data is not None:
            found = load(args.data)
            fitted = for_data(config, args.data, found)
            check_start(config, fitted, found)
            config = fitted
        check_held_out(trained, config)
        print_settings(config, args.quiet)
        return 0
    began = time.perf_counter()
    tuned = finetune(
        args.run, data=args.data, device=args.device, progress=not args.quiet, **given
    )
    if not args.quiet:
        print_summary(tuned, time.perf_counter() - began, args.device)
    return 0
