"""NumPy files and tables: ``.npy``, ``.npz`` and CSV.

Integers of shape (N, H, W), (N, C, H, W) or (N, H, W, C) with C ≤ 4 are images; floats of shape
(N, D) are vectors, kept as they are: nothing is standardised behind the user's back, since that
would change the density by a constant. Files are streamed, and what a header declares is compared
with the length of the file before anything is allocated.
"""

from __future__ import annotations

import csv
import math
import re
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from idode.data.archive import Member, check_source, members, open_packed, reading
from idode.data.format import CHUNK_ROWS, Chunks, FileFormat, SplitName, split_rows
from idode.data.limits import max_file_bytes, max_line_bytes
from idode.data.mapped import BLOCK_BYTES
from idode.errors import InputError
from idode.storage import open_regular

__all__ = ["Csv", "Npy", "Npz", "npy_rows", "npz_arrays", "npz_rows"]

SPLIT_KEYS = (("train", "test"), ("x_train", "x_test"))
MAX_CHANNELS = 4
MAX_AXES, MAX_LISTED = 8, 20
MAX_BLOCK_CELLS = 1 << 18
SEVERAL = re.compile(r"[\s,;]+")  # between the numbers of a cell that is not one
MISSING = frozenset(["", "na", "n/a", "nan", "null", "none", "?", "-"])  # in lower case
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def npy_header(member: Member) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype of the array in a ``.npy`` stream, whose length is compared."""
    with reading(member.name, "save it again as a .npy array"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the literals in a damaged header
        version = np.lib.format.read_magic(member.stream)
        if version not in HEADERS:
            raise InputError(f"{member.name} is a .npy array of version {version}: save it again")
        shape, fortran, dtype = HEADERS[version](member.stream)
    if len(shape) > MAX_AXES:
        raise InputError(f"{member.name} has {len(shape)} axes: give rows of numbers")
    if dtype.kind not in "uif" or min(shape, default=1) < 1:
        raise InputError(f"{member.name} holds {dtype} of shape {shape}: give rows of numbers")
    size = math.prod(shape) * dtype.itemsize
    if size > member.size:
        raise InputError(
            f"{member.name} declares {shape} {dtype}, {size} bytes, and holds only "
            f"{member.size}: it is cut short or forged, save it again"
        )
    return shape, fortran, dtype


def npy_rows(member: Member) -> Iterator[NDArray[Any]]:
    """Blocks of rows of the array in a ``.npy`` stream, in its own dtype and shape."""
    shape, fortran, dtype = npy_header(member)
    if not shape:
        raise InputError(f"{member.name} holds one number: give rows of numbers")
    row = math.prod(shape[1:]) * dtype.itemsize
    if fortran:
        raise InputError(f"{member.name} is column-major: save numpy.ascontiguousarray of it")
    if row > max_file_bytes():
        raise InputError(
            f"{member.name} has rows of {row} bytes, more than {max_file_bytes()}: set "
            "IDODE_MAX_FILE_BYTES if that is right"
        )
    step = max(1, min(CHUNK_ROWS, BLOCK_BYTES // row))
    for start in range(0, shape[0], step):
        count = min(step, shape[0] - start)
        yield np.frombuffer(member.take(count * row), dtype).reshape(count, *shape[1:])


def npz_rows(path: Path | IO[bytes], name: str, key: str) -> Iterator[NDArray[Any]]:
    """Blocks of rows of the array ``key`` of a ``.npz`` file."""
    with reading(f"{name}[{key}]", "save it again"), zipfile.ZipFile(path) as archive:
        if f"{key}.npy" not in archive.namelist():
            raise InputError(f"{name} has no array {key!r}: give one that it has with ?key=NAME")
        size = archive.getinfo(f"{key}.npy").file_size
        with open_packed(archive, f"{key}.npy") as stream:
            yield from npy_rows(Member(f"{name}[{key}]", size, stream))


def npz_arrays(path: Path, *keys: str) -> dict[str, NDArray[Any]]:
    """Those of the arrays of a ``.npz`` file that it has, whole."""
    found = {}
    with (
        reading(str(path), "make it again"),
        open_regular(path) as file,
        zipfile.ZipFile(file) as archive,
    ):
        for key in [key for key in keys if f"{key}.npy" in archive.namelist()]:
            size = archive.getinfo(f"{key}.npy").file_size
            with open_packed(archive, f"{key}.npy") as stream:
                member = Member(f"{path}[{key}]", size, stream)
                shape, fortran, dtype = npy_header(member)
                data = member.take(math.prod(shape) * dtype.itemsize)
                array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
                found[key] = array.copy()
    return found


def as_rows(name: str, block: NDArray[Any]) -> NDArray[Any]:
    """Integers as images ``(n, C, H, W)``, floats as vectors ``(n, D)``."""
    if block.dtype.kind == "f":
        if block.ndim > 2:
            raise InputError(
                f"{name} holds floats of shape {block.shape}: images must be integers 0..levels-1,"
                " and vectors must be (N, D)"
            )
        return block.reshape(len(block), -1)
    if block.ndim == 3:
        return block[:, None]
    if block.ndim == 4 and block.shape[1] <= MAX_CHANNELS:
        return block
    if block.ndim == 4 and block.shape[3] <= MAX_CHANNELS:
        return block.transpose(0, 3, 1, 2)
    raise InputError(
        f"{name} holds integers of shape {block.shape}: images are (N, H, W), (N, C, H, W) or "
        "(N, H, W, C), and vectors are floats"
    )


@dataclass(frozen=True)
class Npy(FileFormat):
    """One array; rows are held out evenly."""

    def read(self, path: Path) -> Chunks:
        """The rows of the array."""
        if path.is_dir():
            raise InputError(f"{path} is a folder: give the .npy file")
        for member in members(path):
            rows = (as_rows(member.name, block) for block in npy_rows(member))
            yield from split_rows(rows, self.test)


@dataclass(frozen=True)
class Npz(FileFormat):
    """Arrays ``train``, ``test`` (or ``x_train``, ``x_test``), else ``key`` or the only one."""

    key: str | None = None

    def read(self, path: Path) -> Chunks:
        """The rows of those arrays."""
        check_source(path)
        with reading(str(path), "save it again as a .npz file"), zipfile.ZipFile(path) as archive:
            keys = [n.removesuffix(".npy") for n in archive.namelist()]
        name = path.name
        for pair in SPLIT_KEYS:
            if self.key is None and set(pair) <= set(keys):
                splits: tuple[SplitName, SplitName] = ("train", "test")
                for split, part in zip(splits, pair, strict=True):
                    for block in npz_rows(path, name, part):
                        yield split, as_rows(name, block)
                return
        if self.key is None and len(keys) != 1:
            shown = ", ".join(keys[:MAX_LISTED]) + (", ..." if len(keys) > MAX_LISTED else "")
            raise InputError(f"{name} holds {shown:.500}: say which with ?key=NAME")
        rows = npz_rows(path, name, self.key or keys[0])
        yield from split_rows((as_rows(name, b) for b in rows), self.test)


def short_lines(file: IO[str], name: str) -> Iterator[str]:
    """The lines of a table, refused where one is too long to be a row of it."""
    limit = max_line_bytes()
    while line := file.readline(limit):
        if len(line) == limit and not line.endswith("\n"):
            raise InputError(
                f"{name} has a line of more than {limit} characters: give one sample a line, or "
                "set IDODE_MAX_FILE_BYTES to 64 times as many"
            )
        yield line


def _numbers(cells: list[str]) -> list[float] | None:
    """The values of a line; ``None`` where one is missing or no number."""
    try:
        row = [float(cell) for cell in cells]
    except ValueError:
        return None
    return None if any(map(math.isnan, row)) else row


def _incomplete(cells: list[str]) -> bool:
    """Whether a line is numbers but for missing values: a sample, and no header."""
    known = [cell for cell in cells if cell.strip().lower() not in MISSING]
    return bool(known) and _numbers(known) is not None


def _names_an_index(cells: list[str]) -> bool:
    """Whether a first line is a header whose first cell is empty, as pandas and R write it.

    Names of columns may be numbers, but then 0, 1, 2, ...; others are a sample without a value.
    """
    first, rest = cells[0].strip(), [cell.strip() for cell in cells[1:]]
    if first or not rest:
        return False
    return not _incomplete(cells) or rest == [str(i) for i in range(len(rest))]


def _refuse(cells: list[str], header: list[str], place: str) -> NoReturn:
    """Refuse the first cell that is missing or no number, by the name of its column."""
    column = next(i for i, cell in enumerate(cells) if _numbers([cell]) is None)
    name = f" ({header[column]:.40})" if column < len(header) else ""
    where, cell = f"{place}, column {column + 1}{name}", cells[column].strip()
    if cell.lower() in MISSING:
        raise InputError(
            f"{where} {f'holds {cell!r}' if cell else 'is empty'}, a missing value, which has no "
            "density: fill it in, or drop the row or the column"
        )
    if _numbers(SEVERAL.split(cell)) is not None:
        raise InputError(
            f"{where} holds {cell[:40]!r}, which is not one number: write numbers with a decimal "
            "point, and separate them by commas, semicolons or tabs"
        )
    raise InputError(
        f"{where} holds {cell[:40]!r}, and every cell must be a number: categories have no "
        "density, so drop the column, or train one model for each category"
    )


def csv_rows(path: Path) -> Iterator[NDArray[np.float32]]:
    """Blocks of rows of numbers; a first line that is not numbers is the header."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        first = file.readline(max_line_bytes())
        file.seek(0)
        delimiter = max(",;\t", key=first.count)
        width: int | None = None
        header: list[str] = []
        block: list[list[float]] = []
        lines = short_lines(file, path.name)
        for number, cells in enumerate(csv.reader(lines, delimiter=delimiter), start=1):
            if not cells:
                continue
            row = _numbers(cells)
            if number == 1 and _names_an_index(cells):
                raise InputError(
                    f"{path.name}, line 1 begins with an empty cell, so the first column looks "
                    "like an index: save the table without it, with index=False in pandas"
                )
            if row is None and number == 1 and not _incomplete(cells):
                header = cells
                continue
            if row is None:
                _refuse(cells, header, f"{path.name}, line {number}")
            width = width or len(row)
            if len(row) != width:
                raise InputError(
                    f"{path.name}, line {number} has {len(row)} cells and the lines before it "
                    f"{width}: make them equal"
                )
            block.append(row)
            if len(block) == CHUNK_ROWS or len(block) * width >= MAX_BLOCK_CELLS:
                yield np.array(block, np.float32)
                block = []
        if block:
            yield np.array(block, np.float32)


@dataclass(frozen=True)
class Csv(FileFormat):
    """A table of numbers, one sample a line, separated by comma, semicolon or tab."""

    def read(self, path: Path) -> Chunks:
        """The rows of the table."""
        if not path.is_file():
            raise InputError(f"{path} is not a file: give the table itself")
        try:
            yield from split_rows(csv_rows(path), self.test)
        except (UnicodeError, csv.Error, OverflowError) as error:
            raise InputError(f"{path.name} is not a table of text ({error})") from None
