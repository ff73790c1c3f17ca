"""An archive to files: listed, tested, all of them or one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from idode.codec.archive import BLOCKS, FILES
from idode.codec.blocks import MAX_BLOCK_BYTES
from idode.codec.bytestream import digest
from idode.codec.coder import DamagedError
from idode.codec.coding import Model, check_header
from idode.codec.container import ArchiveReader, Place
from idode.codec.files import check_name, unpack
from idode.codec.jobs import Decode, Progress, run_jobs
from idode.codec.network import differences, encoders
from idode.codec.recipes import Recipe, restore
from idode.codec.scheme import Scheme
from idode.errors import InputError
from idode.storage import open_regular

__all__ = ["Archive", "Entry"]

MAX_SIDE = 1 << 20


@dataclass(frozen=True)
class Entry:
    """A file of an archive."""

    name: str
    place: Place | None  # of a file kept as it is
    size: int
    check: str  # hash of its bytes; empty where other bytes are right too, or none were known
    group: int = 0  # otherwise: where its images are, and what to make of them
    first: int = 0
    count: int = 0
    recipe: int = 0
    exact: bool = True


@dataclass(frozen=True)
class GroupTable:
    """Images of one shape and the blocks that hold them."""

    shape: tuple[int, int, int]
    count: int
    block: int
    blocks: list[Place]
    modelled: bool


class Archive:
    """An archive that is open; its index is checked at once, its blocks when they are decoded.

    Args:
        file: Open for reading, with ``seek``.
        name: For messages.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._reader = ArchiveReader(file, name)
        self.name, self.header = name, self._reader.header
        index = self._reader.index
        try:
            self._groups = [self._group(g) for g in index["groups"]]
            self._recipes: list[Recipe] = [dict(r) for r in index["recipes"]]
            self.entries = [self._entry(e) for e in index["entries"]]
        except DamagedError as error:
            raise self._reader.damaged(str(error)) from None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise self._reader.damaged("its index is not complete") from None
        files = [e.place for e in self.entries if e.place is not None]
        self._reader.check_places([*files, *(p for g in self._groups for p in g.blocks)])
        if len({e.name for e in self.entries}) < len(self.entries):
            raise self._reader.damaged("two files of it have one name")

    @property
    def size(self) -> int:
        """Bytes of the archive."""
        return self._reader.length

    @property
    def model_name(self) -> str | None:
        """The model it was made with; ``None`` where it needs none."""
        if not any(g.modelled for g in self._groups):
            return None
        name = self.header.get("model")
        return name if isinstance(name, str) else ""

    def shape_of(self, entry: Entry) -> tuple[int, ...] | None:
        """Shape of the images of an entry, number first; ``None`` for a file kept as it is."""
        return None if entry.place else (entry.count, *self._groups[entry.group].shape)

    def work(self, entries: Sequence[Entry]) -> int:
        """Images that are decoded for some entries: whole blocks."""
        sizes = 0
        for g, b in self._needed(entries):
            group = self._groups[g]
            sizes += min(group.block, group.count - b * group.block)
        return sizes

    def contents(
        self,
        entries: Sequence[Entry],
        model: Callable[[], Model],
        *,
        jobs: int = 1,
        progress: Progress = lambda count: None,
    ) -> Iterator[tuple[Entry, bytes]]:
        """The files of some entries; nothing is decoded unless this machine computes alike.

        A block is decoded once and kept until the last of the entries that needs it.
        """
        needed = self._needed(entries)
        decoded = run_jobs(self.jobs(entries, model), min(jobs, len(needed)), progress)
        last = {key: i for i, e in enumerate(entries) for key in self._needed([e])}
        blocks: dict[tuple[int, int], NDArray[np.uint8]] = {}
        order = iter(needed)
        try:
            for i, entry in enumerate(entries):
                mine = self._needed([entry])
                while any(key not in blocks for key in mine):
                    blocks[next(order)] = next(decoded)
                yield entry, self._bytes(entry, [blocks[key] for key in mine])
                blocks = {key: images for key, images in blocks.items() if last[key] > i}
        except DamagedError as error:
            raise self._reader.damaged(str(error)) from None

    def images_of(
        self, entry: Entry, model: Callable[[], Model], jobs: int, progress: Progress
    ) -> NDArray[np.uint8]:
        """The images ``(N, C, H, W)`` of an entry."""
        try:
            work = self.jobs([entry], model)
            return self._images(entry, list(run_jobs(work, jobs, progress)))
        except DamagedError as error:
            raise self._reader.damaged(str(error)) from None

    def jobs(self, entries: Sequence[Entry], model: Callable[[], Model]) -> Iterator[Decode]:
        """The blocks of some entries in the order they are first needed.

        All sections are read, and the arithmetic compared, before the first one is handed out.
        """
        needed = self._needed(entries)
        self._check_sections(entries, needed)
        scheme = None
        if any(self._groups[g].modelled for g, _ in needed):
            scheme = check_header(self.header, model(), self.name)
        return (self._job(g, b, scheme) for g, b in needed)

    def _check_sections(self, entries: Sequence[Entry], blocks: Sequence[tuple[int, int]]) -> None:
        """Refuse damage before the first file is written, and before any slow work."""
        for g, b in blocks:
            self._reader.section(BLOCKS, self._groups[g].blocks[b])
        for entry in entries:
            if entry.place is not None:
                self._reader.section(FILES, entry.place)

    def find(self, name: str) -> Entry:
        """The entry of a name."""
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise InputError(f"{self.name} holds no file {name}: `idode compress --list` shows all")

    def _needed(self, entries: Sequence[Entry]) -> list[tuple[int, int]]:
        """Blocks of the entries as group and number, in the order they are first needed."""
        found: dict[tuple[int, int], None] = {}
        for e in entries:
            if e.place is None:
                size = self._groups[e.group].block
                for b in range(e.first // size, (e.first + e.count - 1) // size + 1):
                    found[e.group, b] = None
        return list(found)

    def _job(self, g: int, b: int, scheme: Scheme | None) -> Decode:
        group = self._groups[g]
        if group.modelled and scheme is not None and scheme.denoiser.shape != group.shape:
            raise DamagedError("its index has images of another shape than the model's")
        data = self._reader.section(BLOCKS, group.blocks[b])
        count = min(group.block, group.count - b * group.block)
        return Decode(scheme if group.modelled else None, data, count, group.shape)

    def _images(self, entry: Entry, blocks: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        start = entry.first % self._groups[entry.group].block
        joined = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        return joined[start : start + entry.count]

    def _bytes(self, entry: Entry, blocks: list[NDArray[np.uint8]]) -> bytes:
        if entry.place is None:
            made = restore(self._recipes[entry.recipe], self._images(entry, blocks))
            if entry.check and digest(made).hex() != entry.check:
                raise self._other_bytes(entry)
            return made
        data = unpack(self._reader.section(FILES, entry.place), entry.size)
        if digest(data).hex() != entry.check:
            raise DamagedError("a file of it is not what it was")
        return data

    def _other_bytes(self, entry: Entry) -> InputError:
        """The pixels are right, since their block has a hash: an encoder is another one."""
        there = self.header.get("environment")
        facts = differences(there, encoders()) if isinstance(there, dict) else ""
        here = ", ".join(f"{name} {version}" for name, version in encoders().items())
        return InputError(
            f"{entry.name} of {self.name} cannot be restored byte for byte here, since zlib or "
            f"Pillow makes another file of its pixels than when it was compressed "
            f"({facts or f'another build of {here}'}): decode it with the same versions of both"
        )

    def _group(self, value: dict[str, Any]) -> GroupTable:
        c, h, w = value["shape"]
        count, block = value["count"], value["block"]
        numbers = (c, h, w, count, block)
        if not all(type(n) is int and n > 0 for n in numbers) or max(c, h, w) > MAX_SIDE:
            raise DamagedError("its index has an impossible number of images")
        places = [self._reader.place(p) for p in value["blocks"]]
        if len(places) != -(-count // block) or block * c * h * w > MAX_BLOCK_BYTES + c * h * w:
            raise DamagedError("its index has an impossible number of blocks")
        return GroupTable((c, h, w), count, block, places, value["model"] is True)

    def _entry(self, value: dict[str, Any]) -> Entry:
        name = check_name(value["name"])
        if "file" in value:
            size, check = int(value["size"]), str(value["check"])
            return Entry(name, self._reader.place(value["file"]), size, check)
        group, first, count = value["pixels"]
        recipe = value["recipe"]
        if not all(type(n) is int and n >= 0 for n in (group, first, count, recipe)):
            raise DamagedError("its index has an impossible place of a file")
        if (
            group >= len(self._groups)
            or recipe >= len(self._recipes)
            or count < 1
            or first + count > self._groups[group].count
        ):
            raise DamagedError("its index has an impossible place of a file")
        exact, check = value.get("exact", True) is True, str(value.get("check", ""))
        return Entry(name, None, 0, check, group, first, count, recipe, exact)


def open_archive(path: Path | str) -> IO[bytes]:
    """Open a file for reading, or say why not."""
    try:
        return open_regular(Path(path))
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}): check the path") from None
