"""File sizes by ordinary coders as proxies, where they save more seconds than they take."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from idode.evaluation.multilevel import residual_variance, standardised

__all__ = ["CODERS", "coder_size", "missing_coders", "useful_coders"]

Rows = npt.NDArray[np.generic]
Vector = npt.NDArray[np.float64]


def _pillow(name: str, options: dict[str, object]) -> Callable[[Rows], int]:
    def size(picture: Rows) -> int:
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(picture).save(file, name, **options)
        return file.tell()

    return size


def _jpegxl(picture: Rows) -> int:
    import imagecodecs

    return len(imagecodecs.jpegxl_encode(picture, lossless=True, effort=3))


CODERS: dict[str, Callable[[Rows], int]] = {
    "PNG": _pillow("PNG", {}),
    "WebP": _pillow("WEBP", {"lossless": True, "quality": 50, "method": 3}),
    "JPEG XL": _jpegxl,
}
"""File size in bytes of one picture ``(H, W)`` or ``(H, W, 3)``."""
SECONDS = {"PNG": 2e-7, "WebP": 1e-6, "JPEG XL": 7e-7}  # for each value of a small image


def missing_coders(images: Rows) -> dict[str, str]:
    """Coders that cannot write these images, and why.

    Args:
        images: The test set.
    """
    from PIL import features

    if images.ndim != 4 or images.shape[1] not in (1, 3) or images.dtype != np.uint8:
        return dict.fromkeys(CODERS, "it takes grey or colour images of at most 256 levels")
    missing = {} if features.check("webp") else {"WebP": "Pillow is built without it"}
    if importlib.util.find_spec("imagecodecs") is None:
        missing["JPEG XL"] = "it needs: pip install imagecodecs"
    return missing


def coder_size(name: str, images: Rows) -> npt.NDArray[np.float64]:
    """Bits/dim ``(N,)`` of every image as a file of its own."""
    coder, dim = CODERS[name], int(np.prod(images.shape[1:]))
    pictures = (image[0] if len(image) == 1 else image.transpose(1, 2, 0) for image in images)
    return np.array([8 * coder(np.ascontiguousarray(p)) / dim for p in pictures])


def useful_coders(
    images: Rows, features: Vector, values: Vector, seconds: float, count: int
) -> list[str]:
    """Coders that save more time than they take, by their usual costs.

    The usual costs and not measured ones: the figures must not depend on how busy a machine is.

    Args:
        images: Some images ``(n, *)``.
        features: Their other proxies ``(n, p)``.
        values: Their bits/dim.
        seconds: Left to spend on solving; a proxy saves the share of variance it takes away.
        count: Images of the test set, all of which a proxy is needed for.
    """
    before, found = residual_variance(standardised(features), values), []
    for name in (n for n in CODERS if n not in missing_coders(images)):
        cost = SECONDS[name] * int(np.prod(images.shape[1:])) * count
        if before <= 1e-9 * values.var() or cost > seconds:
            continue
        sizes = coder_size(name, images)
        after = residual_variance(standardised(np.column_stack([features, sizes])), values)
        if seconds * (1 - after / before) > cost:
            found.append(name)
    return found
