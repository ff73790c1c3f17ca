"""What training wrote down about itself: ``metrics.jsonl`` as curves."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["TrainingCurve", "training_curve"]

Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class TrainingCurve:
    """Pairs of step and bits/dim, or speed."""

    loss: Points  # mean over the interval of what is minimised
    held_out: Points  # SDE bound on the test split
    speed: Points  # images a second, mean over the interval; evaluation takes no part


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
    names = ("loss", "held_out", "images_per_second")
    return TrainingCurve(*(_points(lines, name) for name in names))


def _points(lines: list[dict[str, Any]], name: str) -> Points:
    pairs = ((line["step"], line.get(name)) for line in lines)
    return tuple(
        (step, float(value))
        for step, value in pairs
        if isinstance(value, int | float) and math.isfinite(value)
    )
