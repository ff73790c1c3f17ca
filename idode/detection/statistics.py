r"""Statistics of an image from ten evaluations of the network.

At six noise levels the network sees the image scaled but without noise, :math:`\alpha x_0`, and
says which noise it takes for part of the image; at four of them also the noised image,
:math:`\alpha x_0 + \sigma\epsilon`, where its error counts towards bits/dim. The two answers
together are one probe of the divergence, :math:`\epsilon\cdot(\hat\epsilon(\alpha x_0 +
\sigma\epsilon) - \hat\epsilon(\alpha x_0))/d`. All images see the same noise, so that an image's
statistics depend on the image alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from idode.batches import IndexedBatches
from idode.detection.conformal import Vector
from idode.detection.images import Pixels
from idode.diffusion.model import DiffusionODE
from idode.diffusion.objectives import diffuse
from idode.evaluation.coder_proxies import coder_size
from idode.likelihood.dequantization import centres
from idode.likelihood.states import state_dtype
from idode.numerics import clock_at, double, float32_products

__all__ = [
    "NOISED_WORDS",
    "Levels",
    "Statistic",
    "error_maps",
    "levels_for",
    "measure",
    "statistics_of",
]

CLEAN = (0, 1, 2, 3, 5, 7)  # ninths of the range of noise levels
NOISED = (1, 3, 5, 7)
MARGIN = 1.0  # of gamma, left out at both ends: there all images look alike
PATCH = 4  # pixels
BATCH = 64
TINY = 1e-12


@dataclass(frozen=True)
class Levels:
    """Noise levels at which images are looked at, and the seed of their noise."""

    clean: tuple[float, ...]
    noised: tuple[float, ...]
    seed: int = 0

    @property
    def nfe(self) -> int:
        """Evaluations of the network for an image."""
        return len(self.clean) + len(self.noised)


def levels_for(model: DiffusionODE, seed: int = 0) -> Levels:
    """The default levels within the model's range."""
    low, high = model.gamma_min + MARGIN, model.gamma_max - MARGIN
    clean, noised = (tuple(low + (high - low) * k / 9 for k in ks) for ks in (CLEAN, NOISED))
    return Levels(clean, noised, seed)


@dataclass(frozen=True)
class Statistic:
    """What one number of an image is, in words, and at which noise level."""

    words: str
    gamma: float | None = None

    def __str__(self) -> str:
        at = "" if self.gamma is None else f" at noise level γ = {self.gamma:.1f}"
        return self.words + at


CLEAN_WORDS = (
    "size of the noise seen in the clean image",
    "mean of the noise seen in the clean image",
    "peakedness of the noise seen in the clean image",
    "unevenness over patches of the noise seen in the clean image",
    "largest patch of the noise seen in the clean image",
)
NOISED_WORDS = (
    "squared error of the predicted noise",
    "size of the predicted noise",
    "unevenness over patches of the error of the predicted noise",
    "divergence",
    "part of the error that points along the noise seen in the clean image",
)
TURNING = "turning of the predicted noise since the level before"
WHOLE_WORDS = ("squared distance from mid-grey (prior term)", "size as a PNG file")


def statistics_of(levels: Levels) -> list[Statistic]:
    """What the columns of :func:`measure` are."""
    found = [Statistic(w, g) for g in levels.clean for w in CLEAN_WORDS]
    found += [Statistic(TURNING, g) for g in levels.clean[1:]]
    found += [Statistic(w, g) for g in levels.noised for w in NOISED_WORDS]
    return [*found, *(Statistic(w) for w in WHOLE_WORDS)]


@float32_products()
@torch.no_grad()
def measure(
    model: DiffusionODE,
    images: Pixels,
    levels: Levels,
    progress: Callable[[int], None] = lambda count: None,
) -> Vector:
    """Statistics ``(N, F)`` of images ``(N, C, H, W)``, in the order of :func:`statistics_of`.

    Args:
        model: For images of this shape.
        images: Integers below the model's number of levels.
        levels: Noise levels and the seed of the noise.
        progress: Called with the number of images done.
    """
    batches = IndexedBatches(images, BATCH, device=model.device)
    rows = []
    for number, size in enumerate(batches.sizes):
        rows.append(_batch(model, batches.batch(number).values, levels).cpu().numpy())
        progress(size)
    sizes = np.log(coder_size("PNG", _writable(images)))
    return np.column_stack([np.concatenate(rows), sizes])


def _writable(images: Pixels) -> Pixels:
    """Images as a PNG file can hold them: channels of 16 bits one below the other, as grey."""
    if images.dtype == np.uint8:
        return images
    return images.reshape(len(images), 1, -1, images.shape[3])


def _batch(model: DiffusionODE, pixels: Tensor, levels: Levels) -> Tensor:
    """All statistics of a batch but the sizes of files, ``(B, F - 1)`` float64."""
    x0 = _clean(model, pixels)
    seen = {
        gamma: model.noise(diffuse(x0, torch.zeros_like(x0), clock_at(gamma, x0), model.schedule),
                           clock_at(gamma, x0))
        for gamma in levels.clean
    }  # fmt: skip
    columns: list[Tensor] = []
    for eps in seen.values():
        columns += [
            _log_size(eps),
            double(eps).flatten(1).mean(1),
            _peakedness(eps),
            *_patches(eps),
        ]
    pairs = zip(levels.clean, levels.clean[1:], strict=False)
    columns += [_cosine(seen[a], seen[b]) for a, b in pairs]
    for gamma, eps, said in _noised(model, x0, levels):
        error = said - eps
        apart = double(eps * (said - seen[gamma])).flatten(1).mean(1)
        uneven, _ = _patches(error)
        columns += [_log_size(error), _log_size(said), uneven, apart, _cosine(error, seen[gamma])]
    columns.append(torch.log(double(x0).square().flatten(1).mean(1) + TINY))
    return torch.stack(columns, dim=1)


def _noised(
    model: DiffusionODE, x0: Tensor, levels: Levels
) -> Iterator[tuple[float, Tensor, Tensor]]:
    """At every level the noise that was added and the noise that was predicted, ``(B, *)``."""
    g = torch.Generator().manual_seed(levels.seed)
    for gamma in levels.noised:
        eps = torch.randn(x0.shape[1:], generator=g).to(x0).expand_as(x0)
        clock = clock_at(gamma, x0)
        yield gamma, eps, model.noise(diffuse(x0, eps, clock, model.schedule), clock)


@float32_products()
@torch.no_grad()
def error_maps(model: DiffusionODE, images: Pixels, levels: Levels, weights: Vector) -> Vector:
    r"""Bits of every pixel, ``(N, H, W)``: :math:`\sum_k w_k(\epsilon - \hat\epsilon)^2/2\ln 2`.

    Args:
        model: For images of this shape.
        images: Integers ``(N, C, H, W)``.
        levels: Noise levels and the seed of the noise.
        weights: Of the noised levels, in gamma.
    """
    x0 = _clean(model, IndexedBatches(images, len(images), device=model.device).batch(0).values)
    total = torch.zeros(x0.shape[0], *x0.shape[2:], dtype=torch.float64)
    for weight, (_, eps, said) in zip(weights, _noised(model, x0, levels), strict=True):
        squares = double((said - eps).square().sum(1)).cpu()
        total += float(weight) * squares / (2 * math.log(2))
    return np.asarray(total.numpy())


def _clean(model: DiffusionODE, pixels: Tensor) -> Tensor:
    assert model.levels is not None
    return centres(pixels, model.levels, state_dtype(model))


def _log_size(x: Tensor) -> Tensor:
    """Log of the mean square, ``(B,)``."""
    return torch.log(double(x).square().flatten(1).mean(1) + TINY)


def _peakedness(x: Tensor) -> Tensor:
    """Log of the kurtosis, ``(B,)``."""
    square = double(x).square().flatten(1)
    return torch.log((square.square().mean(1) + TINY) / (square.mean(1).square() + TINY))


def _patches(x: Tensor) -> tuple[Tensor, Tensor]:
    """Spread of the log of the mean square of patches, and the log of the largest, ``(B,)``."""
    square = x.square().mean(1, keepdim=True)
    side = min(PATCH, *square.shape[2:])
    means = torch.log(double(F.avg_pool2d(square, side)).flatten(1) + TINY)
    return means.std(1, correction=0), means.amax(1)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of the angle between two predictions, ``(B,)``."""
    return F.cosine_similarity(double(a).flatten(1), double(b).flatten(1), dim=1)
