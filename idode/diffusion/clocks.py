r"""Other people's time: maps between their :math:`t` and our :math:`\gamma`.

A clock is needed in two places only: to draw times uniformly in somebody's :math:`t`, and to
call a network that was trained on it. Its direction is free; Flow Matching has its data at
:math:`t = 1`.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from idode.errors import InputError
from idode.numerics import check_range

__all__ = [
    "CLOCKS",
    "Clock",
    "GammaTime",
    "LinearBeta",
    "LogSNR",
    "NoiseLevel",
    "ScaledGamma",
    "StraightTime",
    "TableTime",
    "TrigonometricTime",
]


class Clock(abc.ABC):
    r"""A monotone map between :math:`\gamma` and a time; methods map ``(*)`` to ``(*)``.

    ``reaches_data`` and ``reaches_noise`` say that a network on this clock has seen clean data or
    pure noise, so that it may be asked for any gamma towards that end.
    """

    reaches_data = reaches_noise = False

    def known(self) -> tuple[float, float]:
        """The stretch of gamma a network on this clock can have been trained on."""
        return -math.inf, math.inf

    @abc.abstractmethod
    def time(self, gamma: Tensor) -> Tensor:
        r"""The time at :math:`\gamma`."""

    @abc.abstractmethod
    def gamma(self, time: Tensor) -> Tensor:
        r"""The :math:`\gamma` at a time."""

    def dtime(self, gamma: Tensor) -> Tensor:
        r""":math:`\mathrm dt/\mathrm d\gamma`; negative where the clock runs towards data."""
        with torch.enable_grad():
            gamma = gamma.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.time(gamma).sum(), gamma)
        return slope


class GammaTime(Clock):
    r"""The clock of this library, :math:`t = \gamma`."""

    def time(self, gamma: Tensor) -> Tensor:
        """Gamma itself."""
        return gamma * 1.0

    def gamma(self, time: Tensor) -> Tensor:
        """The time itself."""
        return time


@dataclass(frozen=True)
class LogSNR(Clock):
    r"""The logarithm of the signal-to-noise ratio, :math:`t = -\gamma`.

    ``gamma_min`` and ``gamma_max`` are the ends of what the network was trained on, where known.
    """

    gamma_min: float = -math.inf
    gamma_max: float = math.inf

    def known(self) -> tuple[float, float]:
        """Between the two ends."""
        return self.gamma_min, self.gamma_max

    def time(self, gamma: Tensor) -> Tensor:
        """Minus gamma."""
        return -gamma

    def gamma(self, time: Tensor) -> Tensor:
        """Minus the time."""
        return -time


@dataclass(frozen=True)
class ScaledGamma(Clock):
    r"""What our networks see: :math:`(\gamma - \gamma_{\min})/(\gamma_{\max} - \gamma_{\min})`."""

    gamma_min: float
    gamma_max: float

    def __post_init__(self) -> None:
        check_range(self.gamma_min, self.gamma_max)

    def time(self, gamma: Tensor) -> Tensor:
        """Zero at ``gamma_min``, one at ``gamma_max``."""
        return (gamma - self.gamma_min) / (self.gamma_max - self.gamma_min)

    def gamma(self, time: Tensor) -> Tensor:
        """The inverse line."""
        return self.gamma_min + (self.gamma_max - self.gamma_min) * time


@dataclass(frozen=True)
class StraightTime(Clock):
    r"""Straight paths: :math:`\sigma/\alpha = t/(1-t)`, so :math:`\gamma = 2\,\mathrm{logit}\,t`.

    ``data_at_one`` reverses it, the convention of Flow Matching and Rectified Flow.
    """

    data_at_one: bool = False
    reaches_data = reaches_noise = True

    def time(self, gamma: Tensor) -> Tensor:
        """Share of the straight way already gone."""
        return torch.sigmoid(-gamma / 2 if self.data_at_one else gamma / 2)

    def gamma(self, time: Tensor) -> Tensor:
        """Twice the logit."""
        gamma = 2 * torch.logit(time)
        return -gamma if self.data_at_one else gamma


class TrigonometricTime(Clock):
    r"""Stochastic Interpolants: :math:`\sigma/\alpha = \tan\frac{\pi t}2`."""

    reaches_data = reaches_noise = True

    def time(self, gamma: Tensor) -> Tensor:
        """Angle of the interpolant over a right angle."""
        return torch.atan(torch.exp(gamma / 2)) * (2 / math.pi)

    def gamma(self, time: Tensor) -> Tensor:
        r""":math:`2\log\tan\frac{\pi t}2`."""
        return 2 * torch.log(torch.tan(time * (math.pi / 2)))


@dataclass(frozen=True)
class LinearBeta(Clock):
    r"""ScoreSDE's variance-preserving diffusion with :math:`\beta` linear in :math:`t`.

    :math:`-2\log\alpha = \beta_0 t + \frac12(\beta_1 - \beta_0)t^2`, and
    :math:`\gamma = \log(\alpha^{-2} - 1)`. Its networks are trained on times from ``first``,
    ScoreSDE's 1e-5, to 1.
    """

    beta_min: float = 0.1
    beta_max: float = 20.0
    first: float = 1e-5

    def known(self) -> tuple[float, float]:
        """From the first time to time 1."""
        low, high = self.gamma(torch.tensor([self.first, 1.0], dtype=torch.float64)).tolist()
        return low, high

    def time(self, gamma: Tensor) -> Tensor:
        """Positive root of the quadratic, in the form that does not cancel near zero."""
        integral = F.softplus(gamma)
        slope = self.beta_max - self.beta_min
        root = torch.sqrt(self.beta_min**2 + 2 * slope * integral)
        return 2 * integral / (self.beta_min + root)

    def gamma(self, time: Tensor) -> Tensor:
        """Log of ``expm1`` of the integrated beta."""
        integral = self.beta_min * time + (self.beta_max - self.beta_min) * time**2 / 2
        return integral + torch.log(-torch.expm1(-integral))


@dataclass(frozen=True)
class NoiseLevel(Clock):
    r"""EDM and other variance-exploding models: :math:`t = \sigma/\alpha = e^{\gamma/2}`.

    ``sigma_min`` and ``sigma_max`` are the noise levels the network was trained on, where known.
    """

    sigma_min: float = 0.0
    sigma_max: float = math.inf

    def known(self) -> tuple[float, float]:
        """From the least noise to the most."""
        low = -math.inf if self.sigma_min == 0 else 2 * math.log(self.sigma_min)
        return low, 2 * math.log(self.sigma_max) if self.sigma_max < math.inf else math.inf

    def time(self, gamma: Tensor) -> Tensor:
        r""":math:`e^{\gamma/2}`."""
        return torch.exp(gamma / 2)

    def gamma(self, time: Tensor) -> Tensor:
        r""":math:`2\log\sigma`."""
        return 2 * torch.log(time)


class TableTime(Clock):
    r"""Discrete diffusion: index :math:`i` of a table of :math:`\bar\alpha_i`, interpolated.

    Linear in :math:`\gamma` between entries, so that a model trained on integers 0..N-1 (DDPM,
    diffusers) is asked at those integers where the clock meets them. Entries of pure noise at the
    end (zero terminal SNR) have no gamma: the clock ends before them.
    """

    def __init__(self, alphas_cumprod: Tensor) -> None:
        abar = alphas_cumprod.detach().double().cpu()
        if abar.ndim == 1:
            abar = abar[: int((abar > 0).sum())] if bool((abar.diff() <= 0).all()) else abar
        if (
            abar.ndim != 1
            or len(abar) < 2
            or not bool(((abar > 0) & (abar < 1)).all())
            or not bool((abar.diff() < 0).all())
        ):
            raise InputError(
                "alphas_cumprod must be one decreasing row of at least two values in (0, 1), "
                f"got shape {tuple(alphas_cumprod.shape)}"
            )
        self.gammas = torch.log1p(-abar) - torch.log(abar)

    def known(self) -> tuple[float, float]:
        """From the first entry to the last."""
        return float(self.gammas[0]), float(self.gammas[-1])

    def time(self, gamma: Tensor) -> Tensor:
        """Fractional index; the end pieces are continued as lines."""
        table = self.gammas.to(gamma)
        left = (torch.searchsorted(table, gamma.detach(), right=True) - 1).clamp(0, len(table) - 2)
        return left + (gamma - table[left]) / (table[left + 1] - table[left])

    def gamma(self, time: Tensor) -> Tensor:
        """Gamma of a fractional index."""
        table = self.gammas.to(time)
        left = time.detach().floor().long().clamp(0, len(table) - 2)
        return table[left] + (time - left) * (table[left + 1] - table[left])


CLOCKS: dict[str, Clock] = {
    "gamma": GammaTime(),
    "straight": StraightTime(),
    "straight-data-at-one": StraightTime(data_at_one=True),
    "trigonometric": TrigonometricTime(),
    "linear-beta": LinearBeta(),
    "noise-level": NoiseLevel(),
    "log-snr": LogSNR(),
}
