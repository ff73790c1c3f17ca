"""The prepared form of a data set: two memory-mapped ``.npy`` files and an identity.

``<folder>/train.npy``, ``<folder>/test.npy`` and ``<folder>/identity.json`` appear all at once by
one rename, so a folder that exists is complete; a process that dies on the way leaves none.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from idode.data.format import Chunks, SplitName
from idode.data.identity import Identity, content_hash
from idode.errors import InputError, choose, whole
from idode.storage import read_json, scratch_folder, write_atomically

__all__ = ["IDENTITY", "Dataset", "Split", "open_prepared", "prepare"]

Split: TypeAlias = NDArray[Any]

SPLITS: tuple[SplitName, SplitName] = ("train", "test")
IDENTITY = "identity.json"
HEADER_BYTES = 256
NATIVE_LEVELS = {np.dtype(np.uint8): 256, np.dtype(np.uint16): 65536}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Two splits and who they are.

    A split is an array ``(N, C, H, W)`` of uint8 (uint16 above 256 levels) or ``(N, D)`` of
    float32, usually a read-only memory map.
    """

    identity: Identity
    train: Split
    test: Split

    @property
    def levels(self) -> int | None:
        """Number of grey levels, ``None`` for continuous vectors."""
        return self.identity.levels

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.identity.shape

    @property
    def dim(self) -> int:
        """Number of values in one sample."""
        return prod(self.shape)

    def part(self, split: str, limit: int | None = None) -> Split:
        """The first samples of a split, refused where there are none.

        Args:
            split: ``test`` or ``train``.
            limit: How many; by default all.
        """
        if limit is not None and limit < 1:
            raise InputError(f"limit must be at least 1, got {limit}")
        found = choose("split", split, {"test": self.test, "train": self.train})[:limit]
        if len(found) == 0:
            raise InputError(f"the {split} split of {self.identity} is empty: choose another")
        return found

    def expect(self, shape: Sequence[int], levels: int | None, owner: str) -> None:
        """Refuse to serve a model, called ``owner``, that is for samples of another kind."""
        if (tuple(shape), levels) != (tuple(self.shape), self.levels):
            raise InputError(
                f"{owner} is for data of shape {tuple(shape)} with {levels} levels, and "
                f"{self.identity.name} has {tuple(self.shape)} with {self.levels}: choose data of "
                "its kind"
            )


def encode(rows: NDArray[Any], levels: int | None) -> NDArray[Any]:
    """Rows in the stored dtype, refused where a value does not fit."""
    if levels is None:
        with np.errstate(over="ignore"):
            values = rows.astype("<f4")
        if not np.isfinite(values).all():
            raise InputError("the data holds a value that is not a finite float32: remove it")
        return values
    if rows.size and (rows.min() < 0 or rows.max() >= levels):
        raise InputError(
            f"the data holds values from {rows.min()} to {rows.max()} where 0..{levels - 1} are "
            "allowed: give levels=N above the largest value"
        )
    return rows.astype("<u1" if levels <= 256 else "<u2")


def levels_of(rows: NDArray[Any], levels: int | None) -> int | None:
    """The number of levels: as asked for, else what the dtype can hold."""
    if rows.dtype.kind == "f":
        if levels is not None:
            raise InputError(f"levels={levels} given for floats: leave it out, or save integers")
        return None
    if levels is not None and whole("levels", levels, 2) > 65536:
        raise InputError(f"levels={levels} is out of range: give 2 to 65536")
    return levels or NATIVE_LEVELS.get(rows.dtype, 256)


class Writer:
    """Appends rows to a ``.npy`` file whose length is known only at the end."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.count = file, 0
        self.file.write(bytes(HEADER_BYTES))

    def append(self, rows: NDArray[Any]) -> None:
        self.file.write(np.ascontiguousarray(rows).data)
        self.count += len(rows)

    def finish(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        fields = {"descr": dtype.str, "fortran_order": False, "shape": (self.count, *shape)}
        text = repr(fields).encode().ljust(HEADER_BYTES - 11) + b"\n"
        self.file.seek(0)
        self.file.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
        self.file.flush()
        os.fsync(self.file.fileno())


def write_splits(
    chunks: Chunks, folder: Path, levels: int | None, name: str, few: str, none: str
) -> int | None:
    """Write both ``.npy`` files; returns the number of levels."""
    first: NDArray[Any] | None = None
    with (folder / "train.npy").open("wb") as train, (folder / "test.npy").open("wb") as test:
        writers = {"train": Writer(train), "test": Writer(test)}
        for split, rows in chunks:
            if first is None:
                levels = levels_of(rows, levels)
                first = encode(rows[:1], levels)
            if rows.shape[1:] != first.shape[1:]:
                raise InputError(
                    f"the data holds samples of shape {rows.shape[1:]} and {first.shape[1:]}: "
                    "make them equal"
                )
            writers[split].append(encode(rows, levels))
        if first is None:
            raise InputError(f"{name} holds no samples: {none}")
        for split in SPLITS:
            if not writers[split].count:
                counts = " and ".join(f"{writers[s].count} {s}" for s in SPLITS)
                raise InputError(f"{name} has {counts} samples, and both are needed: {few}")
            writers[split].finish(first.shape[1:], first.dtype)
    return levels


def prepare(
    chunks: Chunks,
    folder: Path,
    name: str,
    version: str,
    levels: int | None = None,
    check: Callable[[Identity], None] = lambda identity: None,
    few: str = "give more",
    none: str = "check the path",
) -> Dataset:
    """Write what a reader yields to ``folder``; ``check`` may refuse it before it appears.

    ``few`` is what to do where a split has no samples, ``none`` where neither has.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            scratch = stack.enter_context(scratch_folder(folder.parent))
        except OSError as error:
            raise InputError(
                f"cannot write to {folder.parent} ({error.strerror}): set IDODE_DATA to another "
                "folder"
            ) from error
        try:
            levels = write_splits(chunks, scratch, levels, name, few, none)
            train, test = (np.load(scratch / f"{s}.npy", mmap_mode="r") for s in SPLITS)
            shape = tuple(train.shape[1:])
            hashed = content_hash(train, test)
            identity = Identity(name, version, len(train), len(test), levels, shape, hashed)
            check(identity)
            text = json.dumps(identity.to_json(), indent=1) + "\n"
            write_atomically(scratch / IDENTITY, text)
            _publish(scratch, folder)
        except OSError as error:
            raise InputError(f"cannot prepare {name} in {folder.parent}: {error}") from error
    return open_prepared(folder)


def _publish(scratch: Path, folder: Path) -> None:
    try:
        scratch.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        # Another process was faster: its folder is as complete as ours.


def open_prepared(folder: Path) -> Dataset:
    """Map a prepared folder; what the files hold must be what the identity says."""
    try:
        identity = Identity.from_json(read_json(folder / IDENTITY))
        train, test = (
            np.load(folder / f"{s}.npy", mmap_mode="r", allow_pickle=False) for s in SPLITS
        )
        found = (len(train), len(test), tuple(train.shape[1:]), tuple(test.shape[1:]))
    # NumPy raises nearly anything for a damaged header, TokenError among it.
    except Exception as error:
        raise InputError(
            f"the prepared data in {folder} is damaged ({error!s:.200}): delete the folder and "
            "load again"
        ) from error
    if found != (identity.train_size, identity.test_size, identity.shape, identity.shape):
        raise InputError(
            f"the prepared data in {folder} is not what its identity says: delete the folder and "
            "load again"
        )
    return Dataset(identity, train, test)
