"""Images as PNG files: single ones, and grids large enough to look at."""

from __future__ import annotations

import io
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from idode.errors import InputError

__all__ = ["Picture", "check_images", "grid", "png", "to_bytes"]

Picture = npt.NDArray[np.uint8]

LEAST_WIDTH = 800  # pixels of a grid; below it small images are enlarged
GAP = 4
PAPER = 255


def check_images(shape: tuple[int, ...], levels: int | None) -> None:
    """Refuse data other than images with 1 or 3 channels and grey levels."""
    if len(shape) != 3 or shape[0] not in (1, 3) or levels is None:
        raise InputError(
            f"samples of shape {shape} with levels {levels} are not images with 1 or 3 colours: "
            "write them to a .npz file"
        )


def to_bytes(pixels: Tensor, levels: int) -> Picture:
    """Levels ``(N, C, H, W)`` on the scale 0..255, as ``(N, H, W, C)``."""
    check_images(tuple(pixels.shape[1:]), levels)
    scaled = (pixels.double() * (255 / (levels - 1))).round().to(torch.uint8)
    return np.asarray(scaled.permute(0, 2, 3, 1).cpu().numpy())


def grid(pixels: Tensor, levels: int, columns: int | None = None) -> Picture:
    """All images in rows, ``(height, width, C)``, enlarged by a whole factor.

    Pixels are repeated and not interpolated, so that the picture shows the exact values.

    Args:
        pixels: Levels ``(N, C, H, W)``.
        levels: Number of grey levels.
        columns: Images in a row; by default the grid is about square.
    """
    images = to_bytes(pixels, levels)
    count, height, width, colours = images.shape
    if count == 0:
        raise InputError("there are no images to draw: pass at least one")
    across = min(count, columns or math.ceil(math.sqrt(count * height / width)))
    scale = max(1, math.ceil((LEAST_WIDTH - GAP * (across + 1)) / (across * width)))
    images = images.repeat(scale, axis=1).repeat(scale, axis=2)
    down = math.ceil(count / across)
    cell_height, cell_width = height * scale + GAP, width * scale + GAP
    canvas = np.full(
        (down * cell_height + GAP, across * cell_width + GAP, colours), PAPER, np.uint8
    )
    for i, image in enumerate(images):
        top, left = GAP + i // across * cell_height, GAP + i % across * cell_width
        canvas[top : top + height * scale, left : left + width * scale] = image
    return canvas


def png(picture: Picture) -> bytes:
    """A picture ``(H, W, C)`` of one or three colours as the bytes of a PNG file."""
    from PIL import Image

    flat = picture[..., 0] if picture.shape[-1] == 1 else picture
    buffer = io.BytesIO()
    Image.fromarray(flat).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
