"""Training that ends on time: the number of steps is estimated again while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Budget"]


class Budget:
    """Wall-clock time for the rest of a training.

    A run that is resumed has the share of its minutes that its schedule has left, so that no time
    needs to be stored.

    Args:
        minutes: Of the whole training.
        step: Steps done.
        steps: Steps in all, as planned so far.
        spent: Seconds that were needed before, to choose settings.
        clock: What counts the seconds.
    """

    def __init__(
        self,
        minutes: float,
        step: int,
        steps: int,
        spent: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.clock, self.first, self.began = clock, step, clock()
        self.seconds = 60 * minutes * (1 - step / steps) - spent

    def steps(self, step: int) -> int:
        """Steps in all that fit, at the speed so far, evaluations and checkpoints included.

        At least one more than are done: the last one is known before it is taken, since a grid, a
        held-out value and a checkpoint belong to it.
        """
        spent = self.clock() - self.began
        pace = spent / (step - self.first)
        return step + max(1, int((self.seconds - spent) / pace))
