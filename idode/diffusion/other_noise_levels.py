r"""Which noise levels other systems train on: EDM's normal, Soft Truncation's random start."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.special import ndtr, ndtri

from idode.diffusion.clocks import CLOCKS, Clock
from idode.diffusion.noise_levels import NoiseLevelDistribution, Times
from idode.errors import InputError
from idode.numerics import check_range

__all__ = ["NormalGamma", "SoftTruncation", "above"]


@dataclass(frozen=True)
class NormalGamma(NoiseLevelDistribution):
    r"""EDM's log-normal noise, cut to the range: :math:`\gamma = 2\log\sigma` is normal.

    EDM draws :math:`\log\sigma` with mean -1.2 and standard deviation 1.2.
    """

    gamma_min: float
    gamma_max: float
    mean: float = -2.4
    std: float = 2.4

    def __post_init__(self) -> None:
        check_range(self.gamma_min, self.gamma_max)

    def _tail(self, gamma: Tensor) -> Tensor:
        tail: Tensor = ndtr((self.mean - gamma) / self.std)
        return tail

    def _ends(self, like: Tensor) -> tuple[Tensor, Tensor]:
        ends = torch.tensor([self.gamma_min, self.gamma_max], dtype=like.dtype, device=like.device)
        below, above = self._tail(ends)
        return above, below - above

    def density(self, gamma: Tensor) -> Tensor:
        """The normal's, over its mass inside the range."""
        _, total = self._ends(gamma)
        z = (gamma - self.mean) / self.std
        return torch.exp(-(z**2) / 2) / (math.sqrt(2 * math.pi) * self.std * total)

    def sf(self, gamma: Tensor) -> Tensor:
        """Share of the mass inside the range that is above ``gamma``."""
        above, total = self._ends(gamma)
        return (self._tail(gamma) - above) / total

    def isf(self, mass: Tensor) -> Tensor:
        """Inverse of the mass above, by the quantile of the normal."""
        above, total = self._ends(mass)
        gamma: Tensor = self.mean - self.std * ndtri(above + mass * total)
        return gamma.clamp(self.gamma_min, self.gamma_max)


@dataclass(frozen=True)
class SoftTruncation:
    r"""A prior over the smallest time of a batch: :math:`P(\tau) \propto \tau^{-k}`.

    Bounded by the ends of the clock, in ScoreSDE's time, as in its paper. A loss over the noise
    levels above a random start weighs each of them by the probability that the start is below
    it (math.md: soft-truncation).

    Args:
        gamma_min: Of the model.
        gamma_max: Of the model.
        power: The exponent k, 0 or more; the larger, the rarer a late start.
        clock: Whose time :math:`\tau` is.
    """

    gamma_min: float
    gamma_max: float
    power: float = 1.0
    clock: Clock = CLOCKS["linear-beta"]

    def __post_init__(self) -> None:
        check_range(self.gamma_min, self.gamma_max)
        if not (self.power >= 0 and math.isfinite(self.power)):
            raise InputError(f"truncation: must be at least 0 and finite, got {self.power}")

    def _mass(self, time: Tensor) -> Tensor:
        """An antiderivative of the unnormalised prior."""
        rest = 1 - self.power
        mass: Tensor = torch.log(time) if rest == 0 else time**rest / rest
        return mass

    def _ends(self) -> Tensor:
        ends = torch.tensor([self.gamma_min, self.gamma_max], dtype=torch.float64)
        return self._mass(self.clock.time(ends))

    def cdf(self, gamma: Tensor) -> Tensor:
        r""":math:`P(\gamma_s \le \gamma)`, the weight a noise level has on average."""
        lo, hi = self._ends()
        share: Tensor = (self._mass(self.clock.time(gamma)) - lo) / (hi - lo)
        return share

    def quantile(self, u: Tensor) -> Tensor:
        """Inverse of :meth:`cdf`, for uniform numbers ``u``."""
        lo, hi = self._ends()
        mass, rest = lo + u * (hi - lo), 1 - self.power
        time: Tensor = torch.exp(mass) if rest == 0 else (mass * rest) ** (1 / rest)
        return self.clock.gamma(time).clamp(self.gamma_min, self.gamma_max)


def above(density: NoiseLevelDistribution, start: Tensor, t: Tensor) -> Times:
    """Times from a density cut to what is above ``start``, ``()``, at uniform numbers ``t``."""
    left = density.sf(start)
    gamma = density.isf((1 - t) * left)
    return Times(t, gamma, density.density(gamma) / left)
