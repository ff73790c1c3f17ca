"""Arrays that live in a file: passing over them without keeping them in memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK_BYTES", "blocks", "release"]

BLOCK_BYTES = 1 << 24


def release(array: NDArray[Any]) -> None:
    """Give the resident pages of a memory-mapped array back to the system.

    A pass over a map leaves every page it touched in the process's resident size, which a job
    scheduler counts as memory used; the page cache keeps them without that. Only maps opened for
    reading are released, since elsewhere it would throw values away.
    """
    owner: object = array
    reading = False
    while isinstance(owner, np.ndarray):
        reading |= isinstance(owner, np.memmap) and owner.mode == "r"
        owner = owner.base
    if reading and isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        owner.madvise(mmap.MADV_DONTNEED)


def blocks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Consecutive rows ``(n, *)`` of at most 16 MB, each released before the next is read."""
    rows = max(1, BLOCK_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        yield array[start : start + rows]
        release(array)
