"""A folder, a tar, a zip or a single file, read as one stream of named files.

Data sets come in all of these; the readers see only members. Folders and zips are walked in
natural order (``2`` before ``10``), tars in their own order, since they can only be streamed.
Nothing is ever extracted by the name an archive gives, and no size it declares is trusted before
it was compared with what the reader expects.
"""

from __future__ import annotations

import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO

from idode.errors import InputError

__all__ = ["Member", "members", "natural", "official_members", "open_packed"]

BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, EOFError, OSError),
    RuntimeError,  # zips that are encrypted or packed in odd ways
)
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")
# Deflate cannot exceed 1,032:1; real pictures stay below 20:1.
MAX_RATIO, RATIO_FREE_BYTES = 200, 1 << 26


def natural(name: str) -> list[tuple[int, str]]:
    """A sorting key that puts ``batch_2`` before ``batch_10``.

    >>> sorted(["b10", "b2", "a"], key=natural)
    ['a', 'b2', 'b10']
    >>> sorted(["x1", "x01"], key=natural) == sorted(["x01", "x1"], key=natural)
    True
    """
    key = [(-1, part) for part in re.split(r"([0-9]+)", name)]
    for i in range(1, len(key), 2):
        digits = key[i][1].lstrip("0")
        key[i] = (len(digits), digits)  # as numbers, without a limit on their length
    return [*key, (-1, name)]


@dataclass(frozen=True)
class Member:
    """One file: its path inside the folder or archive, its declared size, its bytes, and where.

    The stream is valid until the next member is asked for.
    """

    name: str
    size: int
    stream: IO[bytes]
    place: Path | None = None  # the folder or archive, as it was given

    @property
    def shown(self) -> str:
        """How to call it to whoever gave the place."""
        return self.name if self.place is None else str(self.place / self.name)

    @property
    def stem(self) -> str:
        """The name without folders and extensions."""
        return PurePosixPath(self.name).name.split(".")[0]

    def read(self, limit: int) -> bytes:
        """All bytes, refused if they are more than ``limit`` or fewer than declared."""
        if self.size > limit:
            raise InputError(
                f"{self.shown} declares {self.size} bytes where at most {limit} can be right: "
                "get the file again"
            )
        return self.take(self.size)

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes, refused if there are fewer."""
        try:
            data = self.stream.read(count)
        except BROKEN as error:
            raise InputError(f"{self.shown} cannot be read ({error}): get it again") from error
        if len(data) < count:
            raise InputError(f"{self.shown} is cut short: get it again")
        return data


def visible(name: str) -> bool:
    """Not hidden: ``.DS_Store`` and ``__MACOSX`` are in every second archive."""
    parts = PurePosixPath(name).parts
    return not any(p.startswith(".") or p == "__MACOSX" for p in parts)


def folder_members(path: Path) -> Iterator[Member]:
    files = {p.relative_to(path).as_posix(): p for p in path.rglob("*") if p.is_file()}
    for name in sorted(filter(visible, files), key=natural):
        with files[name].open("rb") as stream:
            yield Member(name, files[name].stat().st_size, stream, path)


def tar_members(path: Path) -> Iterator[Member]:
    with tarfile.open(path, "r|*") as archive:
        while (info := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # a million entries are a gigabyte
            name = info.name.removeprefix("./")
            if info.isreg() and not info.issparse() and visible(name):
                stream = archive.extractfile(info)
                assert stream is not None
                yield Member(name, info.size, stream, path)


def open_packed(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """A file of a zip; one that would swell as no data does is refused before it is unpacked."""
    info = archive.getinfo(name)
    if info.file_size > max(RATIO_FREE_BYTES, MAX_RATIO * info.compress_size):
        raise InputError(
            f"{name} declares that it grows from {info.compress_size} to {info.file_size} bytes, "
            "which real data does not: get the archive again"
        )
    return archive.open(info)


def zip_members(path: Path) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        entries = {i.filename: i for i in archive.infolist() if not i.is_dir()}
        for name in sorted(filter(visible, entries), key=natural):
            with open_packed(archive, name) as stream:
                yield Member(name, entries[name].file_size, stream, path)


def is_archive(path: Path) -> bool:
    """By name: a batch that starts with a black picture has the content of an empty tar."""
    return path.is_file() and path.name.lower().endswith(ARCHIVES)


def members(path: Path) -> Iterator[Member]:
    """The files in a folder, tar or zip, or the one file at ``path`` itself."""
    if not path.exists():
        raise InputError(f"there is no file or folder {path}: check the path")
    try:
        if path.is_dir():
            yield from folder_members(path)
        elif not is_archive(path):
            with path.open("rb") as stream:
                yield Member(path.name, path.stat().st_size, stream, path.parent)
        elif path.suffix.lower() == ".zip":
            yield from zip_members(path)
        else:
            yield from tar_members(path)
    except BROKEN as error:
        raise InputError(f"{path} cannot be read ({error}): get it again") from error


def official_members(path: Path) -> Iterator[Member]:
    """Like :func:`members`, and archives that lie in a folder are opened, as downloads lie."""
    if path.is_dir():
        inner = sorted((p for p in path.iterdir() if is_archive(p)), key=lambda p: natural(p.name))
        if inner:
            for archive in inner:
                yield from members(archive)
            return
    yield from members(path)
