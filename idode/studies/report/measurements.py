"""The numbers of a report, computed from a run and its data."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from idode.batches import to_tensor
from idode.data.identity import Identity
from idode.data.prepared import Dataset
from idode.diffusion.model import DiffusionODE
from idode.diffusion.noise_levels import Designed, NoiseLevelDistribution, UniformGamma
from idode.errors import InputError
from idode.evaluation.likelihood import sde_bound
from idode.likelihood.bits_per_dim import BitsPerDim
from idode.likelihood.calibration import SolverCalibration
from idode.likelihood.dequantization import clean_data
from idode.likelihood.sde_bound import SDEBound
from idode.nets.config import CustomNetConfig
from idode.runs.run import Parent, Run
from idode.sampling.samples import Samples, sample
from idode.studies.report.bounds import CalibratedModel
from idode.studies.report.curves import TrainingCurve, continued, training_curve
from idode.studies.report.noise_levels import NoiseLevels, measure_noise_levels
from idode.studies.report.settings import FAST, ReportSettings
from idode.training.checkpoint import load_latest
from idode.training.objective import build_density

__all__ = [
    "STAGES",
    "Cost",
    "Likelihoods",
    "Measurements",
    "distributions",
    "measure",
    "stages",
    "started_from",
    "whole_curve",
]

STAGES = ("noise levels", "test images", "bounds", "uniform starts", "samples", "before")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Likelihoods:
    """Bits/dim of one model on the first test images."""

    test: BitsPerDim  # truncated normal, K = 1, one draw for each image
    data: Tensor  # (N, *) those images
    sde: SDEBound | None  # on the same images; None for continuous data
    bounds: tuple[BitsPerDim, ...]
    starts: tuple[BitsPerDim, ...]  # empty for continuous data
    calibration: SolverCalibration  # of the solver that all of them used
    nfe: int  # evaluations of one solve


@dataclass(frozen=True)
class Cost:
    """Evaluations of the network that a run needs, and its bits/dim."""

    name: str
    value: BitsPerDim  # truncated normal, K = 1
    likelihood_nfe: int  # on the calibrated grid
    sampling_nfe: float  # Dormand-Prince at 1e-5, the paper's measure


@dataclass(frozen=True)
class Measurements:
    """The numbers of a report."""

    run: Path
    name: str  # of the configuration
    identity: Identity  # of the data that was measured on
    trained_on: Identity | None  # None for an imported model
    parent: Parent | None  # what the run was fine-tuned from, or is an average of
    settings: ReportSettings
    description: str  # of an adapted network, what was understood of it; else empty
    parameters: int
    curve: TrainingCurve  # includes that of the run it was fine-tuned from, where known
    noise: NoiseLevels
    likelihoods: Likelihoods
    samples: Samples
    costs: tuple[Cost, ...]  # of the run to compare with, if there is one, and of this run
    tuned: bool  # whether this run was fine-tuned from the one it is compared with
    second_order: bool  # whether its objective is of second order and the earlier one was not
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON; a number that is not finite becomes ``None``."""
        found: dict[str, Any] = _plain(self, top=True)
        return found


def _plain(value: object, top: bool = False) -> Any:  # noqa: ANN401  JSON
    own = None if top else getattr(value, "to_json", None)
    if own is not None:
        return _plain(own())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def stages(before: bool) -> tuple[str, ...]:
    """The stages of :func:`measure` in order, with or without a run to compare with."""
    return STAGES if before else STAGES[:-1]


def measure(
    run: Run,
    data: Dataset,
    settings: ReportSettings = FAST,
    *,
    before: Run | None = None,
    net: nn.Module | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Measurements:
    """Compute all numbers of a report.

    Args:
        run: The trained run.
        data: Its data; only the test split is used.
        settings: How much to compute.
        before: A run to compare with, such as the one this run was fine-tuned from.
        net: An instance of the user's own network, for runs that were trained with one.
        device: Where to compute.
        progress: Called with the name of each of the :func:`stages` when it begins.
    """
    began, begin = time.perf_counter(), progress or (lambda stage: None)
    parts = _Parts(data, settings, device, net)
    for each in (run, before):
        if each is not None:
            parts.check(each)
    model = parts.model(run)
    begin("noise levels")
    noise = parts.noise(run, model)
    found = parts.likelihoods(model, begin)
    begin("samples")
    drawn = parts.samples(model)
    earlier: tuple[Cost, ...] = ()
    if before is not None:
        begin("before")
        earlier = (parts.cost(before),)
    parent = before if before is not None and started_from(run, before) else None
    return Measurements(
        run=run.path,
        name=run.config.name,
        identity=data.identity,
        trained_on=run.identity,
        parent=run.parent,
        settings=settings,
        description=model.description,
        parameters=sum(w.numel() for w in model.parameters()),
        curve=whole_curve(run, parent),
        noise=noise,
        likelihoods=found,
        samples=drawn,
        costs=(*earlier, Cost(run.config.name, found.test, found.nfe, drawn.nfe)),
        tuned=parent is not None,
        second_order=run.config.objective.second_order
        and not (parent is not None and parent.config.objective.second_order),
        seconds=time.perf_counter() - began,
    )


def started_from(run: Run, before: Run) -> bool:
    """Whether a run was fine-tuned from another: the weights agree, or the folders do."""
    if run.parent is None or run.parent.width is not None:
        return False
    return run.parent.has(before) or Path(run.parent.run).resolve() == before.path.resolve()


def whole_curve(run: Run, parent: Run | None) -> TrainingCurve:
    """The training curve of a run, after that of ``parent`` if it was fine-tuned from it."""
    own = training_curve(run.metrics)
    if parent is None or run.parent is None:
        return own
    return continued(training_curve(parent.metrics), own, run.parent.step)


@dataclass(frozen=True)
class _Parts:
    """What all parts of a report share: data, settings and device."""

    data: Dataset
    settings: ReportSettings
    device: torch.device | str
    net: nn.Module | None

    def check(self, run: Run) -> None:
        """Refuse a run that cannot be measured before any work is done."""
        data, wanted = self.data, run.config.model
        data.expect(wanted.shape, wanted.levels, str(run.path))
        self.model(run)
        if len(data.test) == 0:
            raise InputError(f"{data.identity.name} has no test split: a report needs one")

    def model(self, run: Run) -> DiffusionODE:
        own = isinstance(run.config.net, CustomNetConfig)
        return run.model(self.device, self.net if own else None)

    def images(self, count: int) -> Tensor:
        """The first test samples, on the device."""
        return to_tensor(self.data.test[:count]).to(self.device)

    def noise(self, run: Run, model: DiffusionODE) -> NoiseLevels:
        s = self.settings
        x0 = clean_data(self.images(s.level_images), model.levels, torch.float32)
        generator = torch.Generator().manual_seed(s.seed)
        shown = distributions(run, model)
        return measure_noise_levels(model, x0, shown, s.levels, s.level_draws, generator)

    def likelihoods(self, model: DiffusionODE, begin: Progress) -> Likelihoods:
        s = self.settings
        begin("test images")
        calibrated, images = self._calibrated(model), self.images(s.images)
        test, sde = calibrated.value(images), None
        if model.levels is not None:
            sde = sde_bound(model, images, draws=s.sde_draws, seed=s.seed)
        begin("bounds")
        table = calibrated.table(self.images(s.bounds_images))
        begin("uniform starts")
        starts: tuple[BitsPerDim, ...] = ()
        if model.levels is not None:
            starts = calibrated.uniform_starts(self.images(s.start_images), s.starts)
        used = calibrated.calibration
        return Likelihoods(test, images.cpu(), sde, table, starts, used, calibrated.nfe)

    def samples(self, model: DiffusionODE) -> Samples:
        drawn = sample(model, self.settings.samples, seed=self.settings.seed)
        if not drawn.complete:
            raise KeyboardInterrupt  # a report shows all of its samples, or is not written
        return drawn

    def cost(self, run: Run) -> Cost:
        model = self.model(run)
        calibrated = self._calibrated(model)
        value = calibrated.value(self.images(self.settings.images))
        return Cost(run.config.name, value, calibrated.nfe, self.samples(model).nfe)

    def _calibrated(self, model: DiffusionODE) -> CalibratedModel:
        s = self.settings
        return CalibratedModel.calibrate(model, self.images(s.pilot_images), s.tolerance, s.seed)


def distributions(run: Run, model: DiffusionODE) -> dict[str, NoiseLevelDistribution]:
    """Distributions of noise levels to show: uniform, designed, and the run's own if another."""
    ends = model.gamma_min, model.gamma_max
    found: dict[str, NoiseLevelDistribution] = {
        "uniform": UniformGamma(*ends),
        "designed": Designed(model.schedule, *ends),
    }
    own = run.config.objective.density
    if own in ("designed", "uniform-gamma"):
        return found
    density = build_density(own, model)
    if density.learns:
        saved = load_latest(run.checkpoints, lambda text: None)
        if saved is None:
            return found  # it is learned with the network and stored in checkpoints only
        learned = {k.removeprefix("density/"): v for k, v in saved[1].items() if "density/" in k}
        density.learned.load_state_dict({k: learned[k] for k in density.learned.state_dict()})
        density.learned.requires_grad_(False)
    return {**found, own: density}
