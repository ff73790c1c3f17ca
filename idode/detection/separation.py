"""How well scores tell known from unknown samples: ROC, AUROC, AUPR, FPR at 95% TPR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from idode.detection.conformal import Vector
from idode.errors import InputError

__all__ = ["Interval", "Separation", "auroc", "roc", "separation"]

RESAMPLES = 1000
COVERAGE = 0.95  # of the intervals
TPR = 0.95  # at which false positives are counted


@dataclass(frozen=True)
class Interval:
    """A value and its 95% bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Separation:
    """Unknown samples are the positive class."""

    auroc: Interval
    aupr: Interval
    fpr_at_95_tpr: Interval
    known: int
    unknown: int


def roc(known: Vector, unknown: Vector) -> tuple[Vector, Vector]:
    """False and true positive rates at every threshold, from (0, 0) to (1, 1)."""
    scores = np.concatenate([known, unknown])
    positive = np.concatenate([np.zeros(len(known)), np.ones(len(unknown))])
    order = np.argsort(-scores, kind="stable")
    # One point for all samples of equal score.
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    true, false = np.cumsum(positive[order])[last], np.cumsum(1 - positive[order])[last]
    return np.append(0.0, false / len(known)), np.append(0.0, true / len(unknown))


def auroc(known: Vector, unknown: Vector) -> float:
    """Chance that an unknown sample scores above a known one; ties count half."""
    false, true = roc(known, unknown)
    return float(np.sum(np.diff(false) * (true[1:] + true[:-1]) / 2))


def aupr(known: Vector, unknown: Vector) -> float:
    """Mean precision over the recall."""
    false, true = roc(known, unknown)
    found, wrong = true[1:] * len(unknown), false[1:] * len(known)
    return float(np.sum(np.diff(true) * found / (found + wrong)))


def fpr_at_tpr(known: Vector, unknown: Vector) -> float:
    """False positive rate where 95% of the unknown samples are found."""
    false, true = roc(known, unknown)
    return float(false[np.searchsorted(true, TPR - 1e-12)])


def separation(known: Vector, unknown: Vector, seed: int = 0) -> Separation:
    """All three with bootstrap intervals.

    Args:
        known: Scores ``(n,)``; higher is more unusual.
        unknown: Scores ``(m,)``.
        seed: Seed of the resampling.
    """
    if not len(known) or not len(unknown):
        raise InputError(
            f"got {len(known)} known and {len(unknown)} unknown samples: a ROC curve needs both"
        )
    rng = np.random.default_rng(seed)
    drawn = [
        (rng.choice(known, len(known)), rng.choice(unknown, len(unknown)))
        for _ in range(RESAMPLES)
    ]

    def interval(measure: Callable[[Vector, Vector], float]) -> Interval:
        tail = (1 - COVERAGE) / 2
        low, high = np.quantile([measure(*pair) for pair in drawn], [tail, 1 - tail])
        return Interval(measure(known, unknown), float(low), float(high))

    measures = interval(auroc), interval(aupr), interval(fpr_at_tpr)
    return Separation(*measures, len(known), len(unknown))
