r"""Densities over the clock, from which training draws its noise levels (math.md: importance).

An integral over :math:`\gamma` is estimated at random times, :math:`\int L\,\mathrm d\gamma =
\mathbb E_{\gamma\sim p}[L/p]`; the density decides the variance and nothing else.

A density is defined from the noisy end: :meth:`NoiseLevelDistribution.sf` is the mass above
:math:`\gamma`. Designed densities fade like :math:`e^{-\gamma}` there, and a mass counted from
zero keeps the digits that ``1 - cdf`` would lose.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idode.diffusion.clocks import Clock
from idode.diffusion.schedules import Schedule
from idode.numerics import check_range, increasing_root

__all__ = [
    "Adaptive",
    "Designed",
    "NoiseLevelDistribution",
    "Times",
    "UniformGamma",
    "UniformTime",
    "quantiles",
]


def quantiles(
    n: int, generator: torch.Generator | None = None, low_discrepancy: bool = True
) -> Tensor:
    r"""``n`` uniform numbers in [0, 1), float64.

    Low discrepancy: :math:`(u + i/n) \bmod 1` with one ``u`` for the batch, so that each batch
    covers every noise level. Each number alone is still uniform, so estimates stay unbiased.
    """
    device = torch.device("cpu") if generator is None else generator.device
    count = 1 if low_discrepancy else n
    u = torch.rand(count, generator=generator, dtype=torch.float64, device=device)
    if not low_discrepancy:
        return u
    return torch.remainder(u + torch.arange(n, dtype=torch.float64, device=device) / n, 1.0)


@dataclass(frozen=True)
class Times:
    """Noise levels for a batch: divide a loss at ``gamma`` by ``density``."""

    t: Tensor  # (B,) uniform in [0, 1)
    gamma: Tensor  # (B,)
    density: Tensor  # (B,)

    def each(self, change: Callable[[Tensor], Tensor]) -> Times:
        """All three changed alike: cut, moved or pinned."""
        return Times(change(self.t), change(self.gamma), change(self.density))


class NoiseLevelDistribution(abc.ABC):
    """A probability density on ``[gamma_min, gamma_max]``; methods map ``(*)`` to ``(*)``."""

    gamma_min: float
    gamma_max: float

    @property
    def learns(self) -> bool:
        """Whether it follows the losses of training."""
        return bool(self.learned.state_dict())

    @property
    def learned(self) -> nn.Module:
        """Parameters and buffers of what it has learned; of a fixed one, none."""
        return nn.Module()

    def learn(self, times: Times, losses: Tensor) -> None:  # noqa: B027  a fixed one stays
        """Follow the losses ``(B,)`` of a batch, before their division by the density.

        What it learns by gradients, a step of an optimiser has to follow.
        """

    @abc.abstractmethod
    def density(self, gamma: Tensor) -> Tensor:
        r""":math:`p(\gamma)`."""

    @abc.abstractmethod
    def sf(self, gamma: Tensor) -> Tensor:
        """Mass above ``gamma``."""

    @abc.abstractmethod
    def isf(self, mass: Tensor) -> Tensor:
        """The gamma with this mass above it."""

    def cdf(self, gamma: Tensor) -> Tensor:
        """Mass below ``gamma``."""
        return 1 - self.sf(gamma)

    def quantile(self, t: Tensor) -> Tensor:
        r"""Inverse of :meth:`cdf`; the paper's :math:`\gamma(t)`."""
        return self.isf(1 - t)

    def at(self, t: Tensor) -> Times:
        """The times at uniform numbers ``t``, with their density."""
        gamma = self.quantile(t)
        return Times(t, gamma, self.density(gamma))

    @torch.no_grad()
    def draw(
        self, n: int, generator: torch.Generator | None = None, low_discrepancy: bool = True
    ) -> Times:
        """``n`` times, float64 on the generator's device."""
        return self.at(quantiles(n, generator, low_discrepancy))


@dataclass(frozen=True)
class UniformGamma(NoiseLevelDistribution):
    """Every noise level alike: VDM's choice, and ScoreFlow's importance sampling."""

    gamma_min: float
    gamma_max: float

    def __post_init__(self) -> None:
        check_range(self.gamma_min, self.gamma_max)

    def density(self, gamma: Tensor) -> Tensor:
        """A constant."""
        return torch.full_like(gamma, 1 / (self.gamma_max - self.gamma_min))

    def sf(self, gamma: Tensor) -> Tensor:
        """A line."""
        return (self.gamma_max - gamma) / (self.gamma_max - self.gamma_min)

    def isf(self, mass: Tensor) -> Tensor:
        """A line."""
        return self.gamma_max - mass * (self.gamma_max - self.gamma_min)


@dataclass(frozen=True)
class Designed(NoiseLevelDistribution):
    r"""The paper's importance sampling, :math:`p \propto (\dot\alpha^2 + \dot\sigma^2)/\sigma^2`.

    The loss is then the plain squared error of the normalised velocity, times a constant.
    Closed form for VP, root finding for every other schedule.
    """

    schedule: Schedule
    gamma_min: float
    gamma_max: float

    def __post_init__(self) -> None:
        check_range(self.gamma_min, self.gamma_max)

    def total(self, like: Tensor) -> Tensor:
        r""":math:`Z = \int` weight :math:`\mathrm d\gamma`, the constant left in the loss."""
        lo, hi = (
            torch.full((), g, dtype=like.dtype, device=like.device)
            for g in (self.gamma_min, self.gamma_max)
        )
        return self.schedule.weight_between(lo, hi)

    def density(self, gamma: Tensor) -> Tensor:
        """Weight over its integral."""
        return self.schedule.weight(gamma) / self.total(gamma)

    def sf(self, gamma: Tensor) -> Tensor:
        """Share of the weight above ``gamma``."""
        top = torch.full_like(gamma, self.gamma_max)
        return self.schedule.weight_between(gamma, top) / self.total(gamma)

    def isf(self, mass: Tensor) -> Tensor:
        """Where the weight above is that share."""
        return self.schedule.gamma_below(mass * self.total(mass), self.gamma_min, self.gamma_max)


@dataclass(frozen=True)
class UniformTime(NoiseLevelDistribution):
    r"""Uniform in somebody's time, :math:`p = |\mathrm dt/\mathrm d\gamma|` up to a constant."""

    clock: Clock
    gamma_min: float
    gamma_max: float

    def __post_init__(self) -> None:
        check_range(self.gamma_min, self.gamma_max)

    def _ends(self, like: Tensor) -> tuple[Tensor, Tensor]:
        ends = torch.tensor([self.gamma_min, self.gamma_max], dtype=torch.float64)
        lo, hi = self.clock.time(ends).to(like)
        return lo, hi

    def density(self, gamma: Tensor) -> Tensor:
        """Slope of the clock over the time it runs."""
        lo, hi = self._ends(gamma)
        return self.clock.dtime(gamma) / (hi - lo)

    def sf(self, gamma: Tensor) -> Tensor:
        """Share of the time still to run."""
        lo, hi = self._ends(gamma)
        return (hi - self.clock.time(gamma)) / (hi - lo)

    def isf(self, mass: Tensor) -> Tensor:
        """Read off the clock."""
        lo, hi = self._ends(mass)
        gamma = self.clock.gamma(hi - mass * (hi - lo))
        return gamma.clamp(self.gamma_min, self.gamma_max)

    def cdf(self, gamma: Tensor) -> Tensor:
        """Share of the time gone; counted from this end, where most clocks are slow too."""
        lo, hi = self._ends(gamma)
        return (self.clock.time(gamma) - lo) / (hi - lo)

    def quantile(self, t: Tensor) -> Tensor:
        """Read off the clock from the end of the data."""
        lo, hi = self._ends(t)
        return self.clock.gamma(lo + t * (hi - lo)).clamp(self.gamma_min, self.gamma_max)


class Adaptive(nn.Module, NoiseLevelDistribution):
    r"""A learned density: the inverse CDF is a monotone network (paper, appendix H).

    :math:`\gamma(t) = \gamma_{\min} + (\gamma_{\max} - \gamma_{\min})
    \frac{m(t) - m(0)}{m(1) - m(0)}`, where :math:`m` has one hidden layer of sigmoids and positive
    weights. It starts nearly uniform in gamma.

    Args:
        gamma_min: Lower end.
        gamma_max: Upper end.
        units: Hidden units; 1024 in the paper.
        generator: For the initial biases.
    """

    def __init__(
        self,
        gamma_min: float,
        gamma_max: float,
        units: int = 1024,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_range(gamma_min, gamma_max)
        self.gamma_min, self.gamma_max = gamma_min, gamma_max
        # Sigmoids of every width from the whole interval to a hundredth of it, all over it:
        # together nearly a line, and able to bend sharply where the loss has a cliff.
        spread = torch.rand(2, units, generator=generator)
        centre = (torch.arange(units) + spread[0]) / units
        slope = 100 ** spread[1]
        self.raw_slope = nn.Parameter(slope + torch.log(-torch.expm1(-slope)))
        self.shift = nn.Parameter(-slope * centre)
        self.raw_height = nn.Parameter(torch.full((units,), math.log(math.expm1(1.0))))

    def _units(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        slope = F.softplus(self.raw_slope).to(t)
        height = F.softplus(self.raw_height).to(t)
        return slope, height, torch.sigmoid(slope * t[..., None] + self.shift.to(t))

    def _rise(self, t: Tensor) -> Tensor:
        _, height, units = self._units(t)
        return (height * units).mean(-1)

    def _ends(self, like: Tensor) -> tuple[Tensor, Tensor]:
        lo, hi = self._rise(torch.tensor([0.0, 1.0]).to(like))
        return lo, hi

    def quantile(self, t: Tensor) -> Tensor:
        r""":math:`\gamma(t)`, differentiable in the parameters."""
        lo, hi = self._ends(t)
        return self.gamma_min + (self.gamma_max - self.gamma_min) * (self._rise(t) - lo) / (
            hi - lo
        )

    def slope(self, t: Tensor) -> Tensor:
        r""":math:`\gamma'(t) = 1/p(\gamma(t))`, differentiable in the parameters."""
        lo, hi = self._ends(t)
        slope, height, units = self._units(t)
        rise = (height * slope * units * (1 - units)).mean(-1)
        return (self.gamma_max - self.gamma_min) * rise / (hi - lo)

    @torch.no_grad()
    def cdf(self, gamma: Tensor) -> Tensor:
        """Root of the monotone network."""
        return increasing_root(self.quantile, self.slope, gamma, 0.0, 1.0)

    def sf(self, gamma: Tensor) -> Tensor:
        """Mass above ``gamma``."""
        return 1 - self.cdf(gamma)

    def isf(self, mass: Tensor) -> Tensor:
        """The network read from its other end."""
        return self.quantile(1 - mass)

    def density(self, gamma: Tensor) -> Tensor:
        """One over the slope, at the root."""
        return 1 / self.slope(self.cdf(gamma))

    def at(self, t: Tensor) -> Times:
        """Without the root finding that a density at a given gamma needs."""
        return Times(t, self.quantile(t), 1 / self.slope(t))

    @property
    def learned(self) -> nn.Module:
        """All of it."""
        return self

    def learn(self, times: Times, losses: Tensor) -> None:
        """The gradient of :meth:`second_moment`, for an optimiser."""
        self.zero_grad()
        self.second_moment(times, losses).backward()  # type: ignore[no-untyped-call]

    def second_moment(self, times: Times, loss: Tensor) -> Tensor:
        r"""Its gradient is that of :math:`\mathbb E[(L/p)^2] = \int L^2/p\,\mathrm d\gamma`.

        The mean of L is the same for every density, so this is the variance to minimise. The
        paper differentiates through the network at :math:`\gamma_\eta(t)`; with the drawn gamma
        held fixed only :math:`1/p_\eta` moves, which needs no second pass through the network.

        Args:
            times: Drawn from this density as it now is.
            loss: The unweighted losses :math:`L(\gamma)` found there, ``(B,)``.
        """
        square = (loss.detach().to(times.t.dtype) / times.density) ** 2
        # One Newton step: its value is t, its gradient that of the t with gamma(t) held fixed.
        t = times.t + (times.gamma - self.quantile(times.t)) * times.density
        return (square / square.mean() * self.slope(t) * times.density).mean()
