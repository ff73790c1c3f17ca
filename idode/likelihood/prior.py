r"""How far the end of the paths is from the prior."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from idode.diffusion.model import DiffusionODE
from idode.numerics import double

__all__ = ["latent_moments", "prior_cost", "prior_mismatch"]


def prior_mismatch(model: DiffusionODE, x: Tensor, start: float) -> float:
    r"""Mean square error of log p, in nats², for ending at ``gamma_max`` before all is noise.

    If the noised data at the end has mean :math:`\mu` and variance :math:`1 + \delta` in units
    of the prior, log p misses :math:`\sum\mu^2 + \delta^2/2` in the mean square, and the mean of
    log p half of it. Both are what is left of the data there, :math:`e^{-\gamma/2}x_0`.

    Args:
        model: The diffusion ODE.
        x: States ``(B, *)`` at ``start``: a batch of data, or samples of the model.
        start: Where the states are.
    """
    begin, end = torch.tensor([start, model.gamma_max], dtype=torch.float64)
    scale = float(torch.exp(-end / 2 - model.schedule.log_alpha(begin)))
    left = double(x.detach()).flatten(1) * scale
    return float((left.mean(0) ** 2 + left.var(0, correction=0) ** 2 / 2).sum())


def prior_cost(mismatch: float, dim: int) -> float:
    """Bits/dim that the mean of log p misses: half of :func:`prior_mismatch`.

    Args:
        mismatch: In nats².
        dim: Dimensions of a sample.
    """
    return mismatch / 2 / (dim * math.log(2))


def latent_moments(model: DiffusionODE, z: Tensor) -> tuple[float, float]:
    """Mean and variance over all latents and dimensions, in units of the prior: 0 and 1 there.

    Latents of data differ from the prior where the clock ends too early, and where the network
    does not fit the data: the first is an error of log p, the second a property of the model.
    """
    end = torch.tensor(model.gamma_max, dtype=torch.float64)
    u = double(z.detach()) * float(torch.exp(-model.schedule.log_sigma(end)))
    return float(u.mean()), float(u.var(correction=0))
