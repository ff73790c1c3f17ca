"""Data looked at piece by piece: a memory-mapped split is never copied whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["IndexedBatches", "Pixels"]

Pixels: TypeAlias = Tensor | npt.NDArray[Any]


@dataclass(frozen=True)
class IndexedBatches:
    """Pieces of ``size`` rows of data ``(N, *)``, the last one possibly shorter.

    ``first_index`` is the place of the first row in its data set, which seeds its noise.
    """

    values: Pixels
    size: int
    first_index: int = 0
    device: torch.device | str | None = None  # by default where the values are

    @property
    def sizes(self) -> list[int]:
        """IndexedBatches of every piece."""
        count = len(self.values)
        return [min(self.size, count - lo) for lo in range(0, count, self.size)]

    def part(self, number: int) -> tuple[Tensor, list[int]]:
        """A piece ``(B, *)`` on the device, and the places of its rows in their data set."""
        lo = number * self.size
        rows = self.values[lo : lo + self.size]
        if not isinstance(rows, Tensor):
            # A copy, since a memory map is read-only, which torch does not allow; and int32,
            # since torch can hardly do anything with uint16.
            integer = rows.dtype.kind in "ui"
            rows = torch.from_numpy(rows.astype(np.int32) if integer else np.array(rows))
        first = self.first_index + lo
        return rows.to(self.device or rows.device), list(range(first, first + len(rows)))
