"""``idode train``: a preset, data and a folder to a trained model."""

from __future__ import annotations

import argparse

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode train``."""
    from idode.cli.session import add_training_arguments

    parser.add_argument(
        "preset", nargs="?", metavar="PRESET", help="network and settings; --list shows them"
    )
    parser.add_argument(
        "--list", action="store_true", help="list the presets and the systems, and stop"
    )
    parser.add_argument(
        "--system",
        metavar="NAME",
        help="objective and schedule of a named system, see --list [i-DODE]",
    )
    parser.add_argument(
        "--data", metavar="SPEC", help="data set, see `idode data list` [the preset's]"
    )
    add_training_arguments(parser)


def list_names() -> int:
    """One line a preset, one line a system."""
    from idode.runs.presets import SUMMARIES
    from idode.runs.systems import SYSTEMS

    for name, text in SUMMARIES.items():
        print(f"{name:24} {text}")
    print("\nsystems, for --system:")
    for name, system in SYSTEMS.items():
        print(f"{name:24} {system.summary}")
    return 0


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode train``; the exit code."""
    from idode.cli import session
    from idode.errors import InputError, choose
    from idode.runs.config import Config
    from idode.runs.presets import PRESETS
    from idode.runs.systems import apply
    from idode.training import joined

    if args.list:
        return list_names()

    def chosen(config: Config) -> Config:
        return config if args.system is None else apply(config, args.system)

    def decide() -> Config:
        out = args.out if args.dry_run else session.needed(args.out)
        found = None if out is None else session.claim(out, args.resume, args.force)
        if found is not None and args.preset in (None, found.config.name):
            config = session.resumed(found, args)
            if session.resolve(chosen(found.config), args) != config:
                raise InputError(
                    f"{out} is not a run of {args.system}: resume it without --system"
                )
            return config
        if found is not None:
            raise InputError(f"{out} is a run of {found.config.name}: resume it without a preset")
        if args.preset is None:
            raise InputError("no preset is given: choose one of `idode train --list`")
        return session.resolve(chosen(choose("preset", args.preset, PRESETS)), args)

    if args.dry_run:
        return session.print_settings(decide())
    with joined(args.device) as world:
        return session.session(session.agreed(world, decide), args, world)
