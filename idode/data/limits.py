"""Limits on what a file may ask for, checked before anything is decoded or allocated.

A file of some kilobytes can declare gigabytes. The defaults allow every data set this package is
for; where yours is larger, set the environment variable that the error names.
"""

from __future__ import annotations

import io
import os
from typing import IO

from idode.errors import InputError

__all__ = [
    "Bounded",
    "check_growth",
    "max_file_bytes",
    "max_line_bytes",
    "max_pixels",
    "max_ratio",
]

PIXELS, FILE_BYTES, RATIO = "IDODE_MAX_PIXELS", "IDODE_MAX_FILE_BYTES", "IDODE_MAX_RATIO"
FREE_BYTES = 1 << 24  # below which no ratio is looked at


def max_pixels() -> int:
    """Pixels of one image: 2^25, a photograph of 33 megapixels."""
    return _setting(PIXELS, 1 << 25)


def max_file_bytes() -> int:
    """Bytes of an image file, or of a row of an array: 2^28."""
    return _setting(FILE_BYTES, 1 << 28)


def max_line_bytes() -> int:
    """Characters of a line of a table, which takes 60 times as much memory: 2^22."""
    return max_file_bytes() >> 6


def max_ratio() -> int:
    """How often larger data may be than its file; deflate reaches 1,032, pictures below 20."""
    return _setting(RATIO, 200)


def _setting(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < 1:
        raise InputError(f"{name}={text}: must be a whole number, such as {default}")
    return int(text)


def check_growth(name: str, packed: int, unpacked: int) -> None:
    """Refuse data that grows as no real data does."""
    if unpacked > max(FREE_BYTES, max_ratio() * packed):
        raise InputError(
            f"{name} grows from {packed} to {unpacked} bytes, which real data does not: get it "
            f"again, or set {RATIO} above {unpacked // max(packed, 1)}"
        )


class Bounded(io.RawIOBase):
    """The unpacked bytes of a compressed stream, refused when they are too many.

    Args:
        name: What to call it in a message.
        unpacked: The stream.
        packed: Size in bytes of the file behind it.
    """

    def __init__(self, name: str, unpacked: IO[bytes], packed: int) -> None:
        self._name, self._stream, self._packed = name, unpacked, packed
        self._done = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        data = self._stream.read(size)
        self._done += len(data)
        check_growth(self._name, self._packed, self._done)
        return data
