"""What training wrote down about itself: ``metrics.jsonl`` as curves."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

__all__ = ["TrainingCurve", "after", "training_curve"]

Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class TrainingCurve:
    """Pairs of step and bits/dim, or speed."""

    loss: Points  # mean over the interval of what is minimised
    held_out: Points  # SDE bound on the test split
    speed: Points  # images a second, mean over the interval; evaluation takes no part
    begun: int = 0  # the last step of the run this one started from, all before it is that run's


def training_curve(metrics: Path) -> TrainingCurve:
    """The curves in a file of metrics; empty where there is none, as for an imported model."""
    if not metrics.exists():
        return TrainingCurve((), (), ())
    lines: list[dict[str, Any]] = []
    for text in metrics.read_text().splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue  # torn by the death of its writer
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    loss, held_out, speed = (
        _points(lines, name) for name in ("loss", "held_out", "images_per_second")
    )
    return TrainingCurve(loss, held_out, speed)


def after(before: TrainingCurve, own: TrainingCurve, step: int | None = None) -> TrainingCurve:
    """The curve of a run behind that of the run it started from, with steps counted on.

    It started after ``step``, or after all that is known of; what came later is not its past.
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
        begun=last,
    )


def _points(lines: list[dict[str, Any]], name: str) -> Points:
    pairs = ((line["step"], line.get(name)) for line in lines)
    return tuple(
        (step, float(value))
        for step, value in pairs
        if isinstance(value, int | float) and math.isfinite(value)
    )
