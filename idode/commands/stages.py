"""Progress bars for work in stages, one after the other."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm

__all__ = ["Stages"]


class Stages:
    """A bar for each stage on stderr, opened when the stage begins; none if ``quiet``."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._bar = quiet, tqdm(disable=True)

    def begin(self, stage: str, total: int | None, known: int, here: int) -> None:
        """The next stage; a line says what is known from before."""
        self._bar.close()
        if self._quiet:
            return
        if total is not None and known == total:
            print(f"{stage}: all {total} images are known from before", file=sys.stderr)
            return
        if known:
            print(f"{stage}: going on after {known} of {total} images", file=sys.stderr)
        # In a log file every refresh is a line.
        pause = 0.1 if sys.stderr.isatty() else 30.0
        self._bar = tqdm(
            desc=stage,
            total=None if total is None else known + here,
            initial=known,
            unit=" evaluations" if total is None else " images",
            file=sys.stderr,
            mininterval=pause,
        )

    def advance(self, count: int) -> None:
        """So many more of the stage."""
        self._bar.update(count)

    def __enter__(self) -> Stages:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
