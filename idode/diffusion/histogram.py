r"""A distribution of noise levels that follows the losses so far (math.md: histogram).

:math:`\mathbb E[(L/p)^2]` is least for :math:`p \propto \sqrt{\mathbb E[L^2\mid\gamma]}`. A
histogram of squared losses estimates the root directly, where :class:`Adaptive` learns a monotone
network by gradients (Nichol and Dhariwal, 2021, for the steps of a discrete model).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from idode.diffusion.noise_levels import NoiseLevelDistribution, Times
from idode.numerics import check_range

__all__ = ["Histogram"]

BINS = 40
KEPT = 0.98  # of the past of a bin, for each loss that it gets
FEWEST = 2  # losses in every bin before any is believed
FLOOR = 0.05  # share spread over all bins, so that none is ever lost from sight


class Histogram(nn.Module, NoiseLevelDistribution):
    """Constant in each of equal bins, and uniform until every bin has seen some losses.

    Args:
        gamma_min: Lower end.
        gamma_max: Upper end.
    """

    squares: Tensor
    counts: Tensor

    def __init__(self, gamma_min: float, gamma_max: float) -> None:
        super().__init__()
        check_range(gamma_min, gamma_max)
        self.gamma_min, self.gamma_max = gamma_min, gamma_max
        self.register_buffer("squares", torch.zeros(BINS, dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(BINS, dtype=torch.float64))

    @property
    def learned(self) -> nn.Module:
        """All of it."""
        return self

    def learn(self, times: Times, losses: Tensor) -> None:
        """Take up the losses of a batch before their division by the density, ``(B,)``."""
        place = self._bin(times.gamma)
        squared = losses.detach().to(self.squares).square()
        hits = torch.zeros_like(self.counts).index_add_(0, place, torch.ones_like(squared))
        sums = torch.zeros_like(self.squares).index_add_(0, place, squared)
        self.counts += hits
        # A bin forgets by its own losses, so that a rare one keeps what it knows. The first
        # ones are averaged evenly.
        share = torch.maximum(1 - KEPT**hits, hits / self.counts.clamp(min=1))
        self.squares.lerp_(sums / hits.clamp(min=1), share)

    def masses(self) -> Tensor:
        """The probability of each bin."""
        even = torch.full_like(self.squares, 1 / BINS)
        if bool((self.counts < FEWEST).any()) or not bool(self.squares.sum() > 0):
            return even
        root = self.squares.sqrt()
        return torch.lerp(root / root.sum(), even, FLOOR)

    def density(self, gamma: Tensor) -> Tensor:
        """The mass of the bin over its width."""
        width = (self.gamma_max - self.gamma_min) / BINS
        return self.masses().to(gamma)[self._bin(gamma)] / width

    def sf(self, gamma: Tensor) -> Tensor:
        """Mass above ``gamma``."""
        return 1 - self.cdf(gamma)

    def cdf(self, gamma: Tensor) -> Tensor:
        """Whole bins below, and a part of one."""
        masses = self.masses().to(gamma)
        place = self._bin(gamma)
        inside = self._share(gamma) * BINS - place
        return (masses.cumsum(0) - masses)[place] + inside * masses[place]

    def quantile(self, t: Tensor) -> Tensor:
        """The inverse: every mass is positive."""
        masses = self.masses().to(t)
        total = masses.cumsum(0)
        place = torch.searchsorted(total, t, right=True).clamp(max=BINS - 1)
        inside = (t - (total - masses)[place]) / masses[place]
        share = (place + inside.clamp(0, 1)) / BINS
        return self.gamma_min + share * (self.gamma_max - self.gamma_min)

    def isf(self, mass: Tensor) -> Tensor:
        """Read from the other end."""
        return self.quantile(1 - mass)

    def _bin(self, gamma: Tensor) -> Tensor:
        """Number of the bin, the ends included."""
        return (self._share(gamma) * BINS).long().clamp(0, BINS - 1)

    def _share(self, gamma: Tensor) -> Tensor:
        return (gamma - self.gamma_min) / (self.gamma_max - self.gamma_min)
