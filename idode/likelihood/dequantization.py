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
from typing import Any

import torch
from torch import Tensor

from idode.diffusion.model import DiffusionODE
from idode.diffusion.schedules import Schedule
from idode.errors import InputError
from idode.likelihood import DEQUANTIZATIONS
from idode.likelihood.notes import loose_bound
from idode.numerics import double, per_sample

__all__ = [
    "Bins",
    "Continuous",
    "Dequantization",
    "Draw",
    "TruncatedNormal",
    "Uniform",
    "Variational",
    "centres",
    "check_pixels",
    "clean_data",
    "reconstruction",
    "truncation",
    "uniform_start",
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
    found = ((2 * double(pixels) + 1) / levels - 1).to(dtype)
    return found if dtype == torch.float64 else found.to(pixels.device)


def clean_data(data: Tensor, levels: int | None, dtype: torch.dtype) -> Tensor:
    """What training noises: the centres of the pixels' bins, or continuous data as it is."""
    if levels is None:
        if not data.is_floating_point():
            raise InputError(f"continuous data must be floating point, got {data.dtype}")
        return data.to(dtype)
    check_pixels(data, levels)
    return centres(data, levels, dtype)


def uniform_start(levels: int) -> float:
    """Where the model's noise has the variance of a bin, (2/L)²/12."""
    return -2 * math.log(math.sqrt(3) * levels)


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


@dataclass(frozen=True)
class Bins:
    """Where pixels enter the clock: ``levels`` bins on [-1, 1], noised to ``gamma``."""

    schedule: Schedule
    gamma: float
    levels: int

    @property
    def scales(self) -> tuple[float, float]:
        """Alpha and sigma."""
        clock = torch.tensor(self.gamma, dtype=torch.float64)
        return float(self.schedule.alpha(clock)), float(self.schedule.sigma(clock))


class Dequantization(abc.ABC):
    """A way from data to a state; listed in :data:`idode.likelihood.DEQUANTIZATIONS`.

    A final class is a frozen dataclass with a field ``start``: where on the clock its states are,
    ``None`` for its usual place.
    """

    start: float | None
    closed_form = True  # whether the mean weight of a draw is known

    def gamma(self, model: DiffusionODE) -> float:
        """Where on the model's clock the states are; refused where the model has no such place."""
        if model.levels is None:
            raise InputError(
                "the model was trained on continuous data: choose dequantization none, not "
                f"{self.name}"
            )
        return self._on_clock(model, self._usual_start(model, model.levels))

    def bins(self, model: DiffusionODE) -> Bins:
        """The bins of the model's data at :meth:`gamma`."""
        gamma = self.gamma(model)
        assert model.levels is not None
        return Bins(model.schedule, gamma, model.levels)

    def states(self, model: DiffusionODE, data: Tensor, noise: Tensor) -> Draw:
        """One draw for each sample, on the model's clock; see :meth:`draw`."""
        return self.draw(data, noise, self.bins(model))

    @abc.abstractmethod
    def draw(self, pixels: Tensor, noise: Tensor, bins: Bins) -> Draw:
        """One draw for each image.

        Args:
            pixels: Integers ``(B, *)``.
            noise: Uniform numbers in (0, 1) ``(B, *)``, from which all randomness comes; the
                states have its dtype and device.
            bins: Where the pixels enter the clock.
        """

    def notes(self, model: DiffusionODE) -> tuple[str, ...]:
        """What a reader must know about bounds made this way for this model."""
        return ()

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return DEQUANTIZATIONS.name_of(self)

    def to_json(self) -> dict[str, Any]:
        """Plain values, with its name as ``kind``."""
        return DEQUANTIZATIONS.to_json(self)

    def _usual_start(self, model: DiffusionODE, levels: int) -> float:
        return model.gamma_min

    def _on_clock(self, model: DiffusionODE, usual: float) -> float:
        start = usual if self.start is None else self.start
        if not model.gamma_min <= start < model.gamma_max:
            raise InputError(
                f"the start must lie on the model's clock, {model.gamma_min:.4g} to "
                f"{model.gamma_max:.4g}, got {start:.4g}"
            )
        return start


@dataclass(frozen=True)
class TruncatedNormal(Dequantization):
    """The paper's: the model's own noise at the start, cut at the edges of the bin."""

    start: float | None = None

    def notes(self, model: DiffusionODE) -> tuple[str, ...]:
        """What noise wider than a bin may cost."""
        return loose_bound(self.bins(model).gamma, self.bins(model).levels)

    def draw(self, pixels: Tensor, noise: Tensor, bins: Bins) -> Draw:
        """Noise each centre with a normal that stays in its bin."""
        check_pixels(pixels, bins.levels)
        tau, mass = truncation(bins.gamma, bins.levels)
        alpha, sigma = bins.scales
        z = math.sqrt(2) * torch.erfinv(mass * (2 * noise.double() - 1))
        dim = pixels[0].numel()
        scale = math.log(sigma * mass) + 0.5 * math.log(2 * math.pi)
        weight = per_sample(0.5 * z**2) + dim * scale
        density = math.exp(-(tau**2) / 2) / math.sqrt(2 * math.pi)
        mean = dim * (0.5 + scale - tau * density / mass)
        x = alpha * centres(pixels, bins.levels, torch.float64) + sigma * z
        return Draw(x.to(noise.dtype), weight, torch.full_like(weight, mean))


@dataclass(frozen=True)
class Uniform(Dequantization):
    """Uniform noise in the bin; the model is asked at a start of its own, with more noise."""

    start: float | None = None

    def _usual_start(self, model: DiffusionODE, levels: int) -> float:
        known = model.uniform_start
        return max(model.gamma_min, uniform_start(levels)) if known is None else known

    def draw(self, pixels: Tensor, noise: Tensor, bins: Bins) -> Draw:
        """The paper does not multiply by alpha here, so neither do we."""
        check_pixels(pixels, bins.levels)
        x = (2 * (pixels.double() + noise.double())) / bins.levels - 1
        weight = x.new_full((len(x),), -x[0].numel() * math.log(bins.levels / 2))
        return Draw(x.to(noise.dtype), weight, weight)


@dataclass(frozen=True)
class Variational(Dequantization):
    """The model's own noise, uncut, and a softmax that guesses the pixel back."""

    start: float | None = None

    def draw(self, pixels: Tensor, noise: Tensor, bins: Bins) -> Draw:
        """Noise each centre; pay for what the noise hides."""
        check_pixels(pixels, bins.levels)
        alpha, sigma = bins.scales
        z = math.sqrt(2) * torch.erfinv(2 * noise.double() - 1)
        x = alpha * centres(pixels, bins.levels, torch.float64) + sigma * z
        recon = reconstruction(x, pixels, bins.gamma, bins.schedule, bins.levels)
        dim = pixels[0].numel()
        scale = dim * (math.log(sigma) + 0.5 * math.log(2 * math.pi))
        return Draw(
            x.to(noise.dtype), recon + per_sample(0.5 * z**2) + scale, recon + dim / 2 + scale
        )


@dataclass(frozen=True)
class Continuous(Dequantization):
    """Data that is already continuous: its density, smoothed by the noise at the start."""

    start: float | None = None

    def gamma(self, model: DiffusionODE) -> float:
        """The start, by default the least noise of the model."""
        if model.levels is not None:
            raise InputError(
                f"dequantization none is for continuous data and the model's has {model.levels} "
                "levels: choose tn or another"
            )
        return self._on_clock(model, model.gamma_min)

    def states(self, model: DiffusionODE, data: Tensor, noise: Tensor) -> Draw:
        r"""The data scaled to states, :math:`\log p(x_0) = \log p(\alpha x_0) + d\log\alpha`.

        Nothing is drawn: the noise is not used.
        """
        if not data.is_floating_point():
            raise InputError(
                f"continuous data must be floating point, got {data.dtype}: for integer "
                "pixels choose tn, uniform or variational dequantization"
            )
        gamma = torch.tensor(self.gamma(model), dtype=torch.float64)
        log_alpha = float(model.schedule.log_alpha(gamma))
        weight = torch.full(
            (len(data),), data[0].numel() * log_alpha, dtype=torch.float64, device=data.device
        )
        return Draw(data.to(noise.dtype) * math.exp(log_alpha), weight, weight)

    def draw(self, pixels: Tensor, noise: Tensor, bins: Bins) -> Draw:
        """Continuous data has no bins."""
        raise InputError(
            "continuous data has no bins: use Continuous().states(model, data, noise)"
        )
