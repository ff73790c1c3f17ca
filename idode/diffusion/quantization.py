r"""What quantization alone says about the noise, in closed form (math.md: quantization).

Let every grey level be equally likely. A pixel at position :math:`u`, in bins, with noise of
:math:`s` bins is then a sum of equal bells around the whole numbers, and the best prediction of
its noise is

.. math:: \hat\epsilon_q = -s\,\partial_u\log\theta_s(u)
          = \frac{u - \mathbb E[j\,|\,u]}{s},
          \qquad \theta_s(u) = \sum_j e^{-(u-j)^2/2s^2}.

It vanishes where the noise is wider than a bin. Added to a network's prediction it leaves the
smooth part of the density to be learned; without it, networks see bins through Fourier features
and learn this function, steep and the same for all images, from data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from idode.diffusion.schedules import Schedule
from idode.errors import InputError
from idode.numerics import like

__all__ = ["QUANTIZATIONS", "Quantization"]

# Up to this noise, in bins, five bells are exact to 1e-9; above it so are two harmonics.
FEW_BELLS = 0.35
NEIGHBOURS = (-2.0, -1.0, 1.0, 2.0)


@dataclass(frozen=True)
class Quantization:
    """Data on equally likely grey levels.

    Args:
        levels: Their number.
    """

    levels: int

    def noise(self, x: Tensor, gamma: Tensor, schedule: Schedule) -> Tensor:
        r""":math:`\hat\epsilon_q` of states ``(B, *)``.

        ``gamma`` is ``()``, ``(B,)`` or, where dimensions differ, ``(B, *)``. Levels continue
        beyond black and white: for pixels at either end the network has to correct that.
        """
        scale = self.levels / 2
        u = (x * like(torch.exp(-schedule.log_alpha(gamma)), x) + 1) * scale - 0.5
        s = like(torch.exp(gamma / 2) * scale, x)
        return torch.where(s <= FEW_BELLS, _bells(u, s), _harmonics(u, s))


def _bells(u: Tensor, s: Tensor) -> Tensor:
    """The nearest level and two on either side of it, relative to the nearest."""
    away = u - torch.round(u).detach()
    s = s.clamp_max(FEW_BELLS)  # elsewhere the other formula is used
    total, mean = torch.ones_like(u), torch.zeros_like(u)
    for j in NEIGHBOURS:
        bell = torch.exp((away - j / 2) * j / s**2)
        total, mean = total + bell, mean + j * bell
    return (away - mean / total) / s


def _harmonics(u: Tensor, s: Tensor) -> Tensor:
    r"""Poisson's sum, :math:`\theta\propto 1 + 2\sum_k e^{-2\pi^2s^2k^2}\cos 2\pi ku`."""
    s = s.clamp_min(FEW_BELLS)
    angle = 2 * math.pi * (u - torch.round(u).detach())  # large angles lose digits
    first = torch.exp(-2 * math.pi**2 * s**2)
    second = first**4
    theta = 1 + 2 * first * torch.cos(angle) + 2 * second * torch.cos(2 * angle)
    slope = first * torch.sin(angle) + 2 * second * torch.sin(2 * angle)
    return 4 * math.pi * s * slope / theta


def _closed_form(levels: int | None) -> Quantization:
    if levels is None:
        raise InputError(
            "quantization=closed-form needs grey levels, and the data is continuous: choose "
            "learned"
        )
    return Quantization(levels)


QUANTIZATIONS: dict[str, Callable[[int | None], Quantization | None]] = {
    "learned": lambda levels: None,
    "closed-form": _closed_form,
}
