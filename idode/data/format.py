"""What a format of data files is: options, and a stream of rows.

A format never holds a data set; it yields chunks, ``("train", rows)`` and ``("test", rows)`` in
any interleaving, images as integers ``(n, C, H, W)`` and vectors as floats ``(n, D)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from idode.errors import InputError

__all__ = ["CHUNK_ROWS", "Chunks", "FileFormat", "SplitName", "held_out", "split_rows"]

SplitName: TypeAlias = Literal["train", "test"]
Chunks: TypeAlias = Iterator[tuple[SplitName, NDArray[Any]]]

CHUNK_ROWS = 1024


@dataclass(frozen=True)
class FileFormat(ABC):
    """A format of the user's files; its fields are the options after ``?`` in a spec.

    Args:
        test: The share of rows held out for testing where the files have no split of their own.
        levels: Integers are 0..levels-1; by default what their dtype can hold.
    """

    test: float = 0.1
    levels: int | None = None

    @abstractmethod
    def read(self, path: Path) -> Chunks:
        """The rows of the file or folder at ``path``."""


def held_out(index: NDArray[np.int64], fraction: float) -> NDArray[np.bool_]:
    """Which rows are test rows where the data has no split of its own.

    Row i is held out when floor((i+1)·fraction) > floor(i·fraction): the last of every ten for
    0.1. Spread evenly, so that data sorted by class keeps its classes on both sides, and without
    randomness, so that everybody gets the same split.

    >>> held_out(np.arange(8), 0.25).nonzero()[0].tolist()
    [3, 7]
    """
    if not 0 < fraction < 1:
        raise InputError(f"test={fraction} is not a fraction: give one between 0 and 1, like 0.1")
    whole = np.floor(np.stack([index, index + 1]) * fraction + 1e-9)
    return np.asarray(whole[1] > whole[0])


def split_rows(rows: Iterator[NDArray[Any]], fraction: float) -> Chunks:
    """Divide a stream of rows by :func:`held_out`."""
    start = 0
    for block in rows:
        test = held_out(np.arange(start, start + len(block)), fraction)
        start += len(block)
        yield "train", block[~test]
        yield "test", block[test]
