"""A folder, a tar, a zip or a single file, read as one stream of named files.

Data sets come in all of these; the readers see only members. Folders and zips are walked in
natural order (``2`` before ``10``), tars in their own order, since they can only be streamed.
Nothing is ever extracted by the name an archive gives, and no size it declares is trusted before
it was compared with what the reader expects.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import re
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, cast

from idode.data.limits import Bounded, check_growth
from idode.errors import DataWarning, InputError
from idode.storage import open_regular

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "Member",
    "check_source",
    "members",
    "natural",
    "official_members",
    "open_packed",
    "reading",
    "walk",
]

ATTRIBUTES = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
MAX_NAME_BYTES = 1 << 16  # of a name or other attribute in a tar
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")


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
                "get the file again, or set IDODE_MAX_FILE_BYTES"
            )
        return self.take(self.size)

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes, refused if there are fewer."""
        with reading(self.shown):
            data = self.stream.read(count)
        if len(data) < count:
            raise InputError(f"{self.shown} is cut short: get it again")
        return data


def visible(name: str) -> bool:
    """Not hidden: ``.DS_Store`` and ``__MACOSX`` are in every second archive."""
    parts = PurePosixPath(name).parts
    return not any(p.startswith(".") or p == "__MACOSX" for p in parts)


@contextlib.contextmanager
def reading(name: str, advice: str = "get it again") -> Iterator[None]:
    """Whatever a broken file makes its decoder raise is the file's fault, and said in a sentence.

    Decoders of archives and arrays raise nearly anything: ``UnicodeDecodeError``, ``TypeError``,
    ``TokenError``, ``MemoryError``.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise InputError(f"{name} cannot be read ({reason:.200}): {advice}") from error


def check_source(path: Path) -> None:
    """Refuse what is neither a file nor a folder: reading a pipe or a device may never end."""
    if not path.exists():
        raise InputError(f"there is no file or folder {path}: check the path")
    if not (path.is_file() or path.is_dir()):
        raise InputError(f"{path} is neither a file nor a folder: give one of them")


def walk(path: Path, keep: Callable[[str], bool] = visible) -> list[Path]:
    """All files below a folder and in folders it links to; warnings name what is left out.

    Args:
        path: The folder.
        keep: Which names of files and folders count.
    """
    hidden: list[str] = []
    found: list[Path] = []
    round_about: list[Path] = []
    entered: set[Path] = set()
    every = os.walk(path, onerror=lambda e: hidden.append(str(e.filename)), followlinks=True)
    for folder, inner, files in every:
        here = Path(folder)
        links = [here / name for name in filter(keep, inner) if (here / name).is_symlink()]
        known = entered if here != path else set()
        skipped = [link for link in sorted(links) if _leads_back(link, path, known)]
        round_about += skipped
        entered |= {link.resolve() for link in links if link not in skipped}
        inner[:] = [name for name in filter(keep, inner) if here / name not in skipped]
        found += [here / name for name in files if keep(name)]
    if str(path) in hidden:
        raise InputError(f"{path} may not be read: ask for permission or give another folder")
    for name in hidden:
        text = f"the folder {name} may not be read: its files are left out"
        warnings.warn(text, DataWarning, stacklevel=2)
    regular = [file for file in found if file.is_file()]
    broken = [file for file in found if not file.exists()] if len(regular) < len(found) else []
    for left, what in ((broken, "nowhere"), (round_about, "to a folder above or read already")):
        if left:
            text = f"links that lead {what} are left out ({len(left)}, the first is {min(left)})"
            warnings.warn(f"{text}: mend or remove them", DataWarning, stacklevel=2)
    return regular


def _leads_back(link: Path, top: Path, entered: Collection[Path]) -> bool:
    """Whether a link to a folder leads above where it is or ``top`` is, or to one entered before.

    Following these would read other files than were given, or the same ones again and again.
    """
    target = link.resolve()
    above = (*_with_parents(link.parent.resolve()), *_with_parents(top.resolve()))
    return target in above or target in entered


def _with_parents(folder: Path) -> tuple[Path, ...]:
    return (folder, *folder.parents)


def folder_members(path: Path) -> Iterator[Member]:
    files = {p.relative_to(path).as_posix(): p for p in walk(path)}
    for name in sorted(files, key=natural):
        with open_regular(files[name]) as stream:
            yield Member(name, files[name].stat().st_size, stream, path)


class TarEntry(tarfile.TarInfo):
    """A member of a tar; the attributes of one are read into memory, so their size is checked."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """The entry of a header."""
        entry = super().frombuf(buf, encoding, errors)
        if entry.type in ATTRIBUTES and not 0 <= entry.size <= MAX_NAME_BYTES:
            raise InputError(f"a tar has a name of {entry.size} bytes: get it again")
        return entry


@contextlib.contextmanager
def unpacked_tar(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a tar, unpacked if it is compressed, whatever it is called."""
    with open_regular(path) as stream:
        first = stream.read(8)
        stream.seek(0)
        opened: IO[bytes] = stream
        if first.startswith(b"\x1f\x8b"):
            opened = cast(IO[bytes], gzip.GzipFile(fileobj=stream))
        elif first.startswith(b"BZh"):
            opened = bz2.BZ2File(stream)
        elif first.startswith(b"\xfd7zXZ"):
            opened = lzma.LZMAFile(stream)  # noqa: SIM115  the stream below it is closed
        if opened is not stream:
            opened = cast(IO[bytes], Bounded(str(path), opened, path.stat().st_size))
        yield opened


def tar_members(path: Path) -> Iterator[Member]:
    with (
        unpacked_tar(path) as unpacked,
        tarfile.open(fileobj=unpacked, mode="r|", tarinfo=TarEntry) as archive,
    ):
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
    check_growth(name, info.compress_size, info.file_size)
    return archive.open(info)


def zip_members(path: Path) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        entries = {i.filename: i for i in archive.infolist() if not i.is_dir()}
        # Entries may overlap, so that each alone grows as it may and all of them do not.
        total = sum(i.file_size for i in archive.infolist())
        check_growth(str(path), path.stat().st_size, total)
        for name in sorted(filter(visible, entries), key=natural):
            with open_packed(archive, name) as stream:
                yield Member(name, entries[name].file_size, stream, path)


def is_archive(path: Path) -> bool:
    """Decided by name: a batch that starts with a black picture looks like an empty tar."""
    return path.is_file() and path.name.lower().endswith(ARCHIVES)


def members(path: Path) -> Iterator[Member]:
    """The files in a folder, tar or zip, or the one file at ``path`` itself."""
    check_source(path)
    with reading(str(path)):
        if path.is_dir():
            yield from folder_members(path)
        elif not is_archive(path):
            with open_regular(path) as stream:
                yield Member(path.name, path.stat().st_size, stream, path.parent)
        elif path.suffix.lower() == ".zip":
            yield from zip_members(path)
        else:
            yield from tar_members(path)


def official_members(path: Path) -> Iterator[Member]:
    """Like :func:`members`, and archives that lie in a folder are opened, as downloads lie."""
    if path.is_dir():
        inner = sorted((p for p in path.iterdir() if is_archive(p)), key=lambda p: natural(p.name))
        if inner:
            for archive in inner:
                yield from members(archive)
            return
    yield from members(path)
