"""What training prints while it runs, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Reporter", "Silent", "TrainingResult"]


class Reporter(Protocol):
    """Receives the progress of a training, such as a progress bar."""

    def notice(self, text: str) -> None:
        """Called with a line to show."""

    def progress(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called after each step with the latest metrics."""


class Silent:
    """A reporter that ignores everything."""

    def notice(self, text: str) -> None:
        """Ignore the line."""

    def progress(self, step: int, metrics: Mapping[str, float]) -> None:
        """Ignore the step."""


@dataclass(frozen=True)
class TrainingResult:
    """How a call to :meth:`Trainer.train` ended."""

    step: int
    interrupted: bool
    loss: float | None  # bits/dim, of the last line of metrics
    held_out: float | None  # bits/dim
    seconds: float  # of this call
