"""``idode.train`` and ``idode.finetune``: from settings and data to a trained run folder."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from idode.data.memory import MEMORY, Data, as_dataset, spec_of
from idode.errors import InputError
from idode.progress import Bar
from idode.runs import SHIPPED
from idode.runs.config import Config, from_json, to_json
from idode.runs.distributed import World, joined
from idode.runs.folder import claim, writing_run
from idode.runs.run import Parent, Run, holds_run, open_run
from idode.training.finetuning import parent_of, starting_state
from idode.training.plan import described, scheduled, suited
from idode.training.reporter import TrainingResult
from idode.training.resolve import (
    check_data,
    check_held_out,
    check_net,
    check_start,
    finetuning_config,
    for_data,
    listed,
    origin,
    training_config,
)
from idode.training.trainer import Trainer

__all__ = ["finetune", "train"]


def train(
    config: str | Config | None = None,
    *,
    out: Path | str,
    data: Data | None = None,
    net: nn.Module | None = None,
    steps: int | None = None,
    seed: int | None = None,
    settings: Iterable[str] = (),
    system: str | None = None,
    minutes: float | None = None,
    resume: bool = False,
    force: bool = False,
    device: str | None = None,
    progress: bool = True,
) -> Run:
    """Train a model and keep it in a run folder.

    Under ``torchrun`` all processes train one model together, and rank 0 writes the folder.
    Ctrl-C (or SIGTERM) saves a checkpoint and raises ``KeyboardInterrupt``, whose text says what
    is kept.

    Args:
        config: A preset such as ``"digits"``, or a :class:`~idode.runs.config.Config`; may be
            left out to resume a run, or where ``data`` and ``minutes`` are given.
        out: Folder of the run. Other files in it are never touched.
        data: A spec such as ``"cifar10"`` or ``"folder:PATH"``, a data set, or a pair of arrays
            ``(train, test)``; by default that of ``config``.
        net: A network of your own, called as ``net(x, t)`` with ``x`` ``(B, *)`` and times ``t``
            ``(B,)``; while training with augmentation as ``net(x, t, flag=...)``. It is copied,
            and needed again to resume, fine-tune or load the run.
        steps: Optimiser steps in all; by default those of ``config``.
        seed: Seed of everything random; by default that of ``config``.
        settings: Changes to any setting as ``"NAME=VALUE"``, such as ``"train.lr=1e-3"``.
        system: Objective and schedule of a named system, such as ``"vdm"``.
        minutes: Wall-clock time in place of ``steps``: they follow from the measured speed, and
            are adjusted on the way to end on time, and one thread is taken where it is faster;
            without ``config`` network, batch and precision follow, too.
        resume: Continue the run in the folder from its last checkpoint, or start a new one if
            there is none.
        force: Replace the run in the folder, which is kept until the new one has a checkpoint.
        device: Such as ``"cpu"`` or ``"cuda:1"``; by default the best available.
        progress: Show a progress bar on stderr.

    Returns:
        The trained run; ``idode.load(run)`` is its model.
    """
    changes = listed("settings", settings)
    job = _Job(Path(out), data, net, changes, resume, force, progress)
    with joined(device) as world:
        agreed = _agreed(
            world,
            lambda: training_config(
                config,
                out=job.out,
                net=net,
                steps=steps,
                seed=seed,
                settings=changes,
                system=system,
                minutes=minutes,
                resume=resume,
                force=force,
                suited=job.suited(world),
            ),
        )
        run, result = job.carry_out(agreed, world)
    return _finished(run, result, world)


def finetune(
    run: Run | Path | str,
    *,
    out: Path | str,
    data: Data | None = None,
    net: nn.Module | None = None,
    ratio: float | None = None,
    probes: int | None = None,
    unbiased: bool = False,
    steps: int | None = None,
    seed: int | None = None,
    settings: Iterable[str] = (),
    resume: bool = False,
    force: bool = False,
    device: str | None = None,
    progress: bool = True,
) -> Run:
    """Continue training with the second-order objective added, in a new run folder.

    It starts from the averaged weights of ``run`` with a fresh optimiser, or where its setting
    ``finetune.continues`` says so, as for the paper's presets, continues with weights, average and
    Adam's moments of its last checkpoint. Processes and Ctrl-C are as for :func:`train`.

    Args:
        run: The trained run, its folder, or ``"pretrained:NAME"``; it is not changed.
        out: Folder of the new run.
        data: As for :func:`train`; by default that of ``run``.
        net: The network of ``run`` if it is one of your own; its weights do not matter.
        ratio: Weight of the second-order term; by default that of ``run``.
        probes: Hutchinson probes for each sample; by default those of ``run``.
        unbiased: Square by two different probes, of which there must be at least two.
        steps: Optimiser steps; by default ``finetune.steps`` of ``run``.
        seed: Seed of everything random; by default that of ``run``.
        settings: As for :func:`train`.
        resume: As for :func:`train`.
        force: As for :func:`train`.
        device: As for :func:`train`.
        progress: As for :func:`train`.

    Returns:
        The fine-tuned run.
    """
    changes = listed("settings", settings)
    job = _Job(Path(out), data, net, changes, resume, force, progress)
    with joined(device) as world:
        agreed = _agreed(
            world,
            lambda: finetuning_config(
                open_run(run),
                out=job.out,
                ratio=ratio,
                probes=probes,
                unbiased=unbiased,
                steps=steps,
                seed=seed,
                settings=changes,
                resume=resume,
                force=force,
            ),
        )
        start, parent = None, None
        if world.writes:  # the others get the weights from rank 0, which alone sees the folders
            trained = open_run(run)
            if data is None:  # a run that is resumed may have other data than it started from
                check_held_out(trained, agreed)
            start = starting_state(trained, agreed.finetune.continues, net)
            parent = parent_of(trained, _name_of(run, trained))
        tuned, result = job.carry_out(agreed, world, start, parent)
    return _finished(tuned, result, world)


def _name_of(given: Run | Path | str, opened: Run) -> str:
    """How the new run records where it started: ``pretrained:NAME``, or an absolute path."""
    shipped = not isinstance(given, Run) and str(given).startswith(SHIPPED)
    return str(given) if shipped else str(opened.path.resolve())


def _agreed(world: World, decide: Callable[[], Config]) -> Config:
    """What rank 0 decides, on all processes: the others may not even see the run folder."""
    text = json.dumps(to_json(decide())) if world.writes else ""
    return from_json(json.loads(world.agree(text)))


def _finished(run: Run, result: TrainingResult, world: World) -> Run:
    """The run; an interruption is raised only now that the processes have parted in order."""
    if not result.interrupted:
        return run
    if not world.writes:
        raise KeyboardInterrupt
    raise KeyboardInterrupt(
        f"interrupted: {run.path} is saved after step {result.step}; continue with --resume"
    )


@dataclass(frozen=True)
class _Job:
    """Where to train and on what: the arguments that training and fine-tuning share."""

    out: Path
    data: Data | None
    net: nn.Module | None
    settings: tuple[str, ...]
    resume: bool
    force: bool
    progress: bool
    began: float = field(default_factory=time.perf_counter)

    def suited(self, world: World) -> Callable[[float], Config] | None:
        """Finds network, batch and precision for the data, if there is any, and some minutes."""
        data = self.data
        if data is None:
            return None
        lower = self.net is None
        return lambda minutes: suited(as_dataset(data), minutes, world, lower=lower)

    def carry_out(
        self,
        config: Config,
        world: World,
        start: Mapping[str, Tensor] | None = None,
        parent: Parent | None = None,
    ) -> tuple[Run, TrainingResult]:
        """Load the data, take over the folder and train.

        Args:
            config: Settings, not yet for the shape of the data.
            world: This process's place among all.
            start: Tensors of the state to start from; by default fresh ones.
            parent: Where they come from.
        """
        given = self._data(config)
        data = as_dataset(given)
        fitted = for_data(config, spec_of(given), data)
        if start is not None:
            check_start(config, fitted, data)
        if self.net is not None:
            check_net(config, self.net)
        begun = world.writes and self.resume and holds_run(self.out)
        timed = fitted.train.minutes is not None
        if timed:
            new = fitted
            plan = partial(scheduled, new, data, world, began=self.began, settings=self.settings)
            fitted = _agreed(world, lambda: new if begun else plan())
        before = open_run(self.out) if begun else None
        run = Run(self.out, fitted, data.identity, origin(before, parent))
        trainer = Trainer(run, data, world, start=start, net=self.net)  # writes nothing yet
        if before is not None:
            check_data(before, run)
        if self.force:
            trainer.try_step()  # whatever it raises, the run in the folder is still there
        with (
            self._folder(world),
            Bar(fitted.train.steps, not (self.progress and world.writes)) as bar,
        ):
            if world.writes:
                trainer.reporter = bar
            if self.resume and before is None:
                bar.notice(f"there is no run in {self.out} to resume: a new one starts")
            if timed:
                bar.notice(described(fitted))
                trainer.spent = 0.0 if begun else time.perf_counter() - self.began
            result = trainer.train()
            return trainer.run, result

    @contextlib.contextmanager
    def _folder(self, world: World) -> Iterator[None]:
        """The folder, locked on the process that writes it; what it holds is checked again."""
        if not world.writes:
            yield
            return
        with writing_run(self.out, force=self.force):
            if not self.force:
                claim(self.out, resume=self.resume)
            yield

    def _data(self, config: Config) -> Data:
        """The data that was given, or what the configuration names."""
        chosen = config.data if self.data is None else self.data
        if chosen is None:
            raise InputError(f"{config.name} has no data set of its own: give the data")
        if isinstance(chosen, str) and chosen == MEMORY:
            raise InputError(
                f"{config.name} was trained on arrays in memory, which are not stored: give the "
                "data"
            )
        return chosen
