"""What goes into an archive: files of a folder, single files, arrays and data sets."""

from __future__ import annotations

import lzma
import os
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idode.codec.coder import DamagedError
from idode.codec.packed_arrays import array_recipe
from idode.codec.recipes import Recipe, take_apart
from idode.data.archive import walk
from idode.errors import InputError

__all__ = ["Content", "check_name", "of_array", "of_input", "pack", "unpack"]

MAX_FILE = 1 << 30  # bytes of a file that is kept as it is
LZMA_MEMORY = 1 << 28


@dataclass(frozen=True)
class Content:
    """A file: its pixels and how to make it of them, or its bytes."""

    name: str
    images: NDArray[np.uint8] | None = None  # (N, C, H, W)
    recipe: Recipe | None = None
    data: bytes = b""
    exact: bool = True


def of_array(name: str, images: NDArray[Any]) -> Content:
    """Images in memory ``(N, C, H, W)`` as a ``.npy`` file."""
    return Content(name, np.ascontiguousarray(images), array_recipe(images.shape))


def of_file(name: str, data: bytes, exact: bool) -> Content:
    """A file by its recipe, or as it is."""
    taken = take_apart(name, data)
    if taken is None or (exact and not taken.exact):
        return Content(name, data=data)
    return Content(name, taken.images, taken.recipe, data, taken.exact)


def of_input(
    given: str, exact: bool = False, split: str | None = None, limit: int | None = None
) -> list[Content]:
    """All files that a path or the name of a data set stands for.

    Args:
        given: A folder, a file, or a data spec such as ``cifar10``.
        exact: Every byte of every file must come back, not only what it shows.
        split: Split of a data set; by default test.
        limit: The first so many images of a data set.
    """
    path = Path(given)
    if path.exists() and (split is not None or limit is not None):
        what = "a folder, whose files are all" if path.is_dir() else "a file, which is"
        raise InputError(
            f"{given} is {what} compressed: leave out split and limit, which are for data sets"
        )
    if path.is_dir():
        files = sorted(walk(path, keep=bool))  # hidden ones too
        if not files:
            raise InputError(f"{given} holds no files: give a folder of images")
        return [of_file(p.relative_to(path).as_posix(), _read(p), exact) for p in files]
    if path.is_file():
        return [of_file(path.name, _read(path), exact)]
    from idode.data import FORMATS, PUBLISHED
    from idode.data.loading import load

    kind = given.partition(":")[0].partition("?")[0]
    if kind not in [*PUBLISHED, *FORMATS]:
        raise InputError(
            f"there is no file or folder {given}, and no data set of that name: check the path"
        )
    dataset, split = load(given), split or "test"
    rows = dataset.part(split, limit)
    if rows.ndim != 4 or rows.dtype != np.uint8:
        raise InputError(
            f"{given} holds no images of up to 256 levels: compress its files instead"
        )
    return [of_array(f"{kind}-{split}.npy", np.asarray(rows))]


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE:
            raise InputError(f"{path} is larger than {MAX_FILE} bytes: leave it out")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}): check its permissions") from None


def pack(data: bytes) -> bytes:
    """Bytes as they are, deflated or by LZMA, whichever is least, behind the number of the way."""
    small = lzma.compress(data, lzma.FORMAT_ALONE)
    return min(
        (bytes([i]) + d for i, d in enumerate((data, zlib.compress(data, 9), small))), key=len
    )


def unpack(packed: bytes, size: int) -> bytes:
    """The inverse of :func:`pack` for data of a known size; never more memory than that."""
    if not packed or not 0 <= size <= MAX_FILE:
        raise DamagedError("a file of it has an impossible size")
    way, body = packed[0], packed[1:]
    try:
        if way == 0:
            data = body
        elif way == 1:
            data = zlib.decompressobj().decompress(body, size + 1)
        else:
            opened = lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=LZMA_MEMORY)
            data = opened.decompress(body, size + 1)
    except (zlib.error, lzma.LZMAError, EOFError) as error:
        raise DamagedError(f"a file of it cannot be unpacked ({error})") from None
    if len(data) != size:
        raise DamagedError("a file of it has another size than declared")
    return data


def check_name(name: object) -> str:
    """A name that stays inside of a folder, on any system."""
    if not isinstance(name, str) or not name or len(name) > 4096:
        raise DamagedError("a file of it has no name")
    path = PurePosixPath(name)
    bad = path.is_absolute() or any(part in ("", "..", ".") for part in name.split("/"))
    if bad or "\0" in name or (os.name == "nt" and any(c in name for c in "\\:")):
        raise DamagedError(f"a file of it has the name {name!r}, which is not allowed")
    return name
