"""MNIST and Fashion-MNIST: idx files, gzipped or not."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from idode.data.archive import Member, official_members
from idode.data.chunks import CHUNK_ROWS, Chunks, SplitName
from idode.errors import InputError

__all__ = ["read_idx"]

IMAGES_OF_BYTES = 0x00000803
MAX_PIXELS = 1 << 14
SPLITS: dict[str, SplitName] = {"train-images": "train", "t10k-images": "test"}


def idx_rows(member: Member) -> Iterator[NDArray[np.uint8]]:
    """Blocks of images ``(n, 1, H, W)``; the length must be exactly what the header declares."""
    packed = member.name.endswith(".gz")
    stream = gzip.GzipFile(fileobj=member.stream) if packed else member.stream
    try:
        header = stream.read(16)
        if len(header) < 16 or struct.unpack(">I", header[:4])[0] != IMAGES_OF_BYTES:
            raise InputError(f"{member.name} is not an idx file of images: get it again")
        count, height, width = struct.unpack(">III", header[4:])
        if not 0 < height * width <= MAX_PIXELS:
            raise InputError(f"{member.name} declares images of {height}x{width}: get it again")
        for start in range(0, count, CHUNK_ROWS):
            rows = min(CHUNK_ROWS, count - start)
            data = stream.read(rows * height * width)
            if len(data) < rows * height * width:
                raise InputError(f"{member.name} is cut short after image {start}: get it again")
            yield np.frombuffer(data, np.uint8).reshape(rows, 1, height, width)
        if stream.read(1):
            raise InputError(f"{member.name} is longer than it declares: get it again")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{member.name} cannot be read ({error}): get it again") from error


def read_idx(path: Path) -> Chunks:
    """The images of ``train-images*`` and ``t10k-images*``; labels are not read."""
    for member in official_members(path):
        for prefix, split in SPLITS.items():
            if member.stem.startswith(prefix):
                for rows in idx_rows(member):
                    yield split, rows
