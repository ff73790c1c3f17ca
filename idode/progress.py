"""Progress bars on stderr."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from idode.errors import one_line

__all__ = ["Bar", "LateBar", "Stages"]


class LateBar:
    """A progress bar that is shown with the first update, so that invalid input prints no bar.

    Args:
        unit: What is counted.
        quiet: Show nothing.
        total: How many there will be, if known.
        scaled: Print large counts as 1.2k or 3.4M.
        name: A title in front of the bar.
        known: How many were done before, by an earlier process.
    """

    def __init__(
        self,
        unit: str,
        quiet: bool,
        total: int | None = None,
        scaled: bool = False,
        name: str | None = None,
        known: int = 0,
    ) -> None:
        self._settings: dict[str, Any] = {
            "unit": unit,
            "unit_scale": scaled,
            "total": total,
            "desc": name,
            "initial": known,
            "disable": quiet,
            "file": sys.stderr,
            # In a log file every refresh is a line.
            "mininterval": 0.1 if sys.stderr.isatty() else 30.0,
        }
        self._bar: Any = None

    @property
    def bar(self) -> Any:  # noqa: ANN401  tqdm has no types
        """The tqdm bar, shown from now on."""
        if self._bar is None:
            self._bar = tqdm(**self._settings)
        return self._bar

    def update(self, count: int) -> None:
        """Advance by ``count``."""
        self.bar.update(count)

    def close(self) -> None:
        """Close the bar, if it was ever shown."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> LateBar:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class Bar:
    """The progress of training; with ``quiet`` only warnings are printed."""

    def __init__(self, steps: int, quiet: bool) -> None:
        self._quiet = quiet
        self._late = LateBar("step", quiet, steps)

    def notice(self, text: str) -> None:
        """Print a line above the bar."""
        if not self._quiet or text.startswith("warning"):
            tqdm.write(one_line(text), file=sys.stderr)

    def progress(self, step: int, metrics: Mapping[str, float]) -> None:
        """Move the bar to ``step``; shows the latest loss and value of test samples in bits/dim.

        ``steps`` among the metrics is how many there will be, where that changes on the way.
        """
        names = {"loss": "loss", "held_out": "test"}
        shown = {names[k]: f"{metrics[k]:.3f}" for k in names if k in metrics}
        bar = self._late.bar
        bar.total = int(metrics.get("steps", bar.total))
        bar.set_postfix(shown, refresh=False)
        if bar.n == 0 and step > 1:  # resumed: the rate is that of this process
            bar.initial = bar.n = bar.last_print_n = step - 1
        bar.update(step - bar.n)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *raised: object) -> None:
        self._late.close()


class Stages:
    """The progress of work in several stages, one bar each."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._late = LateBar("", quiet=True)

    def begin(self, stage: str, total: int | None, known: int, here: int) -> None:
        """Start the bar of a stage.

        Args:
            stage: Its name.
            total: Images in all, ``None`` where evaluations are counted instead.
            known: How many are stored from an earlier run.
            here: How many this process will compute.
        """
        self._late.close()
        done = total is not None and known == total
        if done and not self._quiet:
            print(f"{stage}: all {total} images were evaluated before", file=sys.stderr)
        elif known and not self._quiet:
            print(f"{stage}: resuming after {known} of {total} images", file=sys.stderr)
        whole = None if total is None else known + here
        unit = " evaluations" if total is None else " images"
        self._late = LateBar(unit, self._quiet or done, whole, name=stage, known=known)
        self._late.update(0)

    def advance(self, count: int) -> None:
        """Advance the current stage by ``count``."""
        self._late.update(count)

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *raised: object) -> None:
        self._late.close()
