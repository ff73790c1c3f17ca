"""The two data sets called ImageNet-32, each from its own published files.

Old (2016): tars of PNG files, 1,281,149 train and 49,999 validation images. New (2017): ten
batches and one, pickled or ``.npz``, in zips, 1,281,167 and 50,000; anti-aliased when it was
scaled down, hence easier. Both are streamed, one batch in memory at most.
"""

from __future__ import annotations

import mmap
import tempfile
from itertools import islice
from pathlib import Path

import numpy as np

from idode.data.archive import Member, members, natural, official_members
from idode.data.arrays import npz_rows
from idode.data.cifar import planes
from idode.data.format import CHUNK_ROWS, Chunks, SplitName
from idode.data.images import decode_all
from idode.data.mapped import BLOCK_BYTES
from idode.data.published import Published, Remote
from idode.data.unpickle import unpickle
from idode.errors import InputError

__all__ = ["IMAGENET32", "IMAGENET32_OLD", "read_imagenet32", "read_imagenet32_old"]

# A batch of 128,117 rows of 3,072 bytes, its labels as pickled integers, and room.
MAX_BATCH_BYTES = 500_000_000


def batch(member: Member, split: SplitName) -> Chunks:
    """The images of one pickled or ``.npz`` batch, spooled to disk, for the zips nest."""
    if member.size > MAX_BATCH_BYTES:
        raise InputError(
            f"{member.name} declares {member.size} bytes where at most {MAX_BATCH_BYTES} can be "
            "right: get the official file"
        )
    if not member.size:
        raise InputError(f"{member.name} is empty: get the official file")
    with tempfile.TemporaryFile() as file:
        for start in range(0, member.size, BLOCK_BYTES):
            file.write(member.take(min(BLOCK_BYTES, member.size - start)))
        file.flush()
        file.seek(0)
        if member.name.endswith(".npz"):
            for rows in npz_rows(file, member.name, "data"):
                yield split, planes(rows, member.name)
        else:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                found = unpickle(mapped, member.name).get("data")
            images = planes(found, member.name)
            for start in range(0, len(images), CHUNK_ROWS):
                yield split, images[start : start + CHUNK_ROWS]


def read_imagenet32(path: Path) -> Chunks:
    """New: ``train_data_batch_1`` .. ``train_data_batch_10`` and ``val_data``."""
    for member in official_members(path):
        if member.stem.startswith("train_data_batch_"):
            yield from batch(member, "train")
        elif member.stem == "val_data":
            yield from batch(member, "test")


def read_imagenet32_old(path: Path) -> Chunks:
    """Old: ``train_32x32.tar`` and ``valid_32x32.tar``, or the folders they unpack to."""
    splits: dict[str, SplitName] = {"train_32x32": "train", "valid_32x32": "test"}
    if not path.is_dir():
        raise InputError(f"{path} is not a folder: give the one with train_32x32.tar")
    for place in sorted(path.iterdir(), key=lambda p: natural(p.name)):
        if place.name.split(".")[0] in splits:
            split = splits[place.name.split(".")[0]]
            files = (m for m in members(place) if m.name.endswith(".png"))
            images = (pixels for _, pixels in decode_all(files, channels=3))
            while chunk := list(islice(images, CHUNK_ROWS)):
                yield split, np.stack(chunk)


IMAGENET32 = Published(
    name="imagenet32",
    version="new, 2017",
    train_size=1_281_167,
    test_size=50_000,
    shape=(3, 32, 32),
    sha256=None,
    read=read_imagenet32,
    files="train_data_batch_1 to train_data_batch_10 and val_data",
    official=(
        Remote(
            "https://www.image-net.org/data/downsample/Imagenet32_train_npz.zip",
            "sha256:94226337ecc1b0309d9fcd0167127aaadc931587035fbcb53925235edbaec4fc",
        ),
        Remote(
            "https://www.image-net.org/data/downsample/Imagenet32_val_npz.zip",
            "sha256:013990e6dec1237dcd1f9beadbab81ead6604cc119af5cacbfb59ae28148377a",
        ),
    ),
)
IMAGENET32_OLD = Published(
    name="imagenet32-old",
    version="old, 2016",
    train_size=1_281_149,
    test_size=49_999,
    shape=(3, 32, 32),
    sha256=None,
    read=read_imagenet32_old,
    files="train_32x32.tar and valid_32x32.tar",
)
