"""Where on the clock uniformly dequantized pixels should enter (paper, figure on start times).

Uniform noise is wider than the model's own at ``gamma_min``, so the model is asked at a later
time; which one is a matter of the model and the data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from idode.errors import InputError
from idode.likelihood import BitsPerDim, Settings, bits_per_dim
from idode.model import DiffusionODE
from idode.rows import Pixels
from idode.weights import uniform_start

__all__ = ["StartCurve", "search_start"]


@dataclass(frozen=True)
class StartCurve:
    """Bits/dim against the start."""

    gammas: tuple[float, ...]
    results: tuple[BitsPerDim, ...]
    best: float  # lowest point of the parabola through the lowest value and its neighbours


def search_start(
    model: DiffusionODE,
    pixels: Pixels,
    gammas: Sequence[float] | None = None,
    settings: Settings | None = None,
) -> StartCurve:
    """Evaluate uniform dequantization at several starts and find the best.

    Every start sees the same noise and probes for an image, so that the curve is smooth and
    differences between starts are far more certain than the values.

    Args:
        model: A model of integer data.
        pixels: Integers ``(N, *)``; the paper takes 512 or 1024 images.
        gammas: Starts; by default seven around where the noise has the variance of a bin.
        settings: Everything else about the evaluation.
    """
    if model.levels is None:
        raise InputError("a start is searched for integer data; this model has continuous data")
    usual = np.maximum(model.gamma_min, uniform_start(model.levels) + 0.4 * np.arange(-2, 5))
    starts = np.unique(np.asarray(usual if gammas is None else gammas, dtype=np.float64))
    if len(starts) < 3:
        raise InputError(f"a search needs at least 3 starts, got {len(starts)}")
    plain = settings or Settings()
    results: list[BitsPerDim] = []
    for g in starts:
        chosen = dataclasses.replace(plain, dequantization="uniform", start=float(g))
        results.append(bits_per_dim(model, pixels, chosen))
        if not results[-1].complete:
            raise KeyboardInterrupt  # starts compare only on the same images
    values = np.array([r.mean for r in results])
    low = int(np.clip(values.argmin(), 1, len(values) - 2))
    near = slice(low - 1, low + 2)
    square, slope, _ = np.polyfit(starts[near], values[near], 2)
    vertex = -slope / (2 * square) if square > 0 else starts[values.argmin()]
    best = float(np.clip(vertex, starts[0], starts[-1]))
    return StartCurve(tuple(float(g) for g in starts), tuple(results), best)
