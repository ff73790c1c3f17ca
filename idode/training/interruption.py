"""Ctrl-C and SIGTERM that take effect between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

import torch
from torch import Tensor

from idode.runs.distributed import World

__all__ = ["Agreement", "Interruption"]


class Interruption:
    """Records the first SIGINT or SIGTERM while active; a second one has its usual effect."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, signal.Handlers] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)  # type: ignore[assignment]
        return self

    def __exit__(self, *raised: object) -> None:
        self._restore()


class Agreement:
    """Lets all processes stop after the same step, without any waiting for the others.

    The question of one step is answered in the next, when everyone has long been asked.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._answer: Callable[[], Tensor] | None = None

    def stops(self, requested: bool) -> bool:
        """Whether any process was asked to stop; of several, by the step before this one."""
        if self._world.size == 1:
            return requested
        answer = self._answer
        self._answer = self._world.sum_later(torch.tensor([float(requested)]))
        return answer is not None and bool(answer() > 0)

    def settle(self) -> None:
        """Wait for the last answer: nobody leaves while another still asks."""
        if self._answer is not None:
            self._answer()
