"""Folders, tars and zips of image files: PNG, JPEG, BMP, GIF, TIFF, WebP and PPM.

Kept as they are: 8-bit grey or colour gives 256 levels, 16-bit grey gives 65,536. Alpha is
dropped and EXIF orientation ignored. 16-bit colour is refused, because Pillow would silently cut
it down to 8 bits and the bits/dim would be those of other data.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from idode.data.archive import Member, members
from idode.data.format import CHUNK_ROWS, Chunks, FileFormat, SplitName, held_out
from idode.data.limits import check_growth, max_file_bytes, max_pixels
from idode.data.mapped import BLOCK_BYTES
from idode.errors import InputError

__all__ = ["Images", "decode", "decode_all"]

# Pillow's other formats are rare, and some run programs such as Ghostscript.
EXTENSIONS = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}
KNOWN = frozenset(extension for names in EXTENSIONS.values() for extension in names)
LARGE = 4  # an image that is not scaled down is copied a few times: so often fewer pixels
TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = ("test", "valid", "validation", "val")
GREY_MODES = {"1", "L", "LA"}


def open_image(data: bytes, name: str) -> Image.Image:
    """The decoded picture; its size is checked before the pixels are allocated."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=tuple(EXTENSIONS))
            check_pixels(image, len(data), name)
            sixteen = ";16" in str(image.tile) and not image.mode.startswith("I")
            image.load()
    except InputError:
        raise
    except UnidentifiedImageError:  # whose own text is the address of an object
        raise InputError(
            f"{name} is not a readable image (no known format): remove or replace it"
        ) from None
    # Pillow's decoders raise whatever a broken file leads them to: all of it is the file's fault.
    except Exception as error:
        raise InputError(
            f"{name} is not a readable image ({error}): remove or replace it"
        ) from error
    if sixteen:
        raise InputError(
            f"{name} is a 16-bit colour image, which would be cut to 8 bits: use npy: with uint16"
        )
    return image


def check_pixels(image: Image.Image, packed: int, name: str) -> None:
    """Refuse a picture that declares more pixels than are allowed or than its file can hold."""
    pixels = image.width * image.height
    if pixels > max_pixels():
        raise InputError(
            f"{name} declares {image.width}x{image.height} pixels, more than {max_pixels()}: make "
            "it smaller, remove it, or set IDODE_MAX_PIXELS"
        )
    check_growth(name, packed, pixels * len(image.getbands()))


def decode(data: bytes, name: str, size: int | None = None) -> NDArray[Any]:
    """One image file as ``(C, H, W)``, uint8 or, for 16-bit grey, uint16.

    With ``size`` the largest centred square is averaged down (or up) to ``(C, size, size)``.
    """
    image = open_image(data, name)
    if size is not None:
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    if image.mode.startswith("I;16"):
        if size is not None:
            raise InputError(f"{name} has 16 bits and cannot be resized: leave out size=")
        return np.asarray(image).astype(np.uint16)[None]
    if image.mode in {"I", "F"}:
        raise InputError(f"{name} has 32 bits a pixel: use npy: with uint16 or fewer levels")
    mode = "L" if image.mode in GREY_MODES else "RGB"
    image = image if image.mode == mode else image.convert(mode)
    if size is not None:
        image = image.resize((size, size), Image.Resampling.BOX)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def decode_all(
    files: Iterator[Member], size: int | None = None, channels: int | None = None
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Names and images of one shape ``(C, H, W)``, that of the first unless channels are given."""
    first: NDArray[Any] | None = None
    for member in files:
        pixels = decode(member.read(max_file_bytes()), member.shown, size)
        wanted = channels or (len(pixels) if first is None else len(first))
        if len(pixels) > wanted:
            raise InputError(
                f"{member.shown} is in colour and the images before it are grey: add channels=3"
            )
        if len(pixels) != wanted:
            pixels = np.repeat(pixels, wanted // len(pixels), axis=0)
        first = pixels if first is None else first
        if (pixels.shape, pixels.dtype) != (first.shape, first.dtype):
            raise InputError(
                f"{member.shown} is {pixels.shape} {pixels.dtype} and the images before it are "
                f"{first.shape} {first.dtype}: make them equal, or add size=N to scale them"
            )
        yield member.name, pixels


def split_of(name: str) -> SplitName | None:
    """The split a path names by one of its folders."""
    for part in PurePosixPath(name).parts[:-1]:
        if part.lower() in TRAIN_FOLDERS:
            return "train"
        if part.lower() in TEST_FOLDERS:
            return "test"
    return None


def image_members(path: Path) -> Iterator[Member]:
    return (m for m in members(path) if PurePosixPath(m.name).suffix.lower() in KNOWN)


@dataclass(frozen=True)
class Images(FileFormat):
    """Image files below a folder or in an archive; files of other extensions are passed over.

    Folders called train and test (or valid, validation, val) are the splits if both are there;
    images outside of them are then left out. Otherwise one in 1/``test`` is held out.

    Args:
        size: Average the largest centred square of each image to ``size`` x ``size``.
        channels: 3 reads grey images as colour.
    """

    size: int | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise InputError(f"size: must be at least 1, got {self.size}")
        if self.size is not None and LARGE * self.size**2 > max_pixels():
            most = math.isqrt(max_pixels() // LARGE)
            raise InputError(
                f"size: must be at most {most}, got {self.size}; IDODE_MAX_PIXELS allows more"
            )
        if self.channels not in (None, 3):
            raise InputError(
                f"channels={self.channels}: give 3 to read grey images as colour, or nothing"
            )

    def read(self, path: Path) -> Chunks:
        """The pixels of all images, in their order of names (of a tar: its own order)."""
        own = {"train", "test"} <= {split_of(m.name) for m in image_members(path)}
        files = (m for m in image_members(path) if not own or split_of(m.name))
        waiting: dict[SplitName, list[NDArray[Any]]] = {"train": [], "test": []}
        for i, (name, pixels) in enumerate(decode_all(files, self.size, self.channels)):
            last = bool(held_out(np.array([i]), self.test)[0])
            split = (split_of(name) if own else None) or ("test" if last else "train")
            waiting[split].append(pixels)
            if len(waiting[split]) >= min(CHUNK_ROWS, max(1, BLOCK_BYTES // pixels.nbytes)):
                yield split, np.stack(waiting[split])
                waiting[split] = []
        for split, rest in waiting.items():
            if rest:
                yield split, np.stack(rest)
