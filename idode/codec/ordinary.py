"""Ordinary lossless coders of single images: for those that a model would make larger.

PNG and WebP come with Pillow; JPEG XL is used where ``imagecodecs`` is installed.
"""

from __future__ import annotations

import importlib.util
import io
import zlib
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, features

from idode.codec.coder import DamagedError

__all__ = ["Image8", "Stored", "decode", "encode"]

Image8: TypeAlias = NDArray[np.uint8]  # (C, H, W)
Stored: TypeAlias = tuple[int, bytes]  # number of the coder, and what it made

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
WEBP_SIDE = 16383


def encode(image: Image8) -> Stored:
    """The smallest of what the coders make of an image."""
    found = [(number, coder(image)) for number, coder in enumerate(_encoders()) if coder]
    made = [(number, data) for number, data in found if data is not None]
    return min(made, key=lambda pair: len(pair[1]))


def decode(stored: Stored, shape: tuple[int, int, int]) -> Image8:
    """The image of a known shape; anything else is damage."""
    number, data = stored
    try:
        if number == 0:
            image = _inflated(data, shape)
        elif number == 3:
            image = _from_jpegxl(data, shape)
        else:
            image = _from_pillow(data, shape)
    except DamagedError:
        raise
    except Exception as error:  # a decoder raises whatever broken bytes lead it to
        raise DamagedError(f"an image in it cannot be decoded ({error})") from None
    if image.shape != shape or image.dtype != np.uint8:
        raise DamagedError(f"an image in it is {image.shape} where {shape} is declared")
    return image


@cache
def _encoders() -> tuple[Callable[[Image8], bytes | None] | None, ...]:
    """Encoders by number: deflate, PNG, WebP, JPEG XL; ``None`` if not installed."""
    webp = _to_webp if features.check("webp") else None
    jpegxl = _to_jpegxl if importlib.util.find_spec("imagecodecs") is not None else None
    return _deflated, _to_png, webp, jpegxl


def _deflated(image: Image8) -> bytes:
    return zlib.compress(image.tobytes(), 9)


def _inflated(data: bytes, shape: tuple[int, int, int]) -> Image8:
    size = int(np.prod(shape))
    inflater = zlib.decompressobj()
    raw = inflater.decompress(data, size + 1)
    if len(raw) != size or not inflater.eof or inflater.unused_data:
        raise DamagedError("a deflated image in it has the wrong size")
    return np.frombuffer(raw, dtype=np.uint8).reshape(shape)


def _picture(image: Image8) -> Image.Image | None:
    if len(image) not in MODES:
        return None
    return Image.fromarray(
        np.ascontiguousarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
    )


def _to_png(image: Image8) -> bytes | None:
    picture, file = _picture(image), io.BytesIO()
    if picture is None:
        return None
    picture.save(file, "PNG", optimize=True)
    return file.getvalue()


def _to_webp(image: Image8) -> bytes | None:
    picture, file = _picture(image), io.BytesIO()
    if picture is None or max(picture.size) > WEBP_SIDE:
        return None
    # Higher settings take fifty times as long and make small images larger.
    picture.save(file, "WEBP", lossless=True, quality=50, method=3, exact=True)
    return file.getvalue()


def _from_pillow(data: bytes, shape: tuple[int, int, int]) -> Image8:
    with Image.open(io.BytesIO(data), formats=("PNG", "WEBP")) as picture:
        if (picture.height, picture.width) != shape[1:]:
            raise DamagedError("an image in it has another size than declared")
        pixels = np.asarray(picture.convert(MODES[shape[0]]))
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _to_jpegxl(image: Image8) -> bytes | None:
    import imagecodecs

    if len(image) not in MODES:
        return None
    pixels = image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
    return bytes(imagecodecs.jpegxl_encode(pixels, lossless=True, effort=7))


def _from_jpegxl(data: bytes, shape: tuple[int, int, int]) -> Image8:
    try:
        import imagecodecs
    except ImportError:
        raise DamagedError(
            "it holds JPEG XL images, which need: pip install imagecodecs"
        ) from None
    pixels = np.asarray(imagecodecs.jpegxl_decode(data)).reshape(*shape[1:], -1)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
