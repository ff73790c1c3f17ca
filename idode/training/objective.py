"""The training loss of a configuration: batches of noised data and their per-sample losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from idode.data.augmentation import augment
from idode.diffusion.clocks import CLOCKS
from idode.diffusion.histogram import Histogram
from idode.diffusion.model import Condition, DiffusionODE
from idode.diffusion.noise_levels import (
    Adaptive,
    Designed,
    NoiseLevelDistribution,
    Times,
    UniformGamma,
    UniformTime,
    quantiles,
)
from idode.diffusion.objectives import Losses, first_order, second_order, second_order_score
from idode.diffusion.other_noise_levels import NormalGamma, SoftTruncation, above
from idode.diffusion.schedules import VariancePreserving
from idode.errors import InputError, choose
from idode.likelihood.dequantization import Bins, Uniform, centres, uniform_start
from idode.numerics import home_of_float64, moved
from idode.ode.divergence import Rademacher
from idode.runs.config import ObjectiveConfig
from idode.runs.objective_config import NO_REGULARISATION, SimulationConfig
from idode.training.simulation import simulated

__all__ = ["DATA", "METHODS", "SECOND_ORDERS", "WEIGHTINGS", "Batch", "Objective", "build_density"]

Weighting = Callable[[Times], Callable[[Tensor], Tensor] | None]

WEIGHTINGS: dict[str, Weighting] = {
    "likelihood": lambda times: None,
    # The squared error of the prediction without a weight, averaged over the drawn levels: the
    # density, which every estimate is divided by, cancels.
    "simple": lambda times: lambda gamma: times.density,
}


Noise = Callable[[], Tensor]
"""Draws uniform numbers of the shape of the data; called by those who need them only."""


def _uniform(pixels: Tensor, levels: int, noise: Noise) -> Tensor:
    """Uniform noise in the bins, wherever on a clock they are."""
    bins = Bins(VariancePreserving(), 0.0, levels)
    return Uniform().draw(pixels, noise(), bins).x


DATA: dict[str, Callable[[Tensor, int, Noise], Tensor]] = {
    "centres": lambda pixels, levels, noise: centres(pixels, levels),
    "uniform": _uniform,
}


def build_density(
    name: str, model: DiffusionODE, generator: torch.Generator | None = None
) -> NoiseLevelDistribution:
    """The distribution of noise levels called ``name``, between the ends of the model."""
    ends = model.gamma_min, model.gamma_max
    kind, _, clock = name.partition(":")
    if kind == "uniform-time":
        return UniformTime(choose("clock", clock, CLOCKS), *ends)
    densities: dict[str, Callable[[], NoiseLevelDistribution]] = {
        "designed": lambda: Designed(model.schedule, *ends),
        "uniform-gamma": lambda: UniformGamma(*ends),
        "normal-gamma": lambda: NormalGamma(*ends),
        "adaptive": lambda: Adaptive(*ends, generator=generator),
        "histogram": lambda: Histogram(*ends),
    }
    if name not in densities:
        raise InputError(
            f"no time density called {name!r}: choose one of {', '.join(densities)}, "
            f"uniform-time:CLOCK with CLOCK one of {', '.join(CLOCKS)}"
        )
    return densities[name]()


@dataclass(frozen=True)
class Batch:
    """Clean data, noise and noise levels of the samples of one process."""

    x0: Tensor  # (B, *)
    eps: Tensor  # (B, *)
    times: Times  # (B,) each, float64
    condition: Condition  # keyword arguments of the network, (B, *) each
    probes: tuple[Tensor, ...]  # (B, *) each
    all_times: Times  # those of the global batch, on the CPU
    uniforms: Tensor  # (B, m) draw the codes of a learned path; m = 0 without one

    def part(self, rows: slice, device: torch.device) -> Batch:
        """Some rows, on a device; the copies of pinned rows wait for nothing."""
        clock = home_of_float64(device)

        def take(x: Tensor, to: torch.device = device) -> Tensor:
            return moved(x[rows], to)

        return Batch(
            take(self.x0),
            take(self.eps),
            self.times.each(lambda x: take(x, clock)),
            {name: take(value) for name, value in self.condition.items()},
            tuple(map(take, self.probes)),
            self.all_times,
            take(self.uniforms),
        )

    def pinned(self) -> Batch:
        """The same in page-locked memory, from which a GPU copies by itself."""
        return Batch(
            self.x0.pin_memory(),
            self.eps.pin_memory(),
            self.times.each(Tensor.pin_memory),
            {name: value.pin_memory() for name, value in self.condition.items()},
            tuple(p.pin_memory() for p in self.probes),
            self.all_times,
            self.uniforms.pin_memory(),
        )


def _paired(x: Tensor) -> Tensor:
    """Each even row twice: of levels spread evenly these are half as many, spread evenly."""
    return x[::2].repeat_interleave(2, dim=0)


def _opposed(eps: Tensor) -> Tensor:
    """The noise of each even row, followed by minus itself."""
    sign = torch.tensor([1.0, -1.0]).repeat(len(eps) // 2)
    return _paired(eps) * sign.reshape(-1, *[1] * (eps.ndim - 1))


@dataclass(frozen=True)
class Objective:
    """The loss that is minimised; ``density`` may have parameters of its own."""

    config: ObjectiveConfig
    density: NoiseLevelDistribution
    simulation: SimulationConfig = NO_REGULARISATION
    bits: int = 0  # of the code of each sample, where the noise path is learned

    def draw(
        self,
        samples: Tensor,
        levels: int | None,
        generator: torch.Generator,
        first: int = 0,
        count: int | None = None,
    ) -> Batch:
        """Noise for data ``(B, *)``, on the CPU.

        The stream of random numbers is that of the global batch, so that noise levels are spread
        evenly over all of it and nothing depends on the number of processes; but a process
        augments, places and keeps its own rows only.

        Args:
            samples: Rows of a global batch.
            levels: Levels of the data; ``None`` where it is continuous.
            generator: Generator of the global batch.
            first: Place of the first row in it.
            count: Its size; by default that of ``samples``.
        """
        count = len(samples) if count is None else count
        here, whole = slice(first, first + len(samples)), (count, *samples.shape[1:])
        condition = {}
        if self.config.augment:
            samples, condition["flag"] = augment(samples, generator, first, count)
        place = choose("way to place data", self.config.data, DATA)
        noise: Noise = lambda: torch.rand(whole, generator=generator)[here]  # noqa: E731
        x0 = samples.to(torch.float32) if levels is None else place(samples, levels, noise)
        times = self._times(count, generator)
        eps = torch.randn(whole, generator=generator)
        if self.config.antithetic:
            assert first % 2 == 0 == len(samples) % 2  # the trainer has seen to it
            x0, times, eps = _paired(x0), times.each(_paired), _opposed(eps)
            condition = {name: _paired(value) for name, value in condition.items()}
        own, eps = times.each(lambda x: x[here]), eps[here]
        probes: tuple[Tensor, ...] = ()
        if self.config.differentiates:
            like_all = x0.new_empty(()).expand(whole)
            probes = Rademacher().draw(self.config.probes, like_all, generator)[:, here].unbind()
        uniforms = torch.rand(count, self.bits, generator=generator)[here]
        if self.config.antithetic:  # a pair differs by the sign of its noise alone
            uniforms = _paired(uniforms)
        return Batch(x0, eps, own, condition, probes, times, uniforms)

    @torch.no_grad()
    def _times(self, n: int, generator: torch.Generator) -> Times:
        t = quantiles(n, generator, self.config.low_discrepancy)
        if self.config.truncation is None:
            return self.density.at(t)
        ends = self.density.gamma_min, self.density.gamma_max
        u = torch.rand((), generator=generator, dtype=torch.float64)
        start = SoftTruncation(*ends, self.config.truncation).quantile(u)
        return above(self.density, start, t)

    def losses(self, model: DiffusionODE, batch: Batch) -> Losses:
        """Per-sample terms, before the division by the density."""
        return choose("method", self.config.method, METHODS)(self, model, batch)


def _matching(objective: Objective, model: DiffusionODE, batch: Batch) -> Losses:
    config = objective.config
    if config.order == 2:
        return choose("second order", config.second, SECOND_ORDERS)(config, model, batch)
    weight = choose("weighting", config.weighting, WEIGHTINGS)(batch.times)
    given = batch.x0, batch.eps, batch.times.gamma
    code = model.path.encode(batch.x0, lambda n: batch.uniforms)
    first = first_order(model, *given, weight, code.joined(batch.condition))
    # No noise level was drawn for the code: the density that every loss is divided by cancels.
    first = first - (code.mean_weight * batch.times.density).to(first)
    return Losses(first, torch.zeros_like(first))


def _simulation(objective: Objective, model: DiffusionODE, batch: Batch) -> Losses:
    """Uniformly dequantized pixels start where evaluation starts them; bins have a width."""
    start, width = model.gamma_min, 1.0
    if model.levels is not None:
        start, width = max(start, uniform_start(model.levels)), 2 / model.levels
    nats = simulated(
        model,
        batch.x0,
        torch.stack(batch.probes),
        objective.density,
        objective.simulation,
        start=start,
        condition=batch.condition,
    )
    bound = nats - batch.x0[0].numel() * math.log(width)
    # No noise level was drawn: the density that every loss is divided by cancels.
    first = (bound * batch.times.density).to(batch.x0.dtype)
    return Losses(first, torch.zeros_like(first))


METHODS: dict[str, Callable[[Objective, DiffusionODE, Batch], Losses]] = {
    "matching": _matching,
    "simulation": _simulation,
}


def _flow_matching(config: ObjectiveConfig, model: DiffusionODE, batch: Batch) -> Losses:
    given = batch.x0, batch.eps, batch.times.gamma, torch.stack(batch.probes)
    return second_order(model, *given, config.unbiased, batch.condition)


def _score_matching(config: ObjectiveConfig, model: DiffusionODE, batch: Batch) -> Losses:
    given = batch.x0, batch.eps, batch.times.gamma, torch.stack(batch.probes)
    return second_order_score(model, *given, batch.condition)


SECOND_ORDERS: dict[str, Callable[[ObjectiveConfig, DiffusionODE, Batch], Losses]] = {
    "flow-matching": _flow_matching,
    "score-matching": _score_matching,
}
