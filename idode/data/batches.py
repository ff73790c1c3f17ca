"""Shuffled batches, and a thread that loads them ahead of training.

The order is a pure function of seed and step, so a resumed run and any number of processes see
the same batches without any stored state.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idode.data.mapped import release
from idode.errors import InputError

__all__ = ["Batches", "Loader", "for_device"]

T = TypeVar("T")

RELEASE_EVERY = 16


@lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, size: int) -> Tensor:
    """The order of one epoch, independent of all others; cached for the batches inside it."""
    state = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    return torch.randperm(size, generator=torch.Generator().manual_seed(int(state[0])))


@dataclass(frozen=True)
class Batches:
    """An endless stream of shuffled epochs, cut into batches.

    Epoch follows epoch without a gap: a batch may hold the end of one and the start of the next,
    so every sample is used exactly once an epoch whatever the batch size. For several processes
    take a slice of :meth:`indices`; the global batch stays that of one process.
    """

    seed: int
    batch_size: int
    size: int

    def __post_init__(self) -> None:
        if self.seed < 0 or self.batch_size < 1 or self.size < 1:
            raise InputError(
                f"batches need seed >= 0, batch_size >= 1 and size >= 1, and got {self.seed}, "
                f"{self.batch_size} and {self.size}"
            )

    def indices(self, step: int) -> Tensor:
        """Sample numbers ``(batch_size,)`` of the batch ``step`` = 0, 1, 2, ..."""
        position, missing = step * self.batch_size, self.batch_size
        parts = []
        while missing:
            epoch, start = divmod(position, self.size)
            part = permutation(self.seed, epoch, self.size)[start : start + missing]
            parts.append(part)
            position, missing = position + len(part), missing - len(part)
        return torch.cat(parts)


def for_device(device: torch.device | str) -> Callable[[int, Tensor], Tensor]:
    """Samples as they are; for a GPU in page-locked memory, from which it copies by itself."""
    pins = torch.device(device).type == "cuda"
    return lambda step, samples: samples.pin_memory() if pins else samples


@dataclass(frozen=True)
class _Failure:
    """What stopped the thread."""

    error: BaseException


class Loader(Generic[T]):
    """Batches, gathered and prepared by one thread ahead of the training step.

    Iterates endlessly from ``start``; close it, or use it in a ``with`` block, to stop the thread.
    Images come as uint8, those of more than 256 levels as int32 (torch computes little in uint16),
    vectors as float32. Memory-mapped splits are released as they are read, so resident memory
    stays at a few batches however large the file.

    Args:
        split: Samples ``(N, *)``.
        indices: Step to sample numbers, such as :meth:`Batches.indices` or a slice of it.
        start: The first step.
        ahead: How many batches may wait.
        prepare: Step and its samples to what the step takes; called in the thread.
    """

    def __init__(
        self,
        split: NDArray[Any],
        indices: Callable[[int], Tensor],
        start: int = 0,
        *,
        ahead: int = 4,
        prepare: Callable[[int, Tensor], T],
    ) -> None:
        self._split, self._indices, self._start = split, indices, start
        self._prepare = prepare
        self._queue: queue.Queue[T | _Failure] = queue.Queue(ahead)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="idode-loader", daemon=True)
        self._thread.start()

    def _gather(self, step: int) -> Tensor:
        rows = self._split[self._indices(step).numpy()]
        if rows.dtype == np.uint16:
            rows = rows.astype(np.int32)
        batch = torch.from_numpy(np.ascontiguousarray(rows))
        if step % RELEASE_EVERY == 0:
            release(self._split)
        return batch

    def _put(self, item: T | _Failure) -> None:
        while not self._closed.is_set():
            try:
                return self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue

    def _work(self) -> None:
        step = self._start
        try:
            while not self._closed.is_set():
                self._put(self._prepare(step, self._gather(step)))
                step += 1
        # Raised again where the batch is asked for: a thread has nobody to tell.
        except BaseException as error:
            self._put(_Failure(error))

    def __iter__(self) -> Loader[T]:
        return self

    def __next__(self) -> T:
        if self._closed.is_set():
            raise StopIteration
        item = self._queue.get()
        if isinstance(item, _Failure):
            self.close()
            raise item.error
        return item

    def close(self) -> None:
        """Stop the thread; the loader is at its end."""
        self._closed.set()
        self._thread.join()

    def __enter__(self) -> Loader[T]:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
