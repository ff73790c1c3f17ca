"""Samples that are on disk already: a folder of pictures, or arrays in a ``.npz`` file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idode.data.arrays import npz_arrays
from idode.data.images import decode_all, image_members
from idode.errors import InputError

__all__ = ["read_samples"]

KEYS = ("data", "arr_0")  # what idode writes, and what numpy calls an array without a name
COLOURS = (1, 3)


def read_samples(path: Path, levels: int) -> NDArray[Any]:
    """Images ``(N, C, H, W)`` with integers in ``0..levels-1``.

    Args:
        path: A folder of image files, whose range, 0..255 or of 16 bits 0..65535, stands for all
            levels; or a ``.npz`` file with an array ``data`` or ``arr_0``, ``(N, C, H, W)`` or
            ``(N, H, W, C)``, of levels.
        levels: Levels of the data they are samples of.
    """
    if path.is_dir():
        pictures = [pixels for _, pixels in decode_all(image_members(path))]
        if not pictures:
            raise InputError(f"{path} holds no images: give a folder of PNG files, or FILE.npz")
        small = np.uint8 if levels <= 256 else np.int32
        white = np.iinfo(pictures[0].dtype).max
        return np.round(np.stack(pictures) * ((levels - 1) / white)).astype(small)
    if path.suffix != ".npz" or not path.exists():
        raise InputError(f"there are no samples at {path}: give a folder of images, or FILE.npz")
    images = _array(path)
    shape: tuple[int, ...] = images.shape
    if len(shape) == 4 and shape[1] not in COLOURS and shape[3] in COLOURS:
        images = images.transpose(0, 3, 1, 2)
    good = len(shape) == 4 and images.size > 0 and images.dtype.kind in "ui"
    if not good or int(images.max()) >= levels or int(images.min()) < 0:
        raise InputError(
            f"{path} has no images: it needs an array {' or '.join(KEYS)} of integers below "
            f"{levels}, of shape (N, C, H, W)"
        )
    return images


def _array(path: Path) -> NDArray[Any]:
    """The array of samples in a file; an empty one where there is none."""
    found = npz_arrays(path, *KEYS)
    return next((found[key] for key in KEYS if key in found), np.empty((0,)))
