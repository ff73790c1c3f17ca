"""How noisy the training loss is, level by level and in total (math.md: loss-variance)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from idode.diffusion.noise_levels import NoiseLevelDistribution

__all__ = ["LossVariance", "loss_variance"]

Loss = Callable[[Tensor, torch.Generator | None], Tensor]


@dataclass(frozen=True)
class LossVariance:
    """Variance of one draw of the loss, ``L / p``, in nats squared."""

    gamma: Tensor  # (G,) noise levels
    mean: Tensor  # (G,) mean of L there, before dividing by p
    per_level: Tensor  # (G,) variance of L / p over data and noise
    loss: float  # integral of the mean
    total: float  # variance over data, noise and time
    total_error: float  # its standard error


def loss_variance(
    loss: Loss,
    density: NoiseLevelDistribution,
    levels: int = 64,
    draws: int = 1024,
    generator: torch.Generator | None = None,
) -> LossVariance:
    r"""Measure the Monte-Carlo variance of :math:`L(x_0, \epsilon, \gamma)/p(\gamma)`.

    The levels are the quantiles of the density at :math:`(i + \frac12)/G`, so their plain
    average is the expectation over time: the total is :math:`\mathbb E[(L/p)^2] - J^2`.

    Args:
        loss: Called as ``loss(gamma, generator)``: draws data and noise of its own for each
            entry of ``gamma`` ``(B,)`` and returns the unweighted losses ``(B,)``.
        density: Where the times come from.
        levels: Noise levels G.
        draws: Draws of data and noise at each level.
        generator: Randomness.
    """
    t = (torch.arange(levels, dtype=torch.float64) + 0.5) / levels
    with torch.no_grad():
        gamma = density.quantile(t)
        p = density.density(gamma)
        drawn = torch.stack(
            [loss(g.expand(draws), generator).double() for g in gamma]
        )  # (levels, draws)
    scaled = drawn / p[:, None]
    mean = scaled.mean()
    squares = ((scaled - mean) ** 2).mean(0)  # (draws,), each over all levels
    return LossVariance(
        gamma=gamma,
        mean=drawn.mean(1),
        per_level=scaled.var(1),
        loss=float(mean),
        total=float(squares.mean()),
        total_error=float(squares.std() / draws**0.5),
    )
