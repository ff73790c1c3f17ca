"""Work in batches that can be stopped, gone on with, and shared by several processes.

A batch is the unit of all three: whoever computes it, and in whichever life, gets the same
numbers, so the outcome has the same digits however the work was cut.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import distributed

from idode.errors import InputError

__all__ = ["Done", "Ledger", "Record", "Store", "Watch", "digest", "exchange"]

Record = Mapping[str, Any]
"""What one batch gave, as plain values: JSON keeps every bit of a float64."""

# The slowest process may be hours behind; a dead one is noticed by whoever started them.
PATIENCE = datetime.timedelta(days=30)


class _Key(NamedTuple):
    """Which batch of which work a record is of."""

    stage: str
    given: str
    batch: int
    images: int


class Watch(Protocol):
    """Whoever shows how far the work is."""

    def begin(self, stage: str, total: int | None, known: int, here: int) -> None:
        """A stage of ``total`` images, ``known`` of them from before, ``here`` for this process.

        ``None`` is a stage of unknown length, which counts evaluations.
        """

    def advance(self, count: int) -> None:
        """So many more are done."""


class Unwatched:
    """Shows nothing."""

    def begin(self, stage: str, total: int | None, known: int, here: int) -> None:
        """Nothing."""

    def advance(self, count: int) -> None:
        """Nothing."""


class Store(Protocol):
    """Whatever outlives the process."""

    @property
    def identity(self) -> str:
        """Of the work: records of other work must not be used."""

    def records(self) -> list[Record]:
        """All that was kept."""

    def append(self, record: Record) -> None:
        """Keep one more; when this returns it is safe."""


@dataclass(frozen=True)
class Done:
    """Batches from the first on, without gaps; all of them unless interrupted."""

    records: list[Record]
    complete: bool


class Ledger:
    """Knows what is done, shares out what is not, and keeps what gets done.

    It is for one model on one data set and one kind of device: of these it knows nothing.

    Args:
        watch: Sees the progress of this process.
        store: Keeps records for another life; without one they live as long as this object.
        rank: Of this process among ``size`` of a process group, each of which makes the same
            calls in the same order.
        size: Number of processes.
    """

    def __init__(
        self,
        watch: Watch | None = None,
        store: Store | None = None,
        rank: int = 0,
        size: int = 1,
    ) -> None:
        self._watch, self._store = watch or Unwatched(), store
        self._rank, self._size = rank, size
        self._group = distributed.new_group(backend="gloo", timeout=PATIENCE) if size > 1 else None
        mine = [] if store is None else store.records()
        identity = None if store is None else store.identity
        seen = [json.loads(text) for text in self._exchange(json.dumps([identity, mine]))]
        if len({name for name, _ in seen if name is not None}) > 1:
            raise InputError(
                "the processes see different models, data or settings: give all of them the same "
                "command and the same files"
            )
        self._known: dict[_Key, Record] = {
            _key(record): record for _, records in seen for record in records
        }

    def once(
        self,
        stage: str,
        size: int,
        make: Callable[[Callable[[int], None]], Record],
        given: str = "",
    ) -> Record:
        """What ``make(tick)`` gives, computed by one process, in one life, for all.

        Args:
            stage: Its name.
            size: Images it is made from: another number is other work.
            make: Calls ``tick`` with the number of evaluations it has just done.
            given: As for :meth:`each`.
        """
        key = _Key(stage, given, 0, size)
        if key not in self._known:
            text = ""
            if self._rank == 0:
                self._watch.begin(stage, None, 0, 0)
                text = json.dumps(self._make(key, lambda: make(self._watch.advance)))
            shared: Record = json.loads(self._exchange(text)[0])
            self._known[key] = shared
        return self._known[key]

    def each(
        self,
        stage: str,
        sizes: Sequence[int],
        make: Callable[[int], Record],
        progress: Callable[[int], None] | None = None,
        given: str = "",
    ) -> Done:
        """What ``make(number)`` gives for every batch.

        No process waits for another before all of its own batches are done. ``Ctrl-C`` stops a
        single process with what there is; one of several cannot speak for the others and passes
        the interruption on.

        Args:
            stage: Name of this work; other work has another name.
            sizes: Images of every batch.
            make: Computes a batch.
            progress: Called with the number of images just done, after they are kept.
            given: :func:`digest` of all that ``make`` depends on: batches made from something
                else are not taken for these.
        """
        keys = [_Key(stage, given, number, size) for number, size in enumerate(sizes)]
        missing = [key for key in keys if key not in self._known]
        mine = missing[self._rank :: self._size]
        known = sum(sizes) - sum(key.images for key in missing)
        self._watch.begin(stage, sum(sizes), known, sum(key.images for key in mine))
        made: list[Record] = []
        try:
            for key in mine:
                made.append(self._make(key, functools.partial(make, key.batch)))
                self._watch.advance(key.images)
                if progress is not None:
                    progress(key.images)
        except KeyboardInterrupt:
            if self._size > 1:
                raise
        if missing and self._size > 1:
            for text in self._exchange(json.dumps(made)):
                self._known |= {_key(record): record for record in json.loads(text)}
        records = itertools.takewhile(lambda r: r is not None, map(self._known.get, keys))
        found = [record for record in records if record is not None]
        return Done(found, len(found) == len(keys))

    def _make(self, key: _Key, make: Callable[[], Record]) -> Record:
        began = time.perf_counter()
        found = {**key._asdict(), **make()}
        record = {**found, "seconds": time.perf_counter() - began}
        self._known[key] = record  # first: an interrupt may come when the line is just written
        if self._store is not None:
            self._store.append(record)
        return record

    def _exchange(self, text: str) -> list[str]:
        return [text] if self._group is None else exchange(text, self._size, self._group)


def exchange(text: str, size: int, group: distributed.ProcessGroup) -> list[str]:
    """The texts of all processes in the order of ranks, on all."""
    raw = text.encode()
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    distributed.all_gather(lengths, torch.tensor([len(raw)]), group=group)
    longest = max(1, *(int(n) for n in lengths))
    letters = torch.tensor(list(raw.ljust(longest)), dtype=torch.uint8)
    parts = [torch.empty_like(letters) for _ in range(size)]
    distributed.all_gather(parts, letters, group=group)
    both = zip(parts, lengths, strict=True)
    return [part[: int(n)].numpy().tobytes().decode() for part, n in both]


def digest(given: Mapping[str, Any]) -> str:
    """A short name for plain values, numpy's among them: other values, another name."""
    text = json.dumps(given, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _key(record: Record) -> _Key:
    return _Key(record["stage"], record.get("given", ""), record["batch"], record["images"])
