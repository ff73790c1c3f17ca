r"""The file format: sections with checksums, an index at the end, no byte outside of a checksum.

::

    89 'IDODE' 0d 0a 1a 0a, version (1 byte)
    sections: kind (1 byte), checksum (8), content
    index: kind 'I', checksum, content; it has the place of every section
    footer: place of the index (8), checksum of the footer, the magic and the length of the file

The first bytes catch a transfer in text mode. A checksum covers the kind and the place of its
section too, so sections cannot be exchanged. Header and index are deflated JSON.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import IO, Any

from idode.codec.bytestream import DIGEST_BYTES, digest
from idode.errors import InputError
from idode.storage import parse_json

__all__ = ["ArchiveReader", "ArchiveWriter"]

MAGIC = b"\x89IDODE\r\n\x1a\n"
VERSION = 1
FOOTER = 8 + DIGEST_BYTES
MAX_JSON = 1 << 26  # bytes of header or index, inflated
HEADER, INDEX = b"H", b"I"

Place = tuple[int, int]  # offset and length of a whole section


class ArchiveWriter:
    """Writes sections one after another; the file is complete after :meth:`finish`."""

    def __init__(self, file: IO[bytes], header: dict[str, Any]) -> None:
        self._file, self._at = file, 0
        self._write(MAGIC + bytes([VERSION]))
        self._header = self.section(HEADER, _deflate(header))

    def section(self, kind: bytes, content: bytes) -> Place:
        """Append a section; its place, for the index."""
        start = self._at
        self._write(kind + _check(kind, start, content) + content)
        return start, self._at - start

    def finish(self, index: dict[str, Any]) -> int:
        """Append index and footer; the length of the file."""
        at, _ = self.section(INDEX, _deflate({"header": self._header, **index}))
        place = at.to_bytes(8, "little")
        length = self._at + FOOTER
        self._write(place + digest(place, MAGIC, length.to_bytes(8, "little")))
        return self._at

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._at += len(data)


class ArchiveReader:
    """Reads and checks header, index and footer; sections when they are asked for.

    Args:
        file: Open for reading, with ``seek``.
        name: For messages.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file, self.name = file, name
        self.length = file.seek(0, os.SEEK_END)
        start = self._read(0, min(self.length, len(MAGIC) + 1))
        if start[: len(MAGIC)] != MAGIC:
            raise InputError(f"{name} is not an archive of idode: check the name")
        if start[len(MAGIC) :] != bytes([VERSION]):
            raise InputError(f"{name} is of another version of the format: update idode")
        if self.length < len(MAGIC) + 1 + FOOTER:
            raise self.damaged("it ends too early")
        footer = self._read(self.length - FOOTER, FOOTER)
        place = footer[:8]
        if footer[8:] != digest(place, MAGIC, self.length.to_bytes(8, "little")):
            raise self.damaged("its end is missing or changed")
        at = int.from_bytes(place, "little")
        self.index = self._json(INDEX, (at, self.length - FOOTER - at))
        self.header = self._json(HEADER, self.place(self.index.get("header")))
        self._end = at

    def damaged(self, why: str) -> InputError:
        """The error to raise for an archive that is not as it was written."""
        return InputError(f"{self.name} is damaged ({why}): get it again from its source")

    def place(self, value: object) -> Place:
        """The place of a section as the index has it, checked."""
        if not (isinstance(value, list) and len(value) == 2):
            raise self.damaged("its index has no place of a section")
        at, length = value
        if not (type(at) is int and type(length) is int and at >= 0 and length >= 0):
            raise self.damaged("its index has a wrong place of a section")
        return at, length

    def check_places(self, places: list[Place]) -> None:
        """Refuse an index that leaves bytes out or has them twice."""
        at = len(MAGIC) + 1
        for start, length in sorted([self.place(self.index["header"]), *places]):
            if start != at:
                raise self.damaged("its sections do not follow each other")
            at = start + length
        if at != self._end:
            raise self.damaged("it holds bytes that no section has")

    def section(self, kind: bytes, place: Place) -> bytes:
        """The content of a section, checked."""
        at, length = place
        if at + length > self.length or length < 1 + DIGEST_BYTES:
            raise self.damaged("a section lies outside of it")
        data = self._read(at, length)
        content = data[1 + DIGEST_BYTES :]
        if data[:1] != kind or data[1 : 1 + DIGEST_BYTES] != _check(kind, at, content):
            raise self.damaged("a checksum does not fit")
        return content

    def _json(self, kind: bytes, place: Place) -> dict[str, Any]:
        content = self.section(kind, place)
        try:
            inflater = zlib.decompressobj()
            text = inflater.decompress(content, MAX_JSON)
            if not inflater.eof or inflater.unused_data:
                raise ValueError("it has the wrong size")
            value = parse_json(text)
        except (zlib.error, ValueError, RecursionError) as error:
            raise self.damaged(f"its index cannot be read: {error}") from None
        if not isinstance(value, dict):
            raise self.damaged("its index is no table")
        return value

    def _read(self, at: int, count: int) -> bytes:
        self._file.seek(at)
        data = self._file.read(count)
        if len(data) != count:
            raise self.damaged("it ends too early")
        return data


def _check(kind: bytes, at: int, content: bytes) -> bytes:
    return digest(kind, at.to_bytes(8, "little"), content)


def _deflate(value: dict[str, Any]) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 9)
