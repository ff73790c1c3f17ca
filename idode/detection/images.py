"""Images to score, with their names: a folder, files, an array, or a data set by name."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from idode.data import FORMATS, PUBLISHED
from idode.data.archive import members, reading
from idode.data.arrays import as_rows, npy_rows, npz_rows
from idode.data.images import KNOWN, Images, decode, decode_all, image_members
from idode.data.loading import load, parse
from idode.diffusion.model import DiffusionODE
from idode.errors import InputError

__all__ = ["Given", "NamedImages", "Pixels", "check_model", "read_images"]

Given: TypeAlias = str | Path | ArrayLike | Tensor
Pixels: TypeAlias = NDArray[np.integer[Any]]
"""Images ``(N, C, H, W)``; of :func:`read_images` uint8, uint16 above 256 levels."""
FOLDERS = ("folder", "tar")  # formats of image files, which are read whole and not split


@dataclass(frozen=True)
class NamedImages:
    """Images ``(N, C, H, W)`` and what to call each."""

    names: list[str]
    pixels: Pixels

    def limited(self, count: int | None) -> NamedImages:
        """The first ``count`` of them."""
        if count is not None and count < 1:
            raise InputError(f"limit must be at least 1, got {count}")
        return NamedImages(self.names[:count], self.pixels[:count])


def read_images(given: Given, model: DiffusionODE, what: str = "the images") -> NamedImages:
    """All images of a folder, a file, an array or the test split of a data set.

    Args:
        given: A path, a spec such as ``cifar10`` or ``folder:PATH?size=28``, or integers
            ``(N, C, H, W)`` or ``(N, H, W)``.
        model: Which they must fit.
        what: How to call them in a message.
    """
    if isinstance(given, str | Path):
        found = _from_text(str(given))
    else:
        array = np.asarray(given.cpu() if isinstance(given, Tensor) else given)
        found = NamedImages([str(i) for i in range(len(array))], _integers(array, what))
    return NamedImages(found.names, _fitting(found, model, what))


def check_model(model: DiffusionODE) -> tuple[int, ...]:
    """The shape of a model's images, refused where it is not of images."""
    if model.levels is None or model.shape is None or len(model.shape) != 3:
        raise InputError(
            f"this model is for data of shape {model.shape} with {model.levels} levels: images "
            "are (C, H, W) with levels; for tables use idode.sklearn.DiffusionOutlierDetector"
        )
    return model.shape


def _from_text(text: str) -> NamedImages:
    path = Path(text)
    kind = text.partition(":")[0].partition("?")[0]
    if path.suffix in (".npy", ".npz") and path.is_file():
        array = np.concatenate([as_rows(text, block) for block in _blocks(path)])
        return NamedImages([str(i) for i in range(len(array))], _integers(array, text))
    if path.exists():
        return _files(path, Images())
    if kind in FOLDERS:
        spec = parse(text)
        assert spec.path is not None
        return _files(spec.path, Images(**spec.options))
    if kind not in [*PUBLISHED, *FORMATS]:
        raise InputError(
            f"there is no file or folder {text}, and no data set of that name: check the path"
        )
    test = np.asarray(load(text).test)
    return NamedImages([str(i) for i in range(len(test))], _integers(test, text))


def _blocks(path: Path) -> Iterator[NDArray[Any]]:
    """Blocks of rows of a ``.npy`` file, or of the only array of a ``.npz`` file."""
    if path.suffix == ".npy":
        for member in members(path):
            yield from npy_rows(member)
        return
    with reading(str(path), "save it again as a .npz file"), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if len(names) != 1:
        raise InputError(
            f"{path} holds {len(names)} arrays, and the images to score are one: save them alone"
        )
    yield from npz_rows(path, str(path), names[0].removesuffix(".npy"))


def _files(path: Path, how: Images) -> NamedImages:
    if path.is_file() and path.suffix.lower() in KNOWN:
        return NamedImages([path.name], decode(path.read_bytes(), path.name, how.size)[None])
    read = list(decode_all(image_members(path), how.size, how.channels))
    if not read:
        raise InputError(f"{path} holds no image files: give a folder of images")
    return NamedImages([name for name, _ in read], np.stack([pixels for _, pixels in read]))


def _integers(array: NDArray[Any], what: str) -> Pixels:
    """Integers ``(N, C, H, W)``."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"{what}: some values are NaN or infinite, give integers")
    if array.dtype.kind not in "ui" or array.ndim not in (3, 4) or not array.size:
        raise InputError(
            f"{what}: images are integers (N, C, H, W) or (N, H, W), got {array.dtype} of shape "
            f"{array.shape}"
        )
    return array[:, None] if array.ndim == 3 else array


def _fitting(found: NamedImages, model: DiffusionODE, what: str) -> Pixels:
    """The pixels, refused where their shape or their values are not those of the model."""
    shape, array = check_model(model), found.pixels
    if tuple(array.shape[1:]) != tuple(shape):
        raise InputError(
            f"{what} are {_described(array.shape[1:])} and the model is for {_described(shape)}: "
            "convert them as the training images were; of a folder, folder:PATH?size=N scales and "
            "&channels=3 makes grey images colour"
        )
    assert model.levels is not None
    if array.min() < 0 or array.max() >= model.levels:
        raise InputError(
            f"{what} hold values from {array.min()} to {array.max()}, and the model is for "
            f"0..{model.levels - 1}: give images of its kind"
            + ("" if model.levels > 255 else ", in a .npy or .npz file: image files hold 0..255")
        )
    return np.ascontiguousarray(array, np.min_scalar_type(model.levels - 1))


def _described(shape: tuple[int, ...]) -> str:
    colours = {1: "grey", 3: "colour"}.get(shape[0], f"{shape[0]}-channel")
    return f"{colours} images of {shape[1]}x{shape[2]}"
