r"""From integers to the continuum: the bridge of every bound on discrete data.

Each way draws a state :math:`x` at the start of the clock and a term :math:`c(x)` such that

.. math:: \log P(\text{pixels}) \ge \mathbb E\,[\log p_\gamma(x) + c(x)],

with :math:`\log\frac1K\sum_k` of the exponentials in place of the mean for K draws. Pixel X of L
levels stands for the bin of width 2/L around :math:`x_0 = (2X+1)/L - 1`.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from idode.diffusion.schedules import Schedule
from idode.errors import InputError
from idode.numerics import per_sample

__all__ = [
    "DEQUANTIZATIONS",
    "Continuous",
    "Dequantization",
    "Draw",
    "TruncatedNormal",
    "Uniform",
    "Variational",
    "centres",
    "check_pixels",
    "reconstruction",
    "truncation",
]


def check_pixels(pixels: Tensor, levels: int) -> None:
    """Refuse anything but integers in ``0..levels-1``; a silent rescaling is a wrong number."""
    if pixels.is_floating_point() or pixels.is_complex() or pixels.dtype == torch.bool:
        raise InputError(
            f"pixels must be integers in 0..{levels - 1}, got {pixels.dtype}: pass the uint8 "
            "images, not images already scaled to [-1, 1]"
        )
    low, high = int(pixels.min()), int(pixels.max())
    if low < 0 or high >= levels:
        value = low if low < 0 else high
        where = int((pixels == value).flatten(1).any(1).nonzero()[0, 0])
        raise InputError(
            f"pixels must lie in 0..{levels - 1}, got {value} in image {where}: "
            "is the number of levels right?"
        )


def centres(pixels: Tensor, levels: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Middle of each pixel's bin on the scale of the model, [-1, 1]."""
    return ((2 * pixels.double() + 1) / levels - 1).to(dtype)


def reconstruction(
    x: Tensor, pixels: Tensor, gamma: float, schedule: Schedule, levels: int
) -> Tensor:
    r"""Log-probability of the pixels given the noisy state, ``(B,)`` (math.md: reconstruction).

    A softmax over all levels of :math:`-(x/\alpha - \text{level})^2/(2\sigma^2/\alpha^2)`.
    Levels further than nine standard deviations from the nearest cannot matter in float64, so
    only a window around it is summed; that keeps memory at a few copies of the image for any L.
    """
    clock = torch.tensor(gamma, dtype=torch.float64)
    half_bins = math.exp(-gamma / 2) / levels  # half a bin, in standard deviations
    position = (x.double() * float(torch.exp(-schedule.log_alpha(clock))) + 1) * levels / 2 - 0.5
    reach = min(levels, math.ceil(9 / (2 * half_bins)) + 1)
    nearest = position.round().clamp(0, levels - 1)
    total = torch.full_like(position, -torch.inf)
    for offset in range(-reach, reach + 1):
        level = nearest + offset
        logit = -0.5 * ((position - level) * 2 * half_bins) ** 2
        inside = (level >= 0) & (level <= levels - 1)
        total = torch.logaddexp(total, torch.where(inside, logit, -torch.inf))
    own = -0.5 * ((position - pixels.double()) * 2 * half_bins) ** 2
    return per_sample(own - total)


def truncation(gamma: float, levels: int) -> tuple[float, float]:
    r"""Where the normal is cut and what is left of it: :math:`\tau`, :math:`Z`.

    >>> tau, mass = truncation(-13.3, 256)
    >>> round(tau, 6), round(mass, 7)
    (3.018689, 0.9974613)
    """
    tau = math.exp(-gamma / 2) / levels
    return tau, math.erf(tau / math.sqrt(2))


@dataclass(frozen=True)
class Draw:
    """A state at the start of the clock, and what its log-density lacks to be a bound."""

    x: Tensor  # (B, *)
    weight: Tensor  # (B,) nats, of this draw: for the importance-weighted bound
    mean_weight: Tensor  # (B,) nats, its mean where it has a closed form: for K = 1


class Dequantization(abc.ABC):
    """A way from pixels to a state."""

    gamma: float

    @abc.abstractmethod
    def draw(self, pixels: Tensor, noise: Tensor) -> Draw:
        """One draw for each image.

        Args:
            pixels: Integers ``(B, *)``.
            noise: Uniform numbers in (0, 1) ``(B, *)``, from which all randomness comes; the
                states have its dtype and device.
        """


@dataclass(frozen=True)
class TruncatedNormal(Dequantization):
    """The paper's: the model's own noise at the start, cut at the edges of the bin."""

    schedule: Schedule
    gamma: float
    levels: int

    def draw(self, pixels: Tensor, noise: Tensor) -> Draw:
        """Noise each centre with a normal that stays in its bin."""
        check_pixels(pixels, self.levels)
        tau, mass = truncation(self.gamma, self.levels)
        alpha, sigma = _scales(self.schedule, self.gamma)
        z = math.sqrt(2) * torch.erfinv(mass * (2 * noise.double() - 1))
        dim = pixels[0].numel()
        scale = math.log(sigma * mass) + 0.5 * math.log(2 * math.pi)
        weight = per_sample(0.5 * z**2) + dim * scale
        density = math.exp(-(tau**2) / 2) / math.sqrt(2 * math.pi)
        mean = dim * (0.5 + scale - tau * density / mass)
        x = alpha * centres(pixels, self.levels, torch.float64) + sigma * z
        return Draw(x.to(noise.dtype), weight, torch.full_like(weight, mean))


@dataclass(frozen=True)
class Uniform(Dequantization):
    """Anywhere in the bin alike; the model is asked at a start of its own, with more noise."""

    gamma: float
    levels: int

    def draw(self, pixels: Tensor, noise: Tensor) -> Draw:
        """The paper does not multiply by alpha here, so neither do we."""
        check_pixels(pixels, self.levels)
        x = (2 * (pixels.double() + noise.double())) / self.levels - 1
        weight = x.new_full((len(x),), -x[0].numel() * math.log(self.levels / 2))
        return Draw(x.to(noise.dtype), weight, weight)


@dataclass(frozen=True)
class Variational(Dequantization):
    """The model's own noise, uncut, and a softmax that guesses the pixel back."""

    schedule: Schedule
    gamma: float
    levels: int

    def draw(self, pixels: Tensor, noise: Tensor) -> Draw:
        """Noise each centre; pay for what the noise hides."""
        check_pixels(pixels, self.levels)
        alpha, sigma = _scales(self.schedule, self.gamma)
        z = math.sqrt(2) * torch.erfinv(2 * noise.double() - 1)
        x = alpha * centres(pixels, self.levels, torch.float64) + sigma * z
        recon = reconstruction(x, pixels, self.gamma, self.schedule, self.levels)
        dim = pixels[0].numel()
        scale = dim * (math.log(sigma) + 0.5 * math.log(2 * math.pi))
        return Draw(
            x.to(noise.dtype), recon + per_sample(0.5 * z**2) + scale, recon + dim / 2 + scale
        )


@dataclass(frozen=True)
class Continuous(Dequantization):
    """Data that is already continuous: the density itself, at the start of the clock."""

    gamma: float

    def draw(self, pixels: Tensor, noise: Tensor) -> Draw:
        """The data as it is; the noise is not used."""
        if not pixels.is_floating_point():
            raise InputError(
                f"continuous data must be floating point, got {pixels.dtype}: for integer "
                "pixels choose tn, uniform or variational dequantization"
            )
        nothing = torch.zeros(len(pixels), dtype=torch.float64, device=pixels.device)
        return Draw(pixels.to(noise.dtype), nothing, nothing)


def _scales(schedule: Schedule, gamma: float) -> tuple[float, float]:
    clock = torch.tensor(gamma, dtype=torch.float64)
    return float(schedule.alpha(clock)), float(schedule.sigma(clock))


DEQUANTIZATIONS = ("tn", "uniform", "variational", "learned", "none")
