"""p-values against known samples, and how many flags to believe."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from idode.errors import InputError

__all__ = ["Vector", "discoveries", "p_values", "threshold"]

Vector = NDArray[np.float64]


def p_values(scores: Vector, known: Vector) -> Vector:
    r"""Conformal p-values :math:`(1 + \#\{\text{known} \ge s\})/(n + 1)`, ``(N,)``.

    If a sample and the ``n`` known ones are exchangeable, its p-value is at most :math:`\alpha`
    with a chance of at most :math:`\alpha`, whatever the scores are.

    >>> p_values(np.array([0.5, 9.0]), np.array([1.0, 2.0, 3.0])).tolist()
    [1.0, 0.25]

    Args:
        scores: Higher is more unusual, ``(N,)``.
        known: Scores of known samples that nothing was fitted to, ``(n,)``.
    """
    if not len(known):
        raise InputError("p-values need scores of known samples: give at least one")
    below = np.searchsorted(np.sort(known), scores, side="left")
    return np.asarray((1 + len(known) - below) / (len(known) + 1), dtype=np.float64)


def threshold(known: Vector, level: float) -> float:
    """The score above which p-values are at most ``level``; infinite where there are too few.

    One of the known scores, and no quantile between two of them: that would be too low.

    >>> threshold(np.array([1.0, 2.0, 3.0]), 0.5)
    2.0

    Args:
        known: Scores of known samples that nothing was fitted to, ``(n,)``.
        level: Of the p-values.
    """
    above = np.arange(len(known), 0, -1) / (len(known) + 1)  # p-values just above each, in order
    enough = np.flatnonzero(above <= level)
    return float(np.sort(known)[enough[0]]) if len(enough) else math.inf


def discoveries(p: Vector, rate: float) -> NDArray[np.bool_]:
    """Benjamini-Hochberg: which p-values to flag so that about ``rate`` of the flags are false.

    >>> discoveries(np.array([0.001, 0.9, 0.02, 0.04]), 0.05).tolist()
    [True, False, True, False]
    """
    check_share("rate", rate)
    order = np.argsort(p, kind="stable")
    passed = p[order] <= rate * np.arange(1, len(p) + 1) / max(len(p), 1)
    count = int(np.flatnonzero(passed)[-1]) + 1 if passed.any() else 0
    flags = np.zeros(len(p), dtype=bool)
    flags[order[:count]] = True
    return flags


def check_share(name: str, value: float) -> None:
    """Refuse what is not strictly between 0 and 1."""
    if not 0 < value < 1:
        raise InputError(f"{name}: must be between 0 and 1, got {value}")
