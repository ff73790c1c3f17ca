"""What the commands that make runs share: claiming a folder, training in it, telling how."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from idode.cli.parsing import INTERRUPTED, natural, positive
from idode.progress import Bar
from idode.data import load, same_data
from idode.errors import InputError
from idode.runs.config import Config, fit, from_json, override, to_json
from idode.runs.dequantizer_file import DEQUANTIZER
from idode.runs.run import (
    CHECKPOINTS,
    CONFIG,
    EVALUATIONS,
    METRICS,
    MODEL,
    REPORT,
    SAMPLES,
    Parent,
    Run,
    holds_run,
    open_run,
    typed,
)
from idode.training import Trainer, World
from idode.training.checkpoint import steps as steps_of

__all__ = [
    "add_training_arguments",
    "agreed",
    "claim",
    "clear",
    "needed",
    "print_settings",
    "resolve",
    "resumed",
    "session",
]

FILES = (CONFIG, METRICS, MODEL, DEQUANTIZER)
OURS = (*FILES, CHECKPOINTS, SAMPLES, EVALUATIONS, "tensorboard")


def add_training_arguments(
    parser: argparse.ArgumentParser, steps: str = "the preset's", seed: str = "the preset's"
) -> None:
    """Arguments of every command that trains; whose ``steps`` and ``seed`` are the defaults."""
    parser.add_argument("--out", type=Path, metavar="RUN", help="folder of the new run")
    parser.add_argument(
        "--steps", type=positive, metavar="N", help=f"optimiser steps in all [{steps}]"
    )
    parser.add_argument(
        "--seed", type=natural, metavar="S", help=f"seed of everything random [{seed}]"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change any setting, such as train.lr=1e-3 or net.width=64; --dry-run lists them",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the last checkpoint in RUN, or begin where there is none",
    )
    parser.add_argument("--force", action="store_true", help="replace the run in that folder")
    parser.add_argument(
        "--dry-run", action="store_true", help="print all settings as JSON and stop"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("--device", metavar="DEVICE", help="cpu, cuda or cuda:1 [cuda if any]")


def resolve(config: Config, args: argparse.Namespace) -> Config:
    """The configuration with what the command line changes."""
    short = {"train.steps": args.steps, "train.seed": args.seed}
    named = [f"{name}={value}" for name, value in short.items() if value is not None]
    return override(config, [*args.set, *named])


def print_settings(config: Config) -> int:
    """The resolved configuration as JSON on stdout."""
    print(json.dumps(to_json(config), indent=1))
    return 0


def needed(out: Path | None) -> Path:
    """The run folder, which ``--dry-run`` alone can do without."""
    if out is None:
        raise InputError("no run folder is given: say where with --out RUN")
    return out


def claim(path: Path, resume: bool | None, force: bool) -> Run | None:
    """The run in a folder if it is to be resumed; ``None`` if the folder is free for a new one.

    A folder that holds anything is refused unless ``force`` says to replace the run in it; one
    that holds something else is refused even so. ``resume`` is ``None`` for a command that cannot.
    """
    if resume and force:
        raise InputError("--resume goes on with a run and --force replaces it: give one of them")
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file: give a folder for the run")
    found = path.exists() and holds_run(path)
    if resume and found:
        return open_run(path)
    # Hidden files are what a process killed at its start leaves behind.
    filled = path.exists() and any(not p.name.startswith(".") for p in path.iterdir())
    if filled and not found:
        raise InputError(f"{path} is not empty and holds no run: give another folder")
    if filled and not force:
        further = "" if resume is None else "go on with the run in it by --resume, "
        raise InputError(
            f"{path} is not empty: {further}replace the run in it by --force, or give another "
            "folder"
        )
    return None


def clear(path: Path) -> None:
    """Remove the run in a folder, and nothing that idode did not write.

    What makes it a run goes last: killed on the way, the rest can still be replaced.
    """
    _clear_report(path / REPORT)
    for target in (path / name for name in reversed(OURS)):
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def _clear_report(folder: Path) -> None:
    """Remove the report on a run, and the folder if that was all of it."""
    if not folder.is_dir():
        return
    from idode.studies.report.sections import FILES as WRITTEN  # brings matplotlib, seldom needed

    for name in WRITTEN:
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # whatever else is in it stays
        folder.rmdir()


def agreed(world: World, decide: Callable[[], Config]) -> Config:
    """What rank 0 decides, on all: the others may not even see the run folder."""
    text = json.dumps(to_json(decide())) if world.writes else ""
    return from_json(json.loads(world.agree(text)))


def resumed(run: Run, args: argparse.Namespace) -> Config:
    """The stored configuration with the changes that may be made to it: those of ``train``."""
    config = resolve(run.config, args)
    if replace(config, train=run.config.train) != run.config:
        raise InputError(
            f"{run.path} has settings of its own: only those of `train` may change when it is "
            "resumed; start another run for others"
        )
    done = max(steps_of(run.checkpoints), default=0)
    if config.train.steps < done:
        raise InputError(
            f"{run.path} has done {done} steps, more than --steps {config.train.steps}: give as "
            "many or more, or leave it out"
        )
    return config


def origin(before: Run | None, parent: Parent | None) -> Parent | None:
    """What the run started from, of which a resumed one cannot change more than the address."""
    began = None if before is None else before.parent
    if before is None or began is None or parent is None:
        return parent or began
    if began.sha256 != parent.sha256:
        raise InputError(
            f"{before.path} began from {began}, and {parent} is given: give that one, or go on "
            f"from the last checkpoint by {typed('train', '--resume', '--out', before.path)}"
        )
    return parent


def take_over(run: Run, before: Run | None, args: argparse.Namespace) -> None:
    """Make the folder that of this run; the last chance to refuse, on the process that writes."""
    if before is not None:
        began = before.identity
        if began is not None and run.identity is not None and not same_data(began, run.identity):
            raise InputError(
                f"{run.path} began with other data ({began}) than is given ({run.identity}): "
                "resume with its own"
            )
    elif args.force:
        clear(run.path)
    run.write_config()


def session(
    config: Config,
    args: argparse.Namespace,
    world: World,
    start: Mapping[str, Tensor] | None = None,
    parent: Parent | None = None,
) -> int:
    """Load the data, write ``config.json``, train, and tell how it ended; the exit code."""
    path, spec = needed(args.out), args.data or config.data
    if spec is None:
        raise InputError(f"{config.name} has no data of its own: give --data SPEC")
    data = load(spec)
    fitted = fit(replace(config, data=spec), data.levels, data.shape)
    if start is not None and fitted.net != config.net:
        raise InputError(
            f"the model to start from is for samples of shape {config.model.shape} with levels "
            f"{config.model.levels}, {spec} has {data.shape} and {data.levels}: choose data of "
            "its kind"
        )
    begun = world.writes and args.resume and holds_run(path)
    before = open_run(path) if begun else None
    run = Run(path, fitted, data.identity, origin(before, parent))
    trainer = Trainer(run, data, world, start=start)  # finds what is wrong, writes nothing
    if world.writes:
        take_over(run, before, args)
    with Bar(fitted.train.steps, args.quiet or not world.writes) as bar:
        if world.writes:
            trainer.reporter = bar
        if args.resume and before is None:
            bar.notice(f"there is no run in {path} to resume: a new one starts")
        trained = trainer.train()
    if world.writes and trained.interrupted:
        saved = f"{path} is saved after step {trained.step}; go on with --resume"
        print(f"interrupted: {saved}", file=sys.stderr)
    elif world.writes and not args.quiet:
        value = "" if trained.held_out is None else f", held-out {trained.held_out:.4f} bits/dim"
        print(f"{path}: {trained.step} steps, {trained.seconds:.0f} s{value}\n{data.identity}")
    return INTERRUPTED if trained.interrupted else 0
