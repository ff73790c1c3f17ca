r"""Errors of the network at each noise level, and the variance of the loss they cause.

All figures use the same draws. With :math:`L = \frac12\|\epsilon - \hat\epsilon\|^2` at
:math:`\gamma` known, the variance of :math:`L/p` is that of :math:`L` over :math:`p^2` for any
density :math:`p`, so the densities are compared on the same noise (math.md: loss-variance).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from idode.diffusion.model import DiffusionODE
from idode.diffusion.noise_levels import NoiseLevelDistribution, UniformGamma
from idode.diffusion.objectives import first_order
from idode.diffusion.predictors import NORMALIZED_VELOCITY
from idode.studies.loss_variance import loss_variance

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
    """Squared errors of the network over gamma, and the variance under each distribution."""

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
    uniform = UniformGamma(model.gamma_min, model.gamma_max)

    def uniforms(rows: int, generator: torch.Generator | None) -> Callable[[int], Tensor]:
        return lambda count: torch.rand(rows, count, generator=generator)

    def loss(gamma: Tensor, generator: torch.Generator | None) -> Tensor:
        found = []
        for lo in range(0, len(gamma), BATCH):
            clock = gamma[lo : lo + BATCH].to(x0.device)
            rows = torch.arange(lo, lo + len(clock), device=x0.device) % len(x0)
            eps = torch.randn(x0[rows].shape, generator=generator).to(x0)
            code = model.path.encode(x0[rows], uniforms(len(rows), generator))
            nats = first_order(model, x0[rows], eps, clock, condition=code.condition)
            found.append(nats.cpu())
        return torch.cat(found)

    seen = loss_variance(loss, uniform, levels, draws * len(x0), generator)
    gamma, dim, span = seen.gamma, x0[0].numel(), model.gamma_max - model.gamma_min
    own = seen.per_level * uniform.density(gamma) ** 2  # of L itself
    weight = NORMALIZED_VELOCITY.likelihood_weight(model.schedule, gamma)
    t = torch.linspace(0, 1, 257, dtype=torch.float64)
    curves = []
    for name, density in densities.items():
        with torch.no_grad():
            p, quantile = density.density(gamma), density.quantile(t)
        # The levels are the middles of equal pieces of the clock: a mean is an integral.
        square = float(((own + seen.mean**2) / p).mean()) * span
        curves.append(DensityCurve(name, t, quantile, own / p**2, square - seen.loss**2))
    return NoiseLevels(
        gamma=gamma,
        time=(gamma - model.gamma_min) / span,
        noise_error=2 * seen.mean / dim,
        velocity_error=seen.mean / weight / dim,
        densities=tuple(curves),
        images=len(x0),
        draws=draws,
    )
