"""Data looked at batch by batch: a memory-mapped split is never copied whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from idode.errors import InputError
from idode.numerics import moved

__all__ = [
    "Batch",
    "FittingSize",
    "IndexedBatches",
    "Pixels",
    "check_shape",
    "out_of_memory",
    "rows_for",
    "to_tensor",
]

T = TypeVar("T")

SIGNED = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}

Pixels: TypeAlias = Tensor | npt.NDArray[Any]


def to_tensor(rows: Pixels) -> Tensor:
    """A tensor of the data; integers of an array become int32, or int64 where they are wider.

    A copy of an array, since a memory map is read-only, which torch does not allow; in the order
    of bytes of this machine, the only one torch knows; and signed, since torch can hardly do
    anything with uint16. What is beyond int64 wraps to a negative number,
    which is never a valid pixel.
    """
    if isinstance(rows, Tensor):
        return rows.to(SIGNED.get(rows.dtype, rows.dtype))
    if rows.dtype.kind not in "ui":
        return torch.from_numpy(rows.astype(rows.dtype.newbyteorder("=")))
    narrow = np.can_cast(rows.dtype, np.int32)
    return torch.from_numpy(rows.astype(np.int32 if narrow else np.int64))


def check_shape(values: Pixels, shape: tuple[int, ...] | None) -> None:
    """Refuse what is no array of samples ``(N, *)``, or not of the model's shape where known."""
    if not isinstance(values, np.ndarray | Tensor):
        raise InputError(
            f"the data must be a tensor or an array (N, *), got {type(values).__name__}"
        )
    if shape is not None and tuple(values.shape[1:]) != tuple(shape):
        letters = "N, C, H, W" if len(shape) == 3 else ", ".join(["N", *map(str, shape)])
        raise InputError(
            f"the model is of samples of shape {tuple(shape)}, got data of shape "
            f"{tuple(values.shape)}: pass ({letters})"
        )


def rows_for(
    condition: Mapping[str, Tensor], count: int, device: torch.device | str | None
) -> dict[str, Tensor]:
    """A condition on the device, refused unless it has one row for each of ``count`` samples."""
    for name, value in condition.items():
        if not isinstance(value, Tensor) or value.ndim == 0 or len(value) != count:
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"{name!r} is passed on to the network, so it must be a tensor with one row for "
                f"each of {count} samples, got {found}"
            )
    if device is None:
        return dict(condition)
    return {name: moved(value, device) for name, value in condition.items()}


@dataclass(frozen=True)
class Batch:
    """Rows of a data set on a device, their places in it, and their condition."""

    values: Tensor  # (B, *)
    indices: list[int]  # seed the noise of each row
    condition: Mapping[str, Tensor]  # (B, ...) each

    def part(self, lo: int, hi: int) -> Batch:
        """Rows ``lo`` to ``hi - 1``."""
        condition = {name: value[lo:hi] for name, value in self.condition.items()}
        return Batch(self.values[lo:hi], self.indices[lo:hi], condition)


def out_of_memory(error: RuntimeError) -> bool:
    """Whether a device, or the host, had no memory left."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return "out of memory" in str(error) or "can't allocate memory" in str(error)


class FittingSize:
    """Rows that fit into memory together: tried, halved where memory runs out, and remembered.

    Args:
        most: To begin with.
    """

    def __init__(self, most: int) -> None:
        self.most = most

    def each(self, count: int, work: Callable[[int, int], T]) -> Iterator[T]:
        """``work(lo, hi)`` for all of ``count`` rows, in as few pieces as fit."""
        lo = 0
        while lo < count:
            hi, failed = min(count, lo + self.most), ""
            try:
                found = work(lo, hi)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                failed = str(error)
            if not failed:
                yield found
                lo = hi
                continue
            if hi - lo == 1:
                raise InputError(
                    f"not even one sample fits into memory ({failed.splitlines()[0]}): use a "
                    "device with more, or checkpointing"
                )
            # Outside of the handler: the error keeps all that was computed alive.
            self.most = (hi - lo) // 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


@dataclass(frozen=True)
class IndexedBatches:
    """Batches of ``size`` rows of data ``(N, *)``, the last one possibly shorter.

    Args:
        values: The data.
        size: Rows of a batch.
        first_index: Place of the first row in its data set, which seeds its noise.
        device: Where batches go; by default where the values are.
        condition: Keyword arguments of the network, ``(N, ...)`` each.
    """

    values: Pixels
    size: int
    first_index: int = 0
    device: torch.device | str | None = None
    condition: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows_for(self.condition, len(self.values), None)

    @property
    def sizes(self) -> list[int]:
        """Rows of every batch."""
        count = len(self.values)
        return [min(self.size, count - lo) for lo in range(0, count, self.size)]

    def batch(self, number: int) -> Batch:
        """One batch ``(B, *)`` on the device."""
        lo = number * self.size
        rows = to_tensor(self.values[lo : lo + self.size])
        device = self.device or rows.device
        first = self.first_index + lo
        condition = {k: moved(v[lo : lo + self.size], device) for k, v in self.condition.items()}
        return Batch(moved(rows, device), list(range(first, first + len(rows))), condition)
