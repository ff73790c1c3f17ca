"""A progress bar over training steps."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType

from tqdm import tqdm

__all__ = ["Bar"]


class Bar:
    """Steps with rate and time left on stderr; ``quiet`` leaves only notices of trouble."""

    def __init__(self, steps: int, quiet: bool) -> None:
        self._quiet = quiet
        # In a log file every refresh is a line.
        pause = 0.1 if sys.stderr.isatty() else 30.0
        self._bar = tqdm(
            total=steps, unit="step", disable=quiet, file=sys.stderr, mininterval=pause
        )

    def notice(self, text: str) -> None:
        """A line above the bar."""
        if not self._quiet or text.startswith("warning"):
            tqdm.write(text, file=sys.stderr)

    def progress(self, step: int, metrics: Mapping[str, float]) -> None:
        """The bar at ``step``, with the latest loss and held-out value in bits/dim."""
        shown = {k: f"{metrics[k]:.3f}" for k in ("loss", "held_out") if k in metrics}
        self._bar.set_postfix(shown, refresh=False)
        if self._bar.n == 0 and step > 1:  # resumed: the rate is that of this life
            self._bar.initial = self._bar.n = step - 1
        self._bar.update(step - self._bar.n)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
