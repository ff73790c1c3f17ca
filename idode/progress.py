"""Progress bars on stderr."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

__all__ = ["Bar", "LateBar", "Stages"]


class LateBar:
    """A bar that opens when there is progress: bad input found before is one sentence, no bar."""

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
        """The bar itself, on the screen from now on."""
        if self._bar is None:
            self._bar = tqdm(**self._settings)
        return self._bar

    def update(self, count: int) -> None:
        """So many more are done."""
        self.bar.update(count)

    def close(self) -> None:
        """Leave the bar as it is, if it was ever shown."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> LateBar:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class Bar:
    """Steps with rate and time left; ``quiet`` leaves only notices of trouble."""

    def __init__(self, steps: int, quiet: bool) -> None:
        self._quiet = quiet
        self._late = LateBar("step", quiet, steps)

    def notice(self, text: str) -> None:
        """A line above the bar."""
        if not self._quiet or text.startswith("warning"):
            tqdm.write(text, file=sys.stderr)

    def progress(self, step: int, metrics: Mapping[str, float]) -> None:
        """The bar at ``step``, with the latest loss and held-out value in bits/dim."""
        shown = {k: f"{metrics[k]:.3f}" for k in ("loss", "held_out") if k in metrics}
        bar = self._late.bar
        bar.set_postfix(shown, refresh=False)
        if bar.n == 0 and step > 1:  # resumed: the rate is that of this life
            bar.initial = bar.n = bar.last_print_n = step - 1
        bar.update(step - bar.n)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *raised: object) -> None:
        self._late.close()


class Stages:
    """A bar for each stage of some work, on the screen when the stage begins."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._late = LateBar("", quiet=True)

    def begin(self, stage: str, total: int | None, known: int, here: int) -> None:
        """The next stage; a line says what is known from before."""
        self._late.close()
        done = total is not None and known == total
        if done and not self._quiet:
            print(f"{stage}: all {total} images are known from before", file=sys.stderr)
        elif known and not self._quiet:
            print(f"{stage}: going on after {known} of {total} images", file=sys.stderr)
        whole = None if total is None else known + here
        unit = " evaluations" if total is None else " images"
        self._late = LateBar(unit, self._quiet or done, whole, name=stage, known=known)
        self._late.update(0)

    def advance(self, count: int) -> None:
        """So many more of the stage."""
        self._late.update(count)

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *raised: object) -> None:
        self._late.close()
