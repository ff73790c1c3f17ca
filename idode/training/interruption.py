"""Ctrl-C and SIGTERM that take effect between two steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType

__all__ = ["Interruption"]


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
