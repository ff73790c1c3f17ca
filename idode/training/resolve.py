"""Which settings a training will have: those asked for, or those of the run it resumes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from torch import nn

from idode.data.identity import same_data
from idode.data.loading import names_data
from idode.data.prepared import Dataset
from idode.errors import InputError, choose, whole
from idode.nets.config import CustomNetConfig
from idode.runs.config import Config, check_not_of_data, fit, override
from idode.runs.folder import claim
from idode.runs.presets import PRESETS
from idode.runs.run import Parent, Run, shell_command
from idode.runs.systems import apply
from idode.training import checkpoint
from idode.training.finetuning import finetuned

__all__ = [
    "check_data",
    "check_held_out",
    "check_net",
    "check_start",
    "finetuning_config",
    "for_data",
    "listed",
    "origin",
    "training_config",
]


T = TypeVar("T")


def training_config(
    config: str | Config | None,
    *,
    out: Path | None = None,
    net: nn.Module | None = None,
    steps: int | None = None,
    seed: int | None = None,
    settings: Iterable[str] = (),
    system: str | None = None,
    minutes: float | None = None,
    resume: bool = False,
    force: bool = False,
    suited: Callable[[float], Config] | None = None,
) -> Config:
    """The settings that :func:`idode.train` would use; nothing is written.

    The arguments are those of :func:`idode.train`; without ``out`` no folder is looked at, and
    ``suited`` finds settings for some minutes, for a new run without a preset.
    """
    changes = _changes(settings, steps, seed, minutes)
    found = None if out is None else claim(out, resume=resume, force=force)
    if found is not None:
        return _resumed_training(found, config, changes, system)
    if config is None and minutes is not None and suited is not None:
        # What is wrong with them is said now, and not after the speed was measured; settings of
        # the network depend on which one it will be.
        override(PRESETS["images"], [c for c in changes if not c.startswith("net.")])
        config = suited(minutes)
    if config is None:
        presets = ", ".join(PRESETS)
        raise InputError(f"no preset is given: choose one of {presets}, or give data and minutes")
    if isinstance(config, str) and config not in PRESETS and names_data(config):
        raise InputError(
            f"{config} is a data set and no preset: give it as data beside a preset, such as "
            f"images, or beside minutes (idode train '{config}' --minutes M)"
        )
    chosen = choose("preset", config, PRESETS) if isinstance(config, str) else config
    if system is not None:
        chosen = apply(chosen, system)
    if net is not None:
        chosen = replace(chosen, net=CustomNetConfig.of(net))
    return override(chosen, changes)


def finetuning_config(
    run: Run,
    *,
    out: Path | None = None,
    ratio: float | None = None,
    probes: int | None = None,
    unbiased: bool = False,
    steps: int | None = None,
    seed: int | None = None,
    settings: Iterable[str] = (),
    resume: bool = False,
    force: bool = False,
) -> Config:
    """The settings that :func:`idode.finetune` would use; nothing is written.

    The arguments are those of :func:`idode.finetune`; without ``out`` no folder is looked at.
    """
    if out is not None and out.resolve() == run.path.resolve():
        raise InputError(f"{out} is the run to start from: give another folder for the new one")
    if run.config.path.bits:
        raise InputError(
            f"{run.spec} has learned noise levels (path.bits), for which there is no second-order "
            "objective: train it further, or fine-tune a run without them"
        )
    changes = _changes(settings, steps, seed)
    # What they say of fine-tuning itself decides which settings it begins with.
    trained = override(run.config, [c for c in changes if c.startswith("finetune.")])
    config = override(finetuned(trained, ratio, probes, unbiased), changes)
    found = None if out is None else claim(out, resume=resume, force=force)
    if found is None:
        return config
    if found.config.objective != config.objective:
        raise InputError(
            f"{out} has another objective than is asked for: resume it with its own ratio, probes "
            "and unbiased"
        )
    return _resumed(found, changes)


def check_net(config: Config, net: nn.Module) -> None:
    """Refuse another network than the configuration records, or one that lacks an argument."""
    given = CustomNetConfig.of(net).name
    if isinstance(config.net, CustomNetConfig) and config.net.name != given:
        raise InputError(
            f"the run has a network of your own, {config.net.name}, and {given} is given: pass an "
            "instance of the same class as net"
        )
    parameters = inspect.signature(net.forward).parameters.values()
    optional = [p for p in parameters if p.default is not p.empty or p.kind is p.VAR_KEYWORD]
    taken = {p.name for p in optional}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in optional)
    if config.objective.augment and not (takes_all or "flag" in taken):
        raise InputError(
            f"objective.augment=true trains the network as net(x, t, flag=...), and {given} takes "
            "no flag: add an argument flag=None, or leave augmentation off"
        )
    if config.path.bits and not (takes_all or "code" in taken):
        raise InputError(
            f"path.bits={config.path.bits} trains the network as net(x, t, code=...), and {given} "
            "takes no code: add an argument code=None, or set path.bits=0"
        )


def check_data(before: Run, run: Run) -> None:
    """A run is resumed with the data it began with."""
    began, given = before.identity, run.identity
    if began is not None and given is not None and not same_data(began, given):
        raise InputError(
            f"{run.path} began with other data ({began}) than is given ({given}): resume with its "
            "own"
        )


def origin(before: Run | None, parent: Parent | None) -> Parent | None:
    """What the run started from; for a resumed run only the address of that may change."""
    if before is None or before.parent is None:
        return parent
    began = before.parent
    if began.width is not None:
        raise InputError(
            f"{before.path} holds an average of the weights of {began.run} and no training to go "
            "on with: resume that run, or give another folder"
        )
    if parent is None:
        return began
    if began.sha256 != parent.sha256:
        command = shell_command("train", "--resume", "--out", before.path)
        raise InputError(
            f"{before.path} began from {began}, and {parent} is given: give that one, or continue "
            f"from the last checkpoint by {command}"
        )
    return parent


def listed(what: str, values: Iterable[T]) -> tuple[T, ...]:
    """Several of something; a text or a dictionary would be taken apart without a word."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise InputError(f"{what} is a list, got {values!r}: put it in brackets")
    return tuple(values)


def for_data(config: Config, name: str, data: Dataset) -> Config:
    """The settings for data of its shape and levels, which it is loaded by ``name`` as."""
    return fit(replace(config, data=name), data.levels, data.shape)


def check_start(config: Config, fitted: Config, data: Dataset) -> None:
    """Refuse data that the network of trained weights is not for."""
    if fitted.net != config.net:
        raise InputError(
            f"the model to start from is for samples of shape {config.model.shape} with levels "
            f"{config.model.levels}, {data.identity.name} has {data.shape} and {data.levels}: "
            "choose data of its kind"
        )


def check_held_out(run: Run, config: Config) -> None:
    """Refuse to hold out what a run has trained on: a width of the average is chosen by it.

    Other data may be held out as is asked for.
    """
    before, now = run.config.train.hold_out, config.train.hold_out
    if now > before and config.data == run.config.data:
        raise InputError(
            f"hold_out={now}: {run.path} holds {before} samples out and has trained on the "
            "others: hold out more in a run of its own"
        )


def _changes(
    settings: Iterable[str], steps: int | None, seed: int | None, minutes: float | None = None
) -> list[str]:
    number = isinstance(minutes, int | float) and not isinstance(minutes, bool)
    if minutes is not None and not (number and 0 < minutes < math.inf):
        raise InputError(f"minutes={minutes!r}: must be a number above 0")
    for name, count, least in (("steps", steps, 1), ("seed", seed, 0)):
        if count is not None:
            whole(name, count, least)
    short = {"train.steps": steps, "train.seed": seed, "train.minutes": minutes}
    given = dict(each.partition("=")[::2] for each in settings)
    check_not_of_data(settings)
    given |= {name: f"{value:g}" for name, value in short.items() if value is not None}
    if "train.steps" in given and "train.minutes" in given:
        raise InputError(
            f"steps={given['train.steps']} and minutes={given['train.minutes']} are given: choose "
            "one of them"
        )
    return [*settings, *(f"{name}={value}" for name, value in short.items() if value is not None)]


def _resumed_training(
    found: Run, config: str | Config | None, changes: list[str], system: str | None
) -> Config:
    """The settings of a run that is resumed; what is asked for besides must agree with them."""
    stored = found.config
    name = config.name if isinstance(config, Config) else config
    if name not in (None, stored.name):
        raise InputError(f"{found.path} is a run of {stored.name}: resume it without a preset")
    resumed = _resumed(found, changes)
    if isinstance(config, Config):
        asked = config if system is None else apply(config, system)
        if isinstance(stored.net, CustomNetConfig):
            asked = replace(asked, net=stored.net)
        asked = replace(override(asked, changes), data=stored.data, train=stored.train)
        if fit(asked, stored.model.levels, stored.model.shape) != stored:
            raise InputError(f"{found.path} has other settings than are given: resume it without")
    if system is not None and override(apply(stored, system), changes) != resumed:
        raise InputError(f"{found.path} is not a run of {system}: resume it without a system")
    return resumed


def _resumed(run: Run, changes: list[str]) -> Config:
    """The stored settings with the changes that may be made to them: those of ``train``."""
    config = override(run.config, changes)
    if config.train.steps != run.config.train.steps:  # a number of steps replaces given minutes
        config = replace(config, train=replace(config.train, minutes=None))
    if replace(config, train=run.config.train) != run.config:
        raise InputError(
            f"{run.path} has settings of its own: only those of `train` may change when it is "
            "resumed; start another run for others"
        )
    done = max(checkpoint.steps(run.checkpoints), default=0)
    if done:
        check_held_out(run, config)
    if config.train.minutes != run.config.train.minutes and done >= config.train.steps:
        raise InputError(
            f"{run.path} has done all of its {done} steps: give a larger number of steps to go on"
        )
    if config.train.steps < done:
        raise InputError(
            f"{run.path} has done {done} steps, more than the {config.train.steps} asked for: "
            "give as many or more, or leave the number out"
        )
    return config
