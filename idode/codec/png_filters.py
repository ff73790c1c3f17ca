"""The five filters of PNG: what is stored of a row of bytes, given the row above."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from idode.codec.coder import DamagedError

__all__ = ["filtered"]

Bytes = NDArray[np.uint8]


def filtered(rows: Bytes, filters: bytes, channels: int) -> bytes:
    """Rows ``(H, W * C)`` as a PNG file has them, each behind the number of its filter."""
    if len(filters) != len(rows):
        raise DamagedError("a PNG file of it has another number of rows than declared")
    above = np.vstack([np.zeros_like(rows[:1]), rows[:-1]]).astype(np.int16)
    here = rows.astype(np.int16)
    left, corner = np.zeros_like(here), np.zeros_like(here)
    left[:, channels:] = here[:, :-channels]
    corner[:, channels:] = above[:, :-channels]
    guesses = (np.zeros_like(here), left, above, (left + above) >> 1, _paeth(left, above, corner))
    chosen = np.frombuffer(filters, dtype=np.uint8)
    if chosen.max() >= len(guesses):
        raise DamagedError("a PNG file of it has an unknown filter")
    guess = np.choose(chosen[:, None], guesses)
    stored = ((here - guess) & 255).astype(np.uint8)
    return np.hstack([chosen[:, None], stored]).tobytes()


def _paeth(
    left: NDArray[np.int16], above: NDArray[np.int16], corner: NDArray[np.int16]
) -> NDArray[np.int16]:
    """The one of three neighbours nearest to ``left + above - corner``; the first of equals."""
    guess = left + above - corner
    a, b, c = (np.abs(guess - x) for x in (left, above, corner))
    return np.where((a <= b) & (a <= c), left, np.where(b <= c, above, corner))
