r"""Noise schedules on the one clock :math:`\gamma = \log(\sigma^2/\alpha^2)`.

The state at :math:`\gamma` is :math:`x = \alpha x_0 + \sigma\epsilon`. On this clock the forward
diffusion has :math:`g^2 = \sigma^2` and every formula of the paper loses its schedule: a
schedule is :math:`\log\alpha` and its slope, everything else follows (math.md: schedule).
"""

from __future__ import annotations

import abc
import math

import torch
from torch import Tensor
from torch.nn import functional as F

from idode.errors import InputError
from idode.numerics import increasing_root, integrate

__all__ = [
    "SCHEDULES",
    "Schedule",
    "StraightPath",
    "SubVariancePreserving",
    "VarianceExploding",
    "VariancePreserving",
    "start_gamma",
]


def start_gamma(levels: int) -> float:
    r"""Where the noise fits a bin: :math:`\gamma_{\min} = -2\log(3L)` (math.md: three-sigma).

    Half a bin is then three standard deviations, so rounding recovers the pixel in 997 of 1000
    cases, and the truncated normal is nearly the normal the model was trained on.

    >>> round(start_gamma(256), 2), round(start_gamma(17), 2)
    (-13.29, -7.86)
    """
    if levels < 2:
        raise InputError(f"levels must be at least 2, got {levels}: 256 for 8-bit images")
    return -2 * math.log(3 * levels)


class Schedule(abc.ABC):
    r"""A way from data to noise; methods map ``(*)`` to ``(*)``.

    A final class gives :math:`\log\alpha` and its slope, both in :math:`\gamma`. Slopes are
    written with a ``d`` in front and are always :math:`\mathrm d/\mathrm d\gamma`.
    """

    @abc.abstractmethod
    def log_alpha(self, gamma: Tensor) -> Tensor:
        r"""Log of the signal's scale, :math:`\log\alpha`."""

    @abc.abstractmethod
    def dlog_alpha(self, gamma: Tensor) -> Tensor:
        r"""Its slope, the :math:`f` of the forward diffusion."""

    def alpha(self, gamma: Tensor) -> Tensor:
        r"""Scale of the signal."""
        return self.log_alpha(gamma).exp()

    def log_sigma(self, gamma: Tensor) -> Tensor:
        r"""Log of the noise's scale, :math:`\log\alpha + \gamma/2`."""
        return self.log_alpha(gamma) + gamma / 2

    def sigma(self, gamma: Tensor) -> Tensor:
        r"""Scale of the noise."""
        return self.log_sigma(gamma).exp()

    def dlog_sigma(self, gamma: Tensor) -> Tensor:
        r"""Slope of :math:`\log\sigma`."""
        return self.dlog_alpha(gamma) + 0.5

    def dalpha(self, gamma: Tensor) -> Tensor:
        r"""Slope of :math:`\alpha`."""
        return self.alpha(gamma) * self.dlog_alpha(gamma)

    def dsigma(self, gamma: Tensor) -> Tensor:
        r"""Slope of :math:`\sigma`."""
        return self.sigma(gamma) * self.dlog_sigma(gamma)

    def speed(self, gamma: Tensor) -> Tensor:
        r"""How fast a diffusion path runs, :math:`\sqrt{\dot\alpha^2 + \dot\sigma^2}`."""
        return torch.hypot(self.dalpha(gamma), self.dsigma(gamma))

    def weight(self, gamma: Tensor) -> Tensor:
        r"""What likelihood asks of an error in the normalised velocity.

        :math:`2(\dot\alpha^2 + \dot\sigma^2)/\sigma^2` (math.md: fm-normalised); taken as
        :math:`2((\dot\alpha/\sigma)^2 + (\dot\sigma/\sigma)^2)`, which cannot underflow to 0/0.
        """
        ratio = torch.exp(-gamma / 2) * self.dlog_alpha(gamma)
        return 2 * (ratio**2 + self.dlog_sigma(gamma) ** 2)

    def weight_between(self, lo: Tensor, hi: Tensor) -> Tensor:
        r"""Integral of :meth:`weight` from ``lo`` to ``hi``, to the last digit of small masses.

        A difference of antiderivatives is exact only where they are small; integrating from
        ``lo`` keeps relative precision in the tail, which inverse sampling needs.
        """
        return integrate(self.weight, lo, hi)

    def gamma_below(self, mass: Tensor, gamma_min: float, gamma_max: float) -> Tensor:
        """The gamma that leaves ``mass`` of the weight between itself and ``gamma_max``."""
        top = torch.full_like(mass, gamma_max)
        return increasing_root(
            lambda gamma: -self.weight_between(gamma, top),
            self.weight,
            -mass,
            gamma_min,
            gamma_max,
        )


class VariancePreserving(Schedule):
    r""":math:`\alpha^2 + \sigma^2 = 1`; the weight is :math:`\alpha^2/2`."""

    def log_alpha(self, gamma: Tensor) -> Tensor:
        r""":math:`\frac12\log\mathrm{sigmoid}(-\gamma)`."""
        return 0.5 * F.logsigmoid(-gamma)

    def dlog_alpha(self, gamma: Tensor) -> Tensor:
        r""":math:`-\frac12\mathrm{sigmoid}(\gamma)`."""
        return -0.5 * torch.sigmoid(gamma)

    def weight_between(self, lo: Tensor, hi: Tensor) -> Tensor:
        r""":math:`\int\alpha^2\,\mathrm d\gamma = \log\sigma^2` (misprinted in the paper)."""
        return (F.logsigmoid(hi) - F.logsigmoid(lo)) / 2

    def gamma_below(self, mass: Tensor, gamma_min: float, gamma_max: float) -> Tensor:
        r"""In closed form: :math:`\log\sigma^2` is linear in the mass."""
        log_variance = F.logsigmoid(torch.full_like(mass, gamma_max)) - 2 * mass
        gamma = log_variance - torch.log(-torch.expm1(log_variance))
        return gamma.clamp(gamma_min, gamma_max)


class StraightPath(Schedule):
    r""":math:`\alpha + \sigma = 1`; the weight is :math:`\alpha^2`."""

    def log_alpha(self, gamma: Tensor) -> Tensor:
        r""":math:`\log\mathrm{sigmoid}(-\gamma/2)`."""
        return F.logsigmoid(-gamma / 2)

    def dlog_alpha(self, gamma: Tensor) -> Tensor:
        r""":math:`-\frac12\mathrm{sigmoid}(\gamma/2)`."""
        return -0.5 * torch.sigmoid(gamma / 2)

    def weight_between(self, lo: Tensor, hi: Tensor) -> Tensor:
        r"""From the antiderivative :math:`2(\alpha + \log\sigma)` of :math:`\alpha^2`."""
        below = torch.sigmoid(-lo / 2) + F.logsigmoid(lo / 2)
        return 2 * (torch.sigmoid(-hi / 2) + F.logsigmoid(hi / 2) - below)


class SubVariancePreserving(Schedule):
    r"""ScoreSDE's :math:`\sigma = 1 - \alpha^2`: less noise than VP for the same signal."""

    def log_alpha(self, gamma: Tensor) -> Tensor:
        r""":math:`-\mathrm{arsinh}(\frac12e^{\gamma/2})`, as \alpha² + e^{\gamma/2}\alpha = 1."""
        return -torch.asinh(torch.exp(gamma / 2) / 2)

    def dlog_alpha(self, gamma: Tensor) -> Tensor:
        r""":math:`-\frac12(1 + 4e^{-\gamma})^{-1/2}`."""
        return -0.5 * torch.rsqrt(1 + 4 * torch.exp(-gamma))


class VarianceExploding(Schedule):
    r""":math:`\alpha = 1`; the weight is :math:`\frac12` everywhere."""

    def log_alpha(self, gamma: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(gamma)

    def dlog_alpha(self, gamma: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(gamma)

    def weight_between(self, lo: Tensor, hi: Tensor) -> Tensor:
        """Half the way: the designed density is uniform in gamma."""
        return (hi - lo) / 2


SCHEDULES: dict[str, Schedule] = {
    "vp": VariancePreserving(),
    "sp": StraightPath(),
    "sub-vp": SubVariancePreserving(),
    "ve": VarianceExploding(),
}
