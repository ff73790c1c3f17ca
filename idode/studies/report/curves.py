"""The curves of a training, read from its ``metrics.jsonl``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from idode.training.metrics import read_metrics

__all__ = ["TrainingCurve", "continued", "training_curve"]

LARGEST = 1e300  # of what is no damage; a JSON number may be any
Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class TrainingCurve:
    """Pairs of step and value."""

    loss: Points  # bits/dim, mean of the objective over the interval
    held_out: Points  # bits/dim, SDE bound on the test split
    speed: Points  # images a second, mean over the interval, without the time of evaluation
    finetuned_after: int = 0  # steps up to this one belong to the run that was fine-tuned


def training_curve(metrics: Path) -> TrainingCurve:
    """Read a file of metrics; the curves are empty if there is none, as for an imported model."""
    lines = read_metrics(metrics)
    loss, held_out, speed = (
        _points(lines, name) for name in ("loss", "held_out", "images_per_second")
    )
    return TrainingCurve(loss, held_out, speed)


def continued(before: TrainingCurve, own: TrainingCurve, step: int | None = None) -> TrainingCurve:
    """The curve of a fine-tuned run appended to that of the run it started from.

    Args:
        before: Of the run it started from.
        own: Of the fine-tuned run; its steps are counted on from ``step``.
        step: The step it started after; by default the last one in ``before``. Later points of
            ``before`` are left out.
    """
    known = (place for pairs in (before.loss, before.held_out) for place, _ in pairs)
    last = max(known, default=0) if step is None else step

    def joined(first: Points, second: Points) -> Points:
        past = (point for point in first if point[0] <= last)
        return (*past, *((last + place, value) for place, value in second))

    return replace(
        own,
        loss=joined(before.loss, own.loss),
        held_out=joined(before.held_out, own.held_out),
        speed=joined(before.speed, own.speed),
        finetuned_after=last,
    )


def _points(lines: list[dict[str, Any]], name: str) -> Points:
    pairs = ((line["step"], line.get(name)) for line in lines)
    return tuple(
        (step, float(value))
        for step, value in pairs
        if isinstance(value, int | float) and abs(value) < LARGEST and not math.isnan(value)
    )
