"""Everything a report shows, computed from a run and its data."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idode.data import Dataset, Identity
from idode.diffusion.model import DiffusionODE
from idode.diffusion.noise_levels import Adaptive, Designed, NoiseLevelDistribution, UniformGamma
from idode.errors import InputError
from idode.likelihood.calibration import Pilot
from idode.likelihood.dequantization import centres
from idode.likelihood.sde_bound import SDEBound, sde_bound
from idode.runs.run import Parent, Run
from idode.sampling import Samples, sample
from idode.studies.report.curves import TrainingCurve, after, training_curve
from idode.studies.report.effort import FAST, Effort
from idode.studies.report.levels import NoiseLevels, noise_levels
from idode.studies.report.values import Value, bounds, engine, uniform_starts
from idode.training.checkpoint import load_latest
from idode.training.objective import build_density

__all__ = ["STAGES", "Likelihoods", "Measurements", "Smoothness", "measure", "plain", "stages"]

STAGES = ("noise levels", "test images", "bounds", "uniform starts", "samples", "before")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Likelihoods:
    """Values of one model on the first test images."""

    test: Value  # truncated normal, K = 1, one draw for each of many images
    pixels: Tensor  # (N, *) those images
    sde: SDEBound | None  # on the same; continuous data has none
    bounds: tuple[Value, ...]
    starts: tuple[Value, ...]
    pilot: Pilot  # with the grid all of them were solved on
    nfe: int  # evaluations of one solve on it


@dataclass(frozen=True)
class Smoothness:
    """What a run costs to solve, and how good it is."""

    name: str
    value: Value  # truncated normal, K = 1
    likelihood_nfe: int  # evaluations on the tuned grid
    sampling_nfe: float  # Dormand-Prince at 1e-5, the paper's measure


@dataclass(frozen=True)
class Measurements:
    """The numbers of a report."""

    run: Path
    name: str
    identity: Identity  # of the data it is shown on
    trained_on: Identity | None  # unknown for an imported model
    parent: Parent | None  # what it was fine-tuned from
    effort: Effort
    parameters: int
    curve: TrainingCurve  # behind that of the run before, where this one started from it
    noise: NoiseLevels
    likelihoods: Likelihoods
    samples: Samples
    smoothness: tuple[Smoothness, ...]  # of the run to compare with, where given, and of this one
    tuned: bool  # whether this run was fine-tuned from the one it is compared with
    second_order: bool  # whether it has that term, and the one before had not
    seconds: float


def stages(before: bool) -> tuple[str, ...]:
    """What :func:`measure` tells of, in order, with or without a run to compare with."""
    return STAGES if before else STAGES[:-1]


def measure(
    run: Run,
    data: Dataset,
    effort: Effort = FAST,
    *,
    before: Run | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Measurements:
    """Compute all of a report.

    Args:
        run: The trained run.
        data: Its data; the test split is used throughout.
        effort: How much to compute.
        before: The run to compare with, such as the one this was fine-tuned from.
        device: Where to compute.
        progress: Called with each of :func:`stages` as it begins.
    """
    began, tell = time.perf_counter(), progress or (lambda stage: None)
    work = _Work(data, effort, device)
    for each in (run, before):
        if each is not None:
            work.check(each)
    model = run.model(device)
    tell("noise levels")
    noise = work.noise(run, model)
    found = work.likelihoods(model, tell)
    tell("samples")
    drawn = work.samples(model)
    smoothness: tuple[Smoothness, ...] = ()
    if before is not None:
        tell("before")
        smoothness = (work.smoothness(before),)
    parent = before if before is not None and started_from(run, before) else None
    return Measurements(
        run=run.path,
        name=run.config.name,
        identity=data.identity,
        trained_on=run.identity,
        parent=run.parent,
        effort=effort,
        parameters=sum(w.numel() for w in run.weights().values()),
        curve=whole_curve(run, parent),
        noise=noise,
        likelihoods=found,
        samples=drawn,
        smoothness=(*smoothness, Smoothness(run.config.name, found.test, found.nfe, drawn.nfe)),
        tuned=parent is not None,
        second_order=run.config.objective.second_order
        and not (parent is not None and parent.config.objective.second_order),
        seconds=time.perf_counter() - began,
    )


def started_from(run: Run, before: Run) -> bool:
    """Whether a run was fine-tuned from another, by its weights or by its folder."""
    if run.parent is None:
        return False
    return run.parent.has(before) or Path(run.parent.run).resolve() == before.path.resolve()


def whole_curve(run: Run, parent: Run | None) -> TrainingCurve:
    """Of a run, behind that of the one it was fine-tuned from."""
    own = training_curve(run.metrics)
    if parent is None or run.parent is None:
        return own
    return after(training_curve(parent.metrics), own, run.parent.step)


@dataclass(frozen=True)
class _Work:
    """Data and effort, which every measurement shares."""

    data: Dataset
    effort: Effort
    device: torch.device | str

    def check(self, run: Run) -> None:
        """Find what is wrong with a run now, and not after the work on another."""
        data, wanted = self.data, run.config.model
        data.expect(wanted.shape, wanted.levels, str(run.path))
        run.net()
        if len(data.test) == 0:
            raise InputError(f"{data.identity.name} has no test split: a report needs one")

    def rows(self, count: int) -> Tensor:
        """The first test samples; integers as int32, which every operation knows."""
        rows = np.asarray(self.data.test[:count])
        kind = np.int32 if self.data.levels is not None else np.float32
        return torch.from_numpy(rows.astype(kind)).to(self.device)

    def noise(self, run: Run, model: DiffusionODE) -> NoiseLevels:
        rows, effort = self.rows(self.effort.data), self.effort
        x0 = rows if model.levels is None else centres(rows, model.levels)
        source = torch.Generator().manual_seed(effort.seed)
        shown = densities(run, model)
        return noise_levels(model, x0, shown, effort.levels, effort.noises, source)

    def likelihoods(self, model: DiffusionODE, tell: Progress) -> Likelihoods:
        effort = self.effort
        tell("test images")
        solve = engine(model, self.rows(effort.pilot), effort.tolerance, effort.seed)
        pixels = self.rows(effort.images)
        test = solve.values(pixels, solve.settings, (1,))[0]
        sde = None
        if model.levels is not None:
            sde = sde_bound(model, pixels, draws=effort.sde_draws, seed=effort.seed)
        tell("bounds")
        table = bounds(solve, self.rows(effort.limit))
        tell("uniform starts")
        starts: tuple[Value, ...] = ()
        if model.levels is not None:
            starts = uniform_starts(solve, self.rows(effort.start_images), effort.starts)
        return Likelihoods(test, pixels.cpu(), sde, table, starts, solve.pilot, solve.nfe)

    def samples(self, model: DiffusionODE) -> Samples:
        source = torch.Generator().manual_seed(self.effort.seed)
        drawn = sample(model, self.effort.samples, self.data.shape, source, device=self.device)
        if not drawn.complete:
            raise KeyboardInterrupt
        return drawn

    def smoothness(self, run: Run) -> Smoothness:
        model, effort = run.model(self.device), self.effort
        solve = engine(model, self.rows(effort.pilot), effort.tolerance, effort.seed)
        value = solve.values(self.rows(effort.images), solve.settings, (1,))[0]
        return Smoothness(run.config.name, value, solve.nfe, self.samples(model).nfe)


def densities(run: Run, model: DiffusionODE) -> dict[str, NoiseLevelDistribution]:
    """The two that every run can be compared on, and the run's own if it is another."""
    ends = model.gamma_min, model.gamma_max
    found: dict[str, NoiseLevelDistribution] = {
        "uniform": UniformGamma(*ends),
        "designed": Designed(model.schedule, *ends),
    }
    own = run.config.objective.density
    if own in ("designed", "uniform-gamma"):
        return found
    density = build_density(own, model)
    if isinstance(density, Adaptive):
        saved = load_latest(run.checkpoints, lambda text: None)
        if saved is None:
            return found  # it was learned beside the network, and is not part of the model
        learned = {k.removeprefix("density/"): v for k, v in saved[1].items() if "density/" in k}
        density.load_state_dict({k: learned[k] for k in density.state_dict()})
        density.requires_grad_(False)
    return {**found, own: density}


def plain(value: object) -> Any:  # noqa: ANN401  JSON
    """A measurement as JSON values; what is not a finite number becomes ``None``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, tuple | list):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value
