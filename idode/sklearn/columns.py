r"""Columns of any scale and skewness as standard, uncorrelated ones, and the log-Jacobian.

Each column is centred at its median, divided by its deviation, and bent by the power transform of
Yeo and Johnson; then all are whitened. Powers stay in [0, 2], where the transform maps the real
line onto itself: a density of the new columns is a density of the old ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.covariance import ledoit_wolf

__all__ = ["Columns", "Matrix", "fit_columns"]

Matrix = NDArray[np.float64]

POWERS = np.linspace(0, 2, 41)
WORTH = 2.0  # nats that a power must gain over none: Akaike's price of a parameter, twice
LEAST_VARIANCE = 1e-6  # of a direction, next to unit columns


@dataclass(frozen=True)
class Columns:
    """``z = (bend((x - centre) / scale) - mean) @ whiten``, ``(n, d)`` to ``(n, d)``."""

    centre: Matrix  # (d,)
    scale: Matrix  # (d,)
    power: Matrix  # (d,)
    mean: Matrix  # (d,)
    whiten: Matrix  # (d, d)

    def forward(self, x: Matrix) -> tuple[Matrix, Matrix]:
        """The new columns, and the log-determinant of the map at each row ``(n,)``."""
        u = (x - self.centre) / self.scale
        bent, slope = bend(u, self.power)
        _, volume = np.linalg.slogdet(self.whiten)
        log_det = slope.sum(1) - np.log(self.scale).sum() + volume
        return (bent - self.mean) @ self.whiten, log_det

    def backward(self, z: Matrix) -> Matrix:
        """The inverse of :meth:`forward`."""
        bent = np.linalg.solve(self.whiten.T, z.T).T + self.mean
        return np.asarray(self.centre + self.scale * unbend(bent, self.power))


def fit_columns(x: Matrix) -> Columns:
    """The map for rows ``(n, d)`` without a constant column."""
    centre, scale = np.median(x, axis=0), x.std(axis=0)
    u = (x - centre) / scale
    power = np.array([_best_power(column) for column in u.T])
    bent, _ = bend(u, power)
    mean, spread = bent.mean(0), np.maximum(bent.std(0), 1e-12)
    covariance, _ = ledoit_wolf((bent - mean) / spread, assume_centered=True)
    variance, axes = np.linalg.eigh(covariance)
    whiten = axes / np.sqrt(np.maximum(variance, LEAST_VARIANCE)) / spread[:, None]
    return Columns(centre, scale, power, mean, whiten)


def bend(u: Matrix, power: Matrix) -> tuple[Matrix, Matrix]:
    """The transform of Yeo and Johnson, and the logarithm of its slope; both ``(n, d)``."""
    size = np.log1p(np.abs(u))
    exponent = np.where(u >= 0, power, 2 - power)
    grown = np.where(exponent > 1e-9, np.expm1(exponent * size) / np.maximum(exponent, 1e-9), size)
    return np.sign(u) * grown, (exponent - 1) * size


def unbend(bent: Matrix, power: Matrix) -> Matrix:
    """The inverse of :func:`bend`."""
    exponent = np.where(bent >= 0, power, 2 - power)
    size = np.abs(bent)
    grown = np.log1p(exponent * size) / np.maximum(exponent, 1e-9)
    return np.asarray(np.sign(bent) * np.expm1(np.where(exponent > 1e-9, grown, size)))


def _best_power(column: Matrix) -> float:
    """The power under which a column is most likely to be normal; 1 unless it is worth it."""
    bent, slope = bend(column[:, None], POWERS)
    gain = slope.sum(0) - len(column) / 2 * np.log(np.maximum(bent.var(0), 1e-300))
    best = int(np.argmax(gain))
    worth = gain[best] - gain[len(POWERS) // 2] > WORTH
    return float(POWERS[best]) if worth else 1.0
