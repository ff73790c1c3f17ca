"""Work in batches that can be stopped, resumed, and shared by several processes.

A batch is the unit of all three: whoever computes it, and after however many restarts, gets the
same numbers, so the outcome has the same digits however the work was divided.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import distributed

from idode.errors import InputError

__all__ = [
    "BatchRunner",
    "Codec",
    "Done",
    "Progress",
    "Record",
    "Store",
    "exchange",
    "fingerprint",
]

T = TypeVar("T")

Record = Mapping[str, Any]
"""The result of one batch as plain values: JSON keeps every bit of a float64."""

# The slowest process may be hours behind; a dead one is noticed by whoever started them.
PATIENCE = datetime.timedelta(days=30)


@dataclass(frozen=True)
class Codec(Generic[T]):
    """How results are written and read; used only where they are stored or sent."""

    to_json: Callable[[T], Record]
    from_json: Callable[[Record], T]


class _Key(NamedTuple):
    """Which batch of which work a record is of."""

    stage: str
    given: str
    batch: int
    images: int


@dataclass
class _Piece:
    """A finished batch: its result, or the record it is read from when it is asked for."""

    seconds: float
    value: object = None
    record: Record | None = None

    def read(self, codec: Codec[T]) -> T:
        if self.record is not None:
            self.value, self.record = codec.from_json(self.record), None
        return cast(T, self.value)


class Progress(Protocol):
    """Shows how far the work is."""

    def begin(self, stage: str, total: int | None, known: int, here: int) -> None:
        """A stage of ``total`` images, ``known`` of them stored, ``here`` for this process.

        ``None`` is a stage of unknown length, which counts evaluations of the network.
        """

    def advance(self, count: int) -> None:
        """``count`` more are done."""


class NoProgress:
    """Shows nothing."""

    def begin(self, stage: str, total: int | None, known: int, here: int) -> None:
        """Ignored."""

    def advance(self, count: int) -> None:
        """Ignored."""


class Store(Protocol):
    """Keeps records after the process has ended."""

    @property
    def identity(self) -> str:
        """What the work is: records of other work must not be used."""

    def records(self) -> list[Record]:
        """All that were kept."""

    def append(self, record: Record) -> None:
        """Keep one more; when this returns it is on disk."""


@dataclass(frozen=True)
class Done(Generic[T]):
    """Results from the first batch on, without gaps; all of them unless interrupted."""

    values: list[T]
    seconds: float  # spent on them, summed over restarts and processes
    complete: bool


class BatchRunner:
    """Knows which batches are done, shares out the others, and stores their results.

    It is for one model on one data set and one kind of device, which are not part of its keys.

    Args:
        progress: Shows the progress of this process.
        store: Keeps records for a restart; without one they live as long as this object.
        rank: Of this process among ``size`` of a process group, each of which makes the same
            calls in the same order.
        size: Number of processes.
    """

    def __init__(
        self,
        progress: Progress | None = None,
        store: Store | None = None,
        rank: int = 0,
        size: int = 1,
    ) -> None:
        self._progress, self._store = progress or NoProgress(), store
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
        self._known: dict[_Key, _Piece] = {}
        for _, records in seen:
            self._learn(records)

    def once(
        self,
        stage: str,
        size: int,
        make: Callable[[Callable[[int], None]], T],
        codec: Codec[T],
        given: str = "",
    ) -> tuple[T, float]:
        """The result of ``make(tick)``, computed by one process for all; and its seconds.

        Args:
            stage: Its name.
            size: Images it is made from: another number is other work.
            make: Calls ``tick`` with the number of evaluations it has just done.
            codec: How the result is stored and sent.
            given: As for :meth:`each`.
        """
        key = _Key(stage, given, 0, size)
        if key not in self._known:
            text = "[]"
            if self._rank == 0:
                self._progress.begin(stage, None, 0, 0)
                record = self._make(key, lambda: make(self._progress.advance), codec)
                text = json.dumps([record]) if self._size > 1 else text
            self._learn(json.loads(self._exchange(text)[0]))
        piece = self._known[key]
        return piece.read(codec), piece.seconds

    def each(
        self,
        stage: str,
        sizes: Sequence[int],
        make: Callable[[int], T],
        codec: Codec[T],
        given: str = "",
    ) -> Done[T]:
        """The result of ``make(number)`` for every batch.

        No process waits for another before all of its own batches are done. ``Ctrl-C`` stops a
        single process with the batches done so far; one of several cannot speak for the others
        and passes the interruption on.

        Args:
            stage: Name of this work; other work has another name.
            sizes: Images of every batch.
            make: Computes a batch.
            codec: How results are stored and sent.
            given: :func:`fingerprint` of all that ``make`` depends on: batches made from
                something else are not taken for these.
        """
        keys = [_Key(stage, given, number, size) for number, size in enumerate(sizes)]
        missing = [key for key in keys if key not in self._known]
        mine = missing[self._rank :: self._size]
        known = sum(sizes) - sum(key.images for key in missing)
        self._progress.begin(stage, sum(sizes), known, sum(key.images for key in mine))
        made: list[Record] = []
        try:
            for key in mine:
                record = self._make(key, lambda number=key.batch: make(number), codec)  # type: ignore[misc]
                made += [] if record is None else [record]
                self._progress.advance(key.images)
        except KeyboardInterrupt:
            if self._size > 1:
                raise
        if missing and self._size > 1:
            for text in self._exchange(json.dumps(made)):
                self._learn(json.loads(text))
        found = list(itertools.takewhile(lambda p: p is not None, map(self._known.get, keys)))
        pieces = [piece for piece in found if piece is not None]
        seconds = sum(piece.seconds for piece in pieces)
        return Done([p.read(codec) for p in pieces], seconds, len(pieces) == len(keys))

    def _make(self, key: _Key, make: Callable[[], T], codec: Codec[T]) -> Record | None:
        """Compute a batch and keep it; its record where it is stored or sent."""
        began = time.perf_counter()
        value = make()
        seconds = time.perf_counter() - began
        # First: an interrupt may come when the line is just written.
        self._known[key] = _Piece(seconds, value)
        if self._store is None and self._size == 1:
            return None
        record = {**key._asdict(), **codec.to_json(value), "seconds": seconds}
        if self._store is not None:
            self._store.append(record)
        return record

    def _learn(self, records: Sequence[Record]) -> None:
        """Take over results from the store or from other processes."""
        for record in records:
            key = _Key(record["stage"], record.get("given", ""), record["batch"], record["images"])
            self._known.setdefault(key, _Piece(record["seconds"], record=record))

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


def fingerprint(values: Mapping[str, Any]) -> str:
    """A short hash of plain values, numpy's among them: other values, another hash."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
