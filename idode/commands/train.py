"""``idode train``: a preset, data and a folder to a trained model."""

from __future__ import annotations

import argparse
from dataclasses import replace

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode train``."""
    from idode.commands.session import add_training_arguments

    parser.add_argument("preset", nargs="?", metavar="PRESET", help="see --list")
    parser.add_argument("--list", action="store_true", help="list the presets and stop")
    parser.add_argument("--data", metavar="SPEC", help="a data set, see `idode data list`")
    add_training_arguments(parser)


def list_presets() -> int:
    """One line a preset."""
    from idode.presets import SUMMARIES

    for name, text in SUMMARIES.items():
        print(f"{name:20} {text}")
    return 0


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode train``; the exit code."""
    from idode.commands import session
    from idode.data import load
    from idode.errors import InputError, choose
    from idode.presets import PRESETS
    from idode.run import CONFIG, Run
    from idode.training import joined

    if args.list:
        return list_presets()
    started = args.resume and args.out is not None and (args.out / CONFIG).exists()
    if args.preset is None and not started:
        raise InputError("no preset is given: choose one of `idode train --list`")
    config = None
    if args.preset is not None:
        config = choose("preset", args.preset, PRESETS)
        config = replace(config, data=args.data or config.data)
        if args.dry_run and not started:
            return session.print_settings(session.resolve(config, args))
    with joined(args.device) as world:
        out = session.needed(args.out)
        found = session.claim(out, args.resume, args.force) if world.writes or started else None
        if found is not None:
            found = session.resumed(found, args)
            if args.dry_run:
                return session.print_settings(found.config)
            data = load(args.data or found.config.data or "")
            session.check_same_data(found, data)
            return session.session(found, data, world, args.quiet)
        assert config is not None
        if config.data is None:
            raise InputError(f"the preset {config.name} has no data of its own: give --data SPEC")
        data = load(config.data)
        resolved = session.resolve(session.fitted(config, data), args)
        return session.session(Run(out, resolved, data.identity), data, world, args.quiet)
