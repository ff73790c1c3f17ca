"""Weights that integrate a function from its values at given nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["lagrange_weights", "quadrature"]

Weights = npt.NDArray[np.float64]


def lagrange_weights(nodes: Sequence[float], lo: float, hi: float) -> Weights:
    """Weights that integrate the polynomial through ``nodes`` from ``lo`` to ``hi`` exactly."""
    centre = (lo + hi) / 2
    scale = max(abs(node - centre) for node in (*nodes, lo, hi))
    powers = np.arange(len(nodes))
    vander = ((np.asarray(nodes) - centre) / scale)[None, :] ** powers[:, None]
    a, b = (lo - centre) / scale, (hi - centre) / scale
    moments = scale * (b ** (powers + 1) - a ** (powers + 1)) / (powers + 1)
    return np.asarray(np.linalg.solve(vander, moments))


def quadrature(grid: Sequence[float], order: int = 4) -> Weights:
    """Weights on all nodes of ``grid``: on each interval, the polynomial through the nearest."""
    count = len(grid)
    order = min(order, count)
    weights = np.zeros(count)
    for i in range(count - 1):
        first = max(0, min(i - order // 2 + 1, count - order))
        near = slice(first, first + order)
        weights[near] += lagrange_weights(list(grid[near]), grid[i], grid[i + 1])
    return weights
