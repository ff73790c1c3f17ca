r"""What grey levels alone say about the noise, in closed form (math.md: quantization).

Let every level from black to white be equally likely. A pixel at position :math:`u`, in bins, with
noise of :math:`s` bins is then a sum of equal bells around the levels :math:`0, \dots, L-1`, and
the best prediction of its noise is

.. math:: \hat\epsilon_q = \frac{u - \mathbb E[j\,|\,u]}{s},
          \qquad p(j\,|\,u)\propto e^{-(u-j)^2/2s^2}.

Noise below a bin shows the single levels, wider noise only where they end. Added to a network's
prediction it leaves the smooth part of the density to be learned; without it, networks learn
this function, steep and the same for all images, from data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from idode.diffusion.schedules import Schedule
from idode.errors import InputError
from idode.numerics import like

__all__ = ["QUANTIZATIONS", "Quantization"]

# Noise, in bins and as a share of all levels, at which the term has faded to 1/e. In wide noise
# the neighbours of a pixel say more than its levels do, and a network would have to undo the term.
FADE, FADE_SHARE = 3.0, 1 / 6
# Levels on either side of the nearest. Another nearest one makes the term jump by what is out of
# reach, which no divergence sees: 24 keep that below 1e-5 nats a dimension along the clock.
REACH = 24


@dataclass(frozen=True)
class Quantization:
    """Data on equally likely grey levels.

    Args:
        levels: Their number.
    """

    levels: int

    def noise(self, x: Tensor, gamma: Tensor, schedule: Schedule) -> Tensor:
        r""":math:`e^{-(s/s_0)^2}\hat\epsilon_q` of states ``(B, *)``.

        ``gamma`` is ``()``, ``(B,)`` or, where dimensions differ, ``(B, *)``.
        """
        scale, last = self.levels / 2, self.levels - 1
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # half precision misses bins
        u = (wide * like(torch.exp(-schedule.log_alpha(gamma)), wide) + 1) * scale - 0.5
        s = like(torch.exp(gamma / 2) * scale, wide)
        nearest = torch.round(u).clamp(0, last).detach()
        away, precision = u - nearest, s**-2
        slope = away * precision
        total, mean = torch.ones_like(u), torch.zeros_like(u)  # relative to the nearest bell
        for j in _neighbours(last):
            exists = nearest >= -j if j < 0 else nearest <= last - j
            height = torch.add(-j * j / 2 * precision, slope, alpha=j)
            bell = torch.exp(height.where(exists, -torch.inf))
            total, mean = total + bell, mean.add(bell, alpha=j)
        faded = torch.exp(-((s / min(FADE, FADE_SHARE * self.levels)) ** 2))
        return (faded * (away - mean / total) / s).to(x.dtype)


def _neighbours(last: int) -> list[int]:
    """Distances of the other levels that are within reach."""
    reach = min(REACH, last)
    return [j for j in range(-reach, reach + 1) if j]


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
