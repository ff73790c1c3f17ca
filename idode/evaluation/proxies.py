r"""Quantities of an image that predict its bits/dim and cost next to nothing.

A regression on them over the whole test set takes most of the difference between images out of
the error of a mean over few (:mod:`idode.evaluation.multilevel`). The best of them is what a small
lossless coder would spend: each pixel is predicted from the pixels before it by least squares,
and the residual costs minus the logarithm of its frequency among residuals with about as much
activity around them. It needs no bitstream, so thousands of images take seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Features", "image_features"]

Features = npt.NDArray[np.float64]
"""``(N, p)``: one row for each image."""
Array = npt.NDArray[np.float32]
Rows = npt.NDArray[np.generic]

BLOCK = 128  # images at once: their planes fit the processor's cache
FIT = 1024  # images that the predictor is fitted on
CONTEXTS, STEP = 32, 3  # kinds of surroundings, by activity; three for each factor of 2
RANGE = 255  # residuals lie within plus or minus this, after scaling
CAUSAL = ((0, 1), (1, 0), (1, 1), (1, -1), (0, 2), (2, 0), (2, 1), (2, -1))  # up, left
ACROSS = ((0, 0), (0, 1), (1, 0), (1, 1))  # in channels that come before
AROUND = ((0, 1), (1, 0), (1, 1), (1, -1))  # residuals that tell the activity


def image_features(images: Rows) -> tuple[list[str], Features]:
    """Names and values of the proxies that numpy computes by itself.

    Args:
        images: The whole test set: pixels ``(N, C, H, W)``, or vectors ``(N, D)``.
    """
    if images.ndim != 4 or min(images.shape[2:]) < 3:
        return _vector_features(images)
    names = ["code length", "activity", "gradients", "contrast", "flat areas", "clipped pixels"]
    largest = max(int(np.max(images)), 1)
    parts = [_statistics(block, largest) for block in _blocks(images)]
    return names, np.column_stack([*_code_lengths(images), np.concatenate(parts)])


def _blocks(images: Rows) -> Iterator[Array]:
    for first in range(0, len(images), BLOCK):
        yield np.asarray(images[first : first + BLOCK], dtype=np.float32)


def _vector_features(rows: Rows) -> tuple[list[str], Features]:
    """Features of vectors, whose meaning is unknown: mean, spread and extremes."""
    x = np.asarray(rows, dtype=np.float64).reshape(len(rows), -1)
    names = ["mean", "spread", "least", "largest"]
    return names, np.column_stack([x.mean(1), x.std(1), x.min(1), x.max(1)])


def _statistics(x: Array, largest: int) -> Features:
    """Gradients, contrast, and shares of flat and of clipped pixels, of a block ``(B, C, H, W)``.

    Logarithms, since bits are the logarithm of a size.
    """
    across, down = np.abs(np.diff(x, axis=3)), np.abs(np.diff(x, axis=2))
    rows = len(x)
    clipped = (x == 0) | (x == largest)
    columns = [
        sum(np.log1p(d).reshape(rows, -1).mean(1) for d in (across, down)),
        np.log1p(x.reshape(rows, -1).std(1)),
        sum((d == 0).reshape(rows, -1).mean(1) for d in (across, down)),
        clipped.reshape(rows, -1).mean(1),
    ]
    return np.column_stack(columns).astype(np.float64)


def _code_lengths(images: Rows) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Bits/dim ``(N,)`` of a predictive coder with adaptive statistics; the mean log-activity."""
    n, size = len(images), int(np.prod(images.shape[1:]))
    scale = np.float32(min(1.0, RANGE / max(int(np.max(images)), 1)))
    some = np.linspace(0, n - 1, min(n, FIT)).astype(int)
    weights = _predictors(np.asarray(images[some], dtype=np.float32) * scale)
    symbols = np.empty((n, size), dtype=np.int16)
    contexts = np.empty((n, size), dtype=np.uint8)
    active = np.empty(n)
    for number, block in enumerate(_blocks(images)):
        residual, activity = _residuals(block * scale, weights)
        here = slice(number * BLOCK, number * BLOCK + len(block))
        symbols[here] = np.clip(np.rint(residual), -RANGE, RANGE).reshape(len(block), -1)
        kind = np.log2(1 + activity).reshape(len(block), -1)
        active[here] = kind.mean(1)
        contexts[here] = np.minimum(np.ceil(STEP * kind), CONTEXTS - 1)
    return _spent(symbols, contexts), active


def _spent(
    symbols: npt.NDArray[np.int16], contexts: npt.NDArray[np.uint8]
) -> npt.NDArray[np.float64]:
    """Minus the logarithm of each symbol's frequency in its context, averaged over an image."""
    width = 2 * RANGE + 1
    count = np.zeros(width * CONTEXTS, dtype=np.float64)
    parts = [slice(i, i + BLOCK) for i in range(0, len(symbols), BLOCK)]

    def cells(part: slice) -> npt.NDArray[np.int64]:
        return contexts[part].astype(np.int64) * width + symbols[part] + RANGE

    for part in parts:
        count += np.bincount(cells(part).ravel(), minlength=len(count))
    table = count.reshape(-1, width) + 0.05
    cost = -np.log2(table / table.sum(1, keepdims=True)).ravel()
    return np.concatenate([cost[cells(part)].mean(1) for part in parts])


def _shifted(plane: Array, shifts: Sequence[tuple[int, int]]) -> list[Array]:
    """A plane ``(B, H, W)`` as seen from the pixels below and to the right."""
    height, width = plane.shape[1:]
    padded = np.pad(plane, ((0, 0), (2, 0), (2, 1)), mode="edge")
    return [padded[:, 2 - y : 2 - y + height, 2 - x : 2 - x + width] for y, x in shifts]


def _regressors(x: Array, channel: int) -> list[Array]:
    """What is known before a channel's pixel: those before it, and other channels at its place."""
    found = _shifted(x[:, channel], CAUSAL)
    for before in range(channel):
        found += _shifted(x[:, before], ACROSS)
    return found


def _predictors(x: Array) -> list[Array]:
    """Least-squares weights for every channel, of some images ``(B, C, H, W)``."""
    found = []
    for channel in range(x.shape[1]):
        a = np.stack([r.ravel() for r in _regressors(x, channel)])
        gram = (a @ a.T).astype(np.float64)
        gram += 1e-6 * np.trace(gram) / len(gram) * np.eye(len(gram)) + 1e-9 * np.eye(len(gram))
        found.append(np.linalg.solve(gram, a @ x[:, channel].ravel()).astype(np.float32))
    return found


def _residuals(x: Array, weights: Sequence[Array]) -> tuple[Array, Array]:
    """Residuals and the activity around each, ``(B, C, H, W)``; no activity where all is flat."""
    residual, activity = np.empty_like(x), np.empty_like(x)
    for channel, weight in enumerate(weights):
        known = _regressors(x, channel)
        left = known[0]
        guess = weight[0] * left
        for w, plane in zip(weight[1:], known[1:], strict=True):
            guess += w * plane
        flat = (left == known[1]) & (left == known[2]) & (left == known[3])
        residual[:, channel] = x[:, channel] - np.where(flat, left, guess)
        size = np.abs(residual[:, channel])
        around = sum(_shifted(size, AROUND))
        for before in range(channel):
            around = around + 2 * np.abs(residual[:, before])
        activity[:, channel] = np.where(flat & (around < 1), 0, around + np.float32(1e-3))
    return residual, activity
