"""``idode.compare``: systems trained and measured on equal terms."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import torch

from idode.data.memory import Data, as_dataset, spec_of
from idode.errors import InputError
from idode.runs.distributed import World, alone, joined
from idode.runs.systems import COMPARED, distinct
from idode.storage import locked_folder, write_atomically
from idode.studies.comparison.experiment import Experiment
from idode.studies.comparison.folder import (
    JSON,
    check_folder,
    clear_folder,
    stored_plan,
    write_plan,
)
from idode.studies.comparison.page import write_comparison
from idode.studies.comparison.plan import Plan
from idode.studies.comparison.results import measured_with
from idode.studies.comparison.settings import MeasurementSettings
from idode.studies.comparison.summary import Comparison, summarise
from idode.training.resolve import listed

__all__ = ["compare"]


def compare(
    systems: Iterable[str] | None = None,
    *,
    out: Path | str,
    seeds: Iterable[int] = Plan.seeds,
    preset: str = Plan.preset,
    data: Data | None = None,
    steps: int | None = None,
    finetune: int = Plan.finetune,
    control: bool = False,
    settings: Iterable[str] = (),
    limit: int = MeasurementSettings.limit,
    tolerance: float = MeasurementSettings.tolerance,
    samples: int = MeasurementSettings.samples,
    force: bool = False,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> Comparison:
    """Train and evaluate several systems with the same network, data, steps and seeds.

    Under ``torchrun`` the processes share the runs: each trains and measures some of them alone,
    so that figures do not depend on the number of processes, up to rounding. All processes must
    see the folder.

    Every part is stored when it is done: after an interruption the same call resumes. A later
    call may add systems and seeds, and measure the runs again with other settings.

    Args:
        systems: Names in :data:`idode.runs.systems.SYSTEMS`; by default all of the paper's
            comparison.
        out: Folder of all runs, the table and the page.
        seeds: Seeds of training; every system is trained once with each.
        preset: Network and optimisation of all systems.
        data: A spec, a data set, or a pair of arrays; by default that of the preset.
        steps: Optimiser steps; by default those of the preset.
        finetune: Further steps with the second-order objective, for i-DODE; 0 for none.
        control: Also as many further steps without it.
        settings: Changes to the preset as ``"NAME=VALUE"``; those of a system override them.
        limit: Test images of the ODE values.
        tolerance: Error of the solver in bits/dim rms for an image.
        samples: Samples drawn for NFE and FID.
        force: Remove the comparison in the folder and start over.
        device: By default the best one there is.
        progress: Whether to show progress.

    Returns:
        The table, the learning curves, and which claims of the paper hold.
    """
    folder = Path(out)
    plan = Plan(
        systems=distinct(COMPARED) if systems is None else listed("systems", systems),
        seeds=listed("seeds", seeds),
        preset=preset,
        data=None if data is None else spec_of(data),
        settings=listed("settings", settings),
        steps=steps,
        finetune=finetune,
        control=control,
        measurement=MeasurementSettings(limit=limit, tolerance=tolerance, samples=samples),
    )
    given = plan.spec if data is None else data
    with joined(device) as world, alone(), ExitStack() as stack:
        experiment = Experiment(
            folder, plan, given, as_dataset(given), world.device, progress and world.size == 1
        )
        refused = ""
        if world.writes:
            try:
                stack.enter_context(locked_folder(folder))
                _prepare(experiment, force, progress)
            except InputError as error:
                refused = str(error)
        refused = world.agree(refused) or _not_shared(folder, plan)
        if refused:
            raise InputError(refused)
        try:
            _carry_out(experiment, world, progress)
            world.barrier()
            found = summarise(experiment)
        except KeyboardInterrupt:
            if not world.writes:
                raise KeyboardInterrupt from None
            raise KeyboardInterrupt(
                f"interrupted: {folder} keeps what is done; re-run the command to resume"
            ) from None
        if world.writes:
            _write(found)
    return found


def _not_shared(folder: Path, plan: Plan) -> str:
    """What is wrong if this process does not see the folder of the one that prepared it."""
    if stored_plan(folder) == plan.shared():
        return ""
    return f"{folder} is not the same folder for all processes: give one that all of them share"


def _prepare(experiment: Experiment, force: bool, progress: bool) -> None:
    """Refuse what cannot be done before any work, then take over the folder."""
    plan, identity, out = experiment.plan, experiment.data.identity, experiment.out
    for entry in plan.entries():
        plan.config(entry, identity)
    if force:
        clear_folder(out)
    check_folder(out, plan, identity)
    for entry in plan.entries():
        experiment.result(entry)
    write_plan(out, plan)
    if progress:
        _print_changes(experiment)


def _print_changes(experiment: Experiment) -> None:
    """One line where runs were measured with other settings, which names all that changed."""
    plan = experiment.plan
    wanted = dataclasses.asdict(plan.measurement)
    found = [measured_with(entry.folder(experiment.out)) for entry in plan.entries()]
    others = [dataclasses.asdict(m) for m in found if m not in (None, plan.measurement)]
    if not others:
        return
    changes = []
    for name, now in wanted.items():
        if old := sorted({other[name] for other in others} - {now}):
            changes.append(f"{name} {' and '.join(map(str, old))} before, {now} now")
    print(
        f"{len(others)} of {len(found)} runs are measured again ({', '.join(changes)}); their "
        "training is kept",
        file=sys.stderr,
    )


def _carry_out(experiment: Experiment, world: World, progress: bool) -> None:
    """This process's runs; with progress, a line for each part and for each run.

    A second stage belongs to the process of its first; those with most stages are dealt first.
    """
    entries = experiment.plan.entries()
    firsts = [entry for entry in entries if not entry.stage]
    firsts.sort(key=lambda first: -sum(entry.first == first for entry in entries))
    for number, entry in enumerate(entries, 1):
        if firsts.index(entry.first) % world.size != world.rank:
            continue
        place = f"[{number}/{len(entries)}] {entry.name} seed {entry.seed}"

        def show(text: str, place: str = place) -> None:
            if progress:
                print(f"{place}: {text}", file=sys.stderr)

        result = experiment.carry_out(entry, show)
        if result.seconds:
            show(", ".join(f"{part} {spent:.0f} s" for part, spent in result.seconds.items()))
        for part, reason in result.failures.items():
            show(f"{part} failed: {reason}")


def _write(found: Comparison) -> None:
    content = json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n"
    try:
        write_atomically(found.out / JSON, content)
    except OSError as error:
        raise InputError(
            f"cannot write to {found.out} ({error.strerror}): give a folder you may write to"
        ) from None
    write_comparison(found)
