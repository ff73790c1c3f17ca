"""``idode train``: a preset, data and a folder to a trained model."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idode.cli.options import (
    add_training_arguments,
    print_settings,
    print_summary,
    training_arguments,
)
from idode.cli.parsing import above_zero, add_data_argument
from idode.errors import InputError

if TYPE_CHECKING:
    from idode.runs.config import Config

__all__ = ["SHARED", "add_arguments", "run"]

SHARED = True  # between the processes of torchrun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode train``."""
    parser.add_argument(
        "preset",
        nargs="?",
        metavar="PRESET",
        help="network and settings, --list shows them; with --minutes it may be a data set",
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
        "--minutes",
        type=above_zero,
        metavar="M",
        help="wall-clock time instead of --steps; without a preset, network, batch and precision "
        "follow too",
    )
    add_data_argument(parser, default="the preset's")
    add_training_arguments(parser, steps="the preset's", seed="the preset's")


def list_names() -> None:
    """Print a line for each preset and each system."""
    from idode.runs.presets import SUMMARIES
    from idode.runs.systems import SYSTEMS

    for name, text in SUMMARIES.items():
        print(f"{name:24} {text}")
    print("\nsystems, for --system:")
    for name, system in SYSTEMS.items():
        print(f"{name:24} {system.summary}")


def run(args: argparse.Namespace) -> int:
    """Run ``idode train``; the exit code."""
    if args.list:
        list_names()
        return 0
    given = training_arguments(args) | {"minutes": args.minutes, "system": args.system}
    preset, data = _preset_and_data(args)

    from idode.training.train import train

    if args.dry_run:
        settings = _settings(preset, data, args.device, given)
        print_settings(settings, args.quiet)
        if settings.train.minutes is not None and not args.quiet:
            from idode.training.plan import described

            print(described(settings), file=sys.stderr)
        return 0
    began = time.perf_counter()
    trained = train(preset, data=data, device=args.device, progress=not args.quiet, **given)
    if not args.quiet:
        print_summary(trained, time.perf_counter() - began, args.device)
    return 0


def _preset_and_data(args: argparse.Namespace) -> tuple[str | None, str | None]:
    """Preset and data; what is given in place of a preset may be the data."""
    from idode.data.loading import names_data
    from idode.runs.presets import PRESETS

    given = args.preset
    if given is None or given in PRESETS or args.data is not None or args.minutes is None:
        return given, args.data
    return (None, given) if names_data(given) or Path(given).exists() else (given, None)


def _settings(
    preset: str | None, data: str | None, device: str | None, given: dict[str, Any]
) -> Config:
    """What a training would have; with minutes, the speed of this machine is measured."""
    from idode.data.loading import load
    from idode.runs.distributed import World, best_device
    from idode.runs.run import holds_run
    from idode.training.plan import scheduled, suited
    from idode.training.resolve import for_data, training_config

    began = time.perf_counter()

    def world() -> World:  # only where speed is measured: other devices may be asked about
        return World(best_device(device))

    def asked(minutes: float) -> Config:
        return suited(load(_given(data)), minutes, world())

    config = training_config(preset, suited=asked, **given)
    resumes = given["resume"] and given["out"] is not None and holds_run(given["out"])
    if resumes or (config.train.minutes is None and data is None):
        return config
    name = _given(data or config.data)
    found = load(name)
    fitted = for_data(config, name, found)
    if config.train.minutes is None:
        return fitted
    return scheduled(fitted, found, world(), began=began, settings=given["settings"])


def _given(data: str | None) -> str:
    if data is None:
        raise InputError("no data is given, and the preset has none: give it with --data")
    return data
