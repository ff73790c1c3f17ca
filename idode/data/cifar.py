"""CIFAR-10 in its two published layouts, as folder or archive.

Binary: records of one label byte and 3,072 bytes, red plane, green plane, blue plane. Python: a
pickled dict whose ``data`` is (10000, 3072) in the same order. Labels are not read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idode.data.archive import Member, natural, official_members
from idode.data.format import Chunks
from idode.data.package_registries import cifar10_from_npm
from idode.data.published import Published, Remote
from idode.data.unpickle import unpickle
from idode.errors import InputError

__all__ = ["CIFAR10", "SHAPE", "planes", "read_cifar10"]

SHAPE = (3, 32, 32)
DIM = 3 * 32 * 32
# 31 MB as published; 45 MB when Python 3 writes bytes for Python 2.
MAX_BATCH_BYTES = 64_000_000


def planes(data: Any, name: str) -> NDArray[np.uint8]:  # noqa: ANN401
    """Rows of 3,072 bytes as images ``(n, 3, 32, 32)``."""
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2:
        raise InputError(f"{name} has no array of bytes called 'data': get the official file")
    if data.shape[1] != DIM:
        raise InputError(f"{name} holds rows of {data.shape[1]} bytes where {DIM} are expected")
    return data.reshape(len(data), *SHAPE)


def batch(member: Member) -> NDArray[np.uint8]:
    """The images of one batch file of either layout."""
    data = member.read(MAX_BATCH_BYTES)
    if not member.name.endswith(".bin"):
        return planes(unpickle(data, member.name).get("data"), member.name)
    if not data or len(data) % (1 + DIM):
        raise InputError(
            f"{member.name} has {len(data)} bytes, not a multiple of {1 + DIM}: get it again"
        )
    return planes(np.frombuffer(data, np.uint8).reshape(-1, 1 + DIM)[:, 1:], member.name)


def read_cifar10(path: Path) -> Chunks:
    """``data_batch_1`` .. ``data_batch_5`` in order, then ``test_batch``.

    The archives hold the batches in another order, so all are read first: 180 MB.
    """
    batches = {
        member.stem: batch(member)
        for member in official_members(path)
        if member.stem.startswith("data_batch_") or member.stem == "test_batch"
    }
    for stem in sorted(batches, key=natural):
        yield "test" if stem == "test_batch" else "train", batches[stem]


CIFAR10 = Published(
    name="cifar10",
    version="2009",
    train_size=50_000,
    test_size=10_000,
    shape=(3, 32, 32),
    sha256="2ae5d6db0453753867541f0ccce0b648fcd0aaf596c0ca67c33dc03b3deaf283",
    read=read_cifar10,
    files="data_batch_1 to data_batch_5 and test_batch",
    official=(
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    registry=cifar10_from_npm,
)
