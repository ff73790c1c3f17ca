r"""Errors of the network at each noise level, and the variance of the loss they cause.

All figures use the same draws. With :math:`L = \frac12\|\epsilon - \hat\epsilon\|^2` at
:math:`\gamma` known (on a learned path :math:`\frac12\sum_i\gamma_i'(\epsilon_i -
\hat\epsilon_i)^2`), the variance of :math:`L/p` is that of :math:`L` over :math:`p^2` for any
density :math:`p`, so the densities are compared on the same noise (math.md: loss-variance).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from idode.diffusion.model import DiffusionODE
from idode.diffusion.noise_levels import NoiseLevelDistribution, UniformGamma
from idode.diffusion.objectives import squared_errors
from idode.diffusion.predictors import NORMALIZED_VELOCITY
from idode.numerics import weighted_sum

__all__ = ["DensityCurve", "NoiseLevels", "measure_noise_levels"]

BATCH = 256


@dataclass(frozen=True)
class DensityCurve:
    """A distribution of noise levels and the variance of the loss under it."""

    name: str
    t: Tensor  # (T,) in [0, 1]
    gamma: Tensor  # (T,) the inverse distribution function at t
    variance: Tensor  # (G,) of one draw of L / p at each level, nats squared
    total: float  # over data, noise and level, nats squared


@dataclass(frozen=True)
class NoiseLevels:
    """Squared errors of the network over the clock, and the variance under each distribution."""

    gamma: Tensor  # (G,) equally spaced
    time: Tensor  # (G,) gamma scaled to [0, 1]
    noise_error: Tensor  # (G,) mean square error of the predicted noise, per dimension
    velocity_error: Tensor  # (G,) the same of the normalised velocity
    densities: tuple[DensityCurve, ...]
    images: int
    draws: int  # of the noise for each image at each level


def measure_noise_levels(
    model: DiffusionODE,
    x0: Tensor,
    densities: Mapping[str, NoiseLevelDistribution],
    levels: int,
    draws: int,
    generator: torch.Generator,
) -> NoiseLevels:
    """Measure at ``levels`` equally spaced noise levels.

    Args:
        model: The diffusion ODE.
        x0: Clean data ``(N, *)`` on the model's scale and device.
        densities: Distributions of noise levels by the name they are shown under.
        levels: Noise levels G.
        draws: Draws of the noise for each row of ``x0`` at each level.
        generator: Generator of the noise, on the CPU.
    """
    dim, span = x0[0].numel(), model.gamma_max - model.gamma_min
    middles = (torch.arange(levels, dtype=torch.float64) + 0.5) / levels
    gamma = UniformGamma(model.gamma_min, model.gamma_max).quantile(middles)
    drawn = torch.stack([_terms(model, x0, g.expand(draws * len(x0)), generator) for g in gamma])
    nats, noise, velocity = drawn.mean(2).unbind(1)  # (G,) each
    own, loss = drawn[:, 0].var(1), float(nats.mean()) * span
    t = torch.linspace(0, 1, 257, dtype=torch.float64)
    curves = []
    for name, density in densities.items():
        with torch.no_grad():
            p, quantile = density.density(gamma), density.quantile(t)
        # The levels are the middles of equal pieces of the clock: a mean is an integral.
        square = float(((own + nats**2) / p).mean()) * span
        curves.append(DensityCurve(name, t, quantile, own / p**2, square - loss**2))
    return NoiseLevels(
        gamma=gamma,
        time=(gamma - model.gamma_min) / span,
        noise_error=noise / dim,
        velocity_error=velocity / dim,
        densities=tuple(curves),
        images=len(x0),
        draws=draws,
    )


@torch.no_grad()
def _terms(model: DiffusionODE, x0: Tensor, gamma: Tensor, generator: torch.Generator) -> Tensor:
    """The loss and the squared errors of noise and velocity, float64 ``(3, B)`` on the CPU.

    Rows of ``x0`` are taken in turn, one for each entry of ``gamma``. On a learned path the loss
    is weighted by the slope of the path, and the errors are not.
    """
    found = []
    for lo in range(0, len(gamma), BATCH):
        clock = gamma[lo : lo + BATCH].to(x0.device)
        clean = x0[torch.arange(lo, lo + len(clock), device=x0.device) % len(x0)]
        eps = torch.randn(clean.shape, generator=generator).to(clean)
        code = model.path.encode(clean, _uniforms(len(clean), generator))
        point, square = squared_errors(model, clean, eps, clock, code.condition)
        own, theirs = (
            predictor.likelihood_weight(model.schedule, point.level)
            for predictor in (model.predictor, NORMALIZED_VELOCITY)
        )
        weights = point.per_clock(own), 2 * own, own / theirs
        found.append(torch.stack([weighted_sum(w, square).cpu() for w in weights]))
    return torch.cat(found, dim=1).double()


def _uniforms(rows: int, generator: torch.Generator) -> Callable[[int], Tensor]:
    return lambda count: torch.rand(rows, count, generator=generator)
