"""Weights that integrate a function from its values at given nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Speed", "lagrange_weights", "quadrature", "scaled_weights"]

Weights = npt.NDArray[np.float64]
Speed = Callable[[Weights], Weights]
"""A positive function of the clock that a velocity grows and falls with."""

POINTS, MASSES = np.polynomial.legendre.leggauss(10)  # a speed is smooth within a step


def scaled_weights(nodes: Sequence[float], lo: float, hi: float, speed: Speed) -> Weights:
    r"""Weights that integrate ``speed`` times a polynomial from ``lo`` to ``hi``.

    :math:`w_i = \int s(\gamma)\,\ell_i(\gamma)\,\mathrm d\gamma / s(\gamma_i)` with the Lagrange
    polynomials :math:`\ell_i`: what varies with the known speed is integrated as it is, and only
    the ratio to it is approximated (math.md: scaled-steps).
    """
    at, knots = (lo + hi) / 2 + (hi - lo) / 2 * POINTS, np.asarray(nodes, dtype=np.float64)
    basis = np.ones((len(knots), len(at)))
    for i, knot in enumerate(knots):
        for other in np.delete(knots, i):
            basis[i] *= (at - other) / (knot - other)
    masses = (hi - lo) / 2 * MASSES * speed(at)
    return np.asarray(basis @ masses / speed(knots))


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
