"""What ``train`` and ``finetune`` share: claiming a run folder, training in it, telling how."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from idode.commands.progress import Bar
from idode.config import Config, fit, override, to_json
from idode.data import Dataset, same_data
from idode.errors import InputError
from idode.run import CHECKPOINTS, CONFIG, METRICS, MODEL, Run, open_run
from idode.training import Trainer, World

__all__ = ["add_training_arguments", "claim", "resolve", "session"]

OURS = (CONFIG, METRICS, MODEL, CHECKPOINTS, "tensorboard")


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of every command that trains."""
    parser.add_argument("--out", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--steps", type=int, metavar="N", help="optimiser steps")
    parser.add_argument("--seed", type=int, metavar="S", help="of everything random")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a setting, such as train.lr=1e-3 or net.width=64; --dry-run shows all",
    )
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--force", action="store_true", help="replace the run that is there")
    parser.add_argument("--dry-run", action="store_true", help="print the settings and stop")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("--device", metavar="DEVICE", help="such as cpu or cuda [cuda if any]")


def resolve(config: Config, args: argparse.Namespace) -> Config:
    """The configuration with what the command line changes."""
    changed = override(config, args.set)
    if args.steps is not None:
        changed = replace(changed, train=replace(changed.train, steps=args.steps))
    if args.seed is not None:
        changed = replace(changed, train=replace(changed.train, seed=args.seed))
    return changed


def print_settings(config: Config) -> int:
    """The resolved configuration as JSON on stdout."""
    print(json.dumps(to_json(config), indent=1))
    return 0


def needed(out: Path | None) -> Path:
    """The run folder, which ``--dry-run`` alone can do without."""
    if out is None:
        raise InputError("no run folder is given: say where with --out RUN")
    return out


def claim(path: Path, resume: bool, force: bool) -> Run | None:
    """The run already in a folder, if it is to be resumed; else the folder is free to be used.

    Nothing is removed that idode did not write, and that only with ``force``.
    """
    if resume and force:
        raise InputError("--resume goes on with a run and --force replaces it: give one of them")
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file: give a folder for the run")
    if resume and (path / CONFIG).exists():
        return open_run(path)
    # A folder without config.json is that of a run killed at once: nothing is lost by starting.
    present = [name for name in OURS if (path / name).exists()]
    others = (
        [p.name for p in path.iterdir() if not p.name.startswith(".")] if path.exists() else []
    )
    if others and not force and not (resume and not present):
        raise InputError(
            f"{path} is not empty: go on with its run by --resume, replace it by --force, or "
            "give another folder"
        )
    for name in present:
        target = path / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    return None


def check_same_data(run: Run, data: Dataset) -> None:
    """A run goes on with the data it began with."""
    if run.identity is not None and not same_data(run.identity, data.identity):
        raise InputError(
            f"{run.path} was trained on other data ({run.identity}) than is given "
            f"({data.identity}): resume with its own"
        )


def resumed(run: Run, args: argparse.Namespace) -> Run:
    """The stored run with the changes that may be made to it: those of ``train``."""
    config = resolve(run.config, args)
    if replace(config, train=run.config.train) != run.config:
        raise InputError(
            f"{run.path} has settings of its own: only those of `train` may change when it is "
            "resumed; start another run for others"
        )
    return replace(run, config=config)


def session(
    run: Run, data: Dataset, world: World, quiet: bool, start: dict[str, Tensor] | None = None
) -> int:
    """Write ``config.json``, train, and tell how it ended; the exit code."""
    if world.writes:
        run.write_config()
    world.barrier()
    with Bar(run.config.train.steps, quiet or not world.writes) as bar:
        trained = Trainer(run, data, world, bar, start).train()
    if trained.interrupted:
        if world.writes:
            print(
                f"interrupted: {run.path} is saved after step {trained.step}; go on with --resume",
                file=sys.stderr,
            )
        return 130
    if world.writes and not quiet:
        held_out = (
            "" if trained.held_out is None else f", held-out {trained.held_out:.4f} bits/dim"
        )
        print(f"{run.path}: {trained.step} steps in {trained.seconds:.0f} s{held_out}")
        print(f"data: {data.identity}")
    return 0


def fitted(config: Config, data: Dataset) -> Config:
    """The configuration for this data."""
    return fit(config, data.levels, data.shape)
