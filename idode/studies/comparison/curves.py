"""Learning curves: the held-out bound against steps and against seconds of training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from idode.runs.run import Run
from idode.studies.report.curves import training_curve

__all__ = ["Curve", "learning_curve"]


@dataclass(frozen=True)
class Curve:
    """Held-out SDE bound at some steps; ``seconds`` are without evaluation."""

    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    bits: tuple[float, ...]

    def first_below(self, value: float) -> tuple[float, float] | None:
        """Steps and seconds until the bound first reaches ``value``; ``None`` if it never does.

        The curve is interpolated linearly.
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
    """The curve stored in the metrics of a run.

    Seconds are computed from the speed in each interval, so that the time between an interruption
    and the restart does not count.
    """
    found = training_curve(run.metrics)
    batch = run.config.train.batch_size
    at, clock = [0.0], [0.0]
    for step, speed in found.speed:
        if speed <= 0:
            continue  # a damaged line
        clock.append(clock[-1] + (step - at[-1]) * batch / speed)
        at.append(float(step))
    steps = tuple(step for step, _ in found.held_out)
    seconds = tuple(float(s) for s in np.interp(steps, at, clock))
    return Curve(steps, seconds, tuple(bits for _, bits in found.held_out))
