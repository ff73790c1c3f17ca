"""How a file follows from pixels: what is kept of it besides them.

A file of arrays is its values and the bytes between them. An image file is made again by the
encoder and the settings that reproduce its bytes; a PNG file that none reproduces keeps its other
chunks as they are, so that pixels, palette and metadata come back, though perhaps not the same
deflated bytes. Everything else has no recipe and is kept as bytes.
"""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idode.codec.bytestream import from_text, to_text
from idode.codec.coder import DamagedError
from idode.codec.packed_arrays import restore_packed, take_packed
from idode.data.images import check_pixels

__all__ = ["Recipe", "Taken", "restore", "take_apart"]

Recipe = dict[str, Any]
Images = NDArray[np.uint8]  # (N, C, H, W)

PLANES = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}
PNG_START = b"\x89PNG\r\n\x1a\n"
ATTEMPTS: dict[str, tuple[dict[str, Any], ...]] = {  # settings of Pillow that files are made with
    "PNG": ({}, {"optimize": True}, *({"compress_level": n} for n in (9, 1, 3, 4, 0))),
    "BMP": ({},),
    "PPM": ({},),
    "TIFF": ({}, {"compression": "tiff_lzw"}),
    "GIF": ({},),
    "TGA": ({},),
    "WEBP": (
        {"lossless": True},
        {"lossless": True, "quality": 100, "method": 6},
        {"lossless": True, "exact": True},
    ),
}


@dataclass(frozen=True)
class Taken:
    """The pixels of a file, and the recipe that makes the file of them."""

    images: Images
    recipe: Recipe
    exact: bool  # every byte comes back


def take_apart(name: str, data: bytes) -> Taken | None:
    """Pixels and recipe of a file; ``None`` for a file that must be kept as bytes."""
    try:
        packed = take_packed(name, data)
        taken = _image(data) if packed is None else Taken(*packed, exact=True)
        if taken is None:
            return None
        made = restore(taken.recipe, taken.images)
        same = made == data if taken.exact else _same_picture(made, data)
    except Exception:  # whatever a broken file leads a reader to: it is kept as bytes
        return None
    return taken if same else None


def restore(recipe: Recipe, images: Images) -> bytes:
    """The file; :class:`DamagedError` where the recipe does not fit the images."""
    kinds = {"packed": restore_packed, "pillow": _restore_pillow, "png": _restore_png}
    try:
        return kinds[recipe["kind"]](recipe, images)
    except DamagedError:
        raise
    except Exception as error:
        raise DamagedError(f"a file of it cannot be put together ({error})") from None


def _opened(data: bytes) -> Image.Image:
    """A picture of a format that has recipes: others may run a program, as EPS does."""
    return Image.open(io.BytesIO(data), formats=tuple(ATTEMPTS))


def _same_picture(one: bytes, other: bytes) -> bool:
    """Whether two files show the same: mode, palette, metadata and pixels."""
    with _opened(one) as a, _opened(other) as b:
        a.load()
        b.load()
        return (a.mode, a.size, a.info, a.getpalette()) == (
            b.mode, b.size, b.info, b.getpalette(),
        ) and a.tobytes() == b.tobytes()  # fmt: skip


def _image(data: bytes) -> Taken | None:
    with _opened(data) as picture:
        check_pixels(picture, len(data), "an image")
        if getattr(picture, "n_frames", 1) > 1:
            return None
        kind = picture.format or ""
        picture.load()
        planes = _planes(picture)
        if planes is None:
            return None
        images = planes[None]
        for options in ATTEMPTS.get(kind, ()):
            recipe = {"kind": "pillow", "format": kind, "mode": picture.mode, "options": options}
            if picture.mode == "P":
                palette = picture.palette
                assert palette is not None
                recipe["palette"] = [palette.mode, to_text(bytes(palette.palette))]
            if _same(recipe, images, data):
                return Taken(images, recipe, exact=True)
    if kind == "PNG":
        recipe = _png_recipe(data, images)
        return Taken(images, recipe, exact=_same(recipe, images, data))
    return None


def _same(recipe: Recipe, images: Images, data: bytes) -> bool:
    try:
        return restore(recipe, images) == data
    except DamagedError:
        return False


def _planes(picture: Image.Image) -> NDArray[np.uint8] | None:
    """``(C, H, W)`` of 8 bits, ``None`` for another mode."""
    if picture.mode not in (*PLANES, "P", "1"):
        return None
    pixels = np.asarray(picture).astype(np.uint8)
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def _restore_pillow(recipe: Recipe, images: Images) -> bytes:
    mode, options = recipe["mode"], recipe["options"]
    if recipe["format"] not in ATTEMPTS or options not in ATTEMPTS[recipe["format"]]:
        raise DamagedError("a recipe of it is not one of ours")
    (planes,) = images
    if mode == "1":
        picture = Image.fromarray(planes[0].astype(bool))
    elif mode == "P":
        picture = Image.fromarray(planes[0], mode="L")
        of, palette = recipe["palette"]
        picture.putpalette(from_text(palette), of)
    else:
        pixels = planes[0] if len(planes) == 1 else planes.transpose(1, 2, 0)
        picture = Image.fromarray(np.ascontiguousarray(pixels))
    if picture.mode != mode:
        raise DamagedError("an image of it has another mode than declared")
    file = io.BytesIO()
    picture.save(file, recipe["format"], **options)
    return file.getvalue()


def _png_recipe(data: bytes, images: Images) -> Recipe:
    """Everything around the pixels of a PNG file of 8 bits, not interlaced."""
    if not data.startswith(PNG_START):
        raise ValueError("no PNG file")
    first = last = at = len(PNG_START)
    sizes: list[int] = []
    packed: list[bytes] = []
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        end = at + 12 + length
        if data[at + 4 : at + 8] == b"IDAT":
            first = first if sizes else at
            sizes.append(length)
            packed.append(data[at + 8 : end - 4])
            last = end
        at = end
    _, _, depth, _, _, _, interlaced = struct.unpack(">IIBBBBB", data[16:29])
    _, channels, height, width = images.shape
    if depth != 8 or interlaced:
        raise ValueError("other bit depths and interlaced files are kept as bytes")
    rows = zlib.decompress(b"".join(packed))
    stride = 1 + width * channels
    if len(rows) != height * stride:
        raise ValueError("other planes than the image has")
    filters = rows[::stride]
    base = {
        "kind": "png", "before": to_text(data[:first]), "after": to_text(data[last:]),
        "filters": to_text(zlib.compress(filters, 9)), "sizes": sizes,
    }  # fmt: skip
    for level in (6, 9, 1, -1):
        recipe = {**base, "level": level}
        if _same(recipe, images, data):
            return recipe
    return {**base, "level": 9, "sizes": []}


def _restore_png(recipe: Recipe, images: Images) -> bytes:
    from idode.codec.png_filters import filtered

    (planes,) = images
    height = planes.shape[1]
    filters = zlib.decompressobj().decompress(from_text(recipe["filters"]), height + 1)
    pixels = np.ascontiguousarray(planes.transpose(1, 2, 0)).reshape(height, -1)
    packed = zlib.compress(filtered(pixels, filters, len(planes)), recipe["level"])
    parts, at = [from_text(recipe["before"])], 0
    sizes = recipe["sizes"]
    rest = len(packed) - sum(sizes)  # none, unless another zlib deflates to more bytes
    for size in [*sizes, rest] if rest > 0 else sizes:
        body = b"IDAT" + packed[at : at + size]
        parts += [struct.pack(">I", len(body) - 4), body, struct.pack(">I", zlib.crc32(body))]
        at += size
    return b"".join([*parts, from_text(recipe["after"])])
