r"""How far the end of the paths is from the prior."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from idode.diffusion.model import DiffusionODE

__all__ = ["prior_mismatch"]

SIGNIFICANT = 4  # standard errors by which latents may differ from the prior by chance


def prior_mismatch(model: DiffusionODE, x: Tensor, z: Tensor, start: float) -> float:
    r"""Mean square error of log p, in nats², for ending at ``gamma_max`` before all is noise.

    If the end of the path has mean :math:`\mu` and variance :math:`1 + \delta` in units of the
    prior, log p misses :math:`\sum\mu^2 + \delta^2/2` in the mean square. What is left of the
    data at the end tells both; so do the latents themselves, where the batch is large enough for
    their mean and variance to differ from the prior's by more than chance. The mean of log p
    misses half of this.

    Args:
        model: The diffusion ODE.
        x: States ``(B, *)`` at ``start``; data, or samples of the model.
        z: Their latents ``(B, *)``.
        start: Where the states are.
    """
    begin, end = torch.tensor([start, model.gamma_max], dtype=torch.float64)
    left = x.detach().double().flatten(1) * float(
        torch.exp(-end / 2 - model.schedule.log_alpha(begin))
    )
    of_data = float((left.mean(0) ** 2 + left.var(0, correction=0) ** 2 / 2).sum())
    count, dim = left.shape
    u = z.detach().double().flatten(1) * float(torch.exp(-model.schedule.log_sigma(end)))
    if count < 2:
        return of_data
    pairs = count * (count - 1)
    of_latents = sum(
        share * float((w.sum(0) ** 2 - (w**2).sum(0)).sum()) / pairs  # unbiased: distinct pairs
        for w, share in ((u, 1.0), (u**2 - 1, 0.5))
    )
    chance = 2 * math.sqrt(dim / pairs)
    return max(of_data, of_latents if of_latents > SIGNIFICANT * chance else 0.0)
