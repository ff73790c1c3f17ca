"""Bytes written in order and read back with every length checked."""

from __future__ import annotations

import base64
import hashlib

from idode.codec.coder import DamagedError

__all__ = ["Reader", "digest", "from_text", "to_text", "varint", "whiten"]

DIGEST_BYTES = 8


def digest(*parts: bytes, size: int = DIGEST_BYTES) -> bytes:
    """A hash of some bytes, in their order."""
    total = hashlib.blake2b(digest_size=size)
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.digest()


def varint(value: int) -> bytes:
    r"""A natural number in groups of 7 bits, least first.

    >>> varint(5), varint(300)
    (b'\x05', b'\xac\x02')
    """
    groups = []
    while value >= 128:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def whiten(data: bytes) -> bytes:
    """Exclusive or with a fixed random stream, which makes any bytes good as a random source."""
    stream = hashlib.shake_128(b"idode codec").digest(len(data))
    return bytes(a ^ b for a, b in zip(data, stream, strict=True))


def to_text(data: bytes) -> str:
    """Bytes for JSON."""
    return base64.b85encode(data).decode()


def from_text(text: str) -> bytes:
    """The inverse of :func:`to_text`."""
    return base64.b85decode(text)


class Reader:
    """Bytes from the first to the last; what is missing is damage."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        """So many bytes."""
        if count < 0 or count > len(self._data) - self._at:
            raise DamagedError("it ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def varint(self, limit: int) -> int:
        """A natural number up to ``limit``."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
            if shift > 63:
                raise DamagedError("a number in it is too long")
        if value > limit:
            raise DamagedError(f"a number in it is {value} where at most {limit} is possible")
        return value

    @property
    def left(self) -> int:
        """How many bytes there are still."""
        return len(self._data) - self._at
