"""Bits per dimension of ordinary lossless image coders, for comparison.

All images go into one sheet, one below the other, so that a file header is paid once: on 8x8
images a header of their own would be most of the file.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from idode.errors import InputError

__all__ = ["coder_bits"]

Pixels = npt.NDArray[np.uint8]


def _pillow(name: str, options: dict[str, object]) -> Callable[[Pixels], int]:
    def size(sheet: Pixels) -> int:
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(sheet).save(file, name, **options)
        return file.tell()

    return size


def _jpegxl(sheet: Pixels) -> int:
    import imagecodecs

    return len(imagecodecs.jpegxl_encode(sheet, lossless=True, effort=9))


def coder_bits(pixels: Pixels) -> dict[str, float]:
    """Bits per dimension of images ``(N, C, H, W)`` by each coder that is installed.

    Args:
        pixels: Grey or colour images of at most 256 levels.
    """
    if pixels.ndim != 4 or pixels.shape[1] not in (1, 3) or pixels.dtype != np.uint8:
        raise InputError(
            f"coders take uint8 images (N, 1 or 3, H, W), got {pixels.dtype} {pixels.shape}"
        )
    from PIL import features

    coders: dict[str, Callable[[Pixels], int]] = {"PNG": _pillow("PNG", {"optimize": True})}
    if features.check("webp"):
        coders["WebP"] = _pillow("WEBP", {"lossless": True, "quality": 100, "method": 6})
    if importlib.util.find_spec("imagecodecs") is not None:
        coders["JPEG XL"] = _jpegxl
    n, channels, height, width = pixels.shape
    # WebP allows 16383 rows: more images go into further files.
    rows = max(1, 16383 // height)
    sizes = dict.fromkeys(coders, 0)
    for start in range(0, n, rows):
        part = pixels[start : start + rows].transpose(0, 2, 3, 1).reshape(-1, width, channels)
        sheet = np.ascontiguousarray(part[..., 0] if channels == 1 else part)
        for name, coder in coders.items():
            sizes[name] += coder(sheet)
    return {name: 8 * size / pixels.size for name, size in sizes.items()}
