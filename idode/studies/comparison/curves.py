"""How fast a run learned: its held-out bound against steps and against seconds of training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from idode.runs.run import Run
from idode.studies.report.curves import training_curve

__all__ = ["Curve", "learning_curve"]


@dataclass(frozen=True)
class Curve:
    """Held-out SDE bound at some steps; ``seconds`` count training and not evaluation."""

    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    bits: tuple[float, ...]

    def first_below(self, value: float) -> tuple[float, float] | None:
        """Steps and seconds where the bound first reaches ``value``; ``None`` if it never does.

        Between two values the curve is taken as straight.
        """
        for i, bits in enumerate(self.bits):
            if bits <= value:
                if i == 0:
                    return float(self.steps[0]), self.seconds[0]
                share = (self.bits[i - 1] - value) / (self.bits[i - 1] - bits)
                return (
                    self.steps[i - 1] + share * (self.steps[i] - self.steps[i - 1]),
                    self.seconds[i - 1] + share * (self.seconds[i] - self.seconds[i - 1]),
                )
        return None


def learning_curve(run: Run) -> Curve:
    """The curve that a run's metrics hold.

    Seconds are those of the intervals between lines, each from its own speed: a run that was
    interrupted counts only the time it worked.
    """
    found = training_curve(run.metrics)
    batch = run.config.train.batch_size
    at, clock = [0.0], [0.0]
    for step, speed in found.speed:
        clock.append(clock[-1] + (step - at[-1]) * batch / speed)
        at.append(float(step))
    steps = tuple(step for step, _ in found.held_out)
    seconds = tuple(float(s) for s in np.interp(steps, at, clock))
    return Curve(steps, seconds, tuple(bits for _, bits in found.held_out))
