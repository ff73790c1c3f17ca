"""Data sets from arrays in memory, and from whatever a user gives as data."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idode.data import PUBLISHED
from idode.data.arrays import as_rows
from idode.data.identity import Identity, content_hash
from idode.data.loading import load
from idode.data.prepared import Dataset, encode, levels_of
from idode.errors import InputError

__all__ = ["MEMORY", "Data", "as_dataset", "from_arrays", "spec_of"]

MEMORY = "memory"  # the data spec of a run whose data cannot be loaded again by name

Data: TypeAlias = str | Dataset | tuple[ArrayLike, ArrayLike]
"""A spec such as ``"cifar10"``, a data set, or a pair of arrays ``(train, test)``."""


def from_arrays(train: ArrayLike, test: ArrayLike, levels: int | None = None) -> Dataset:
    """A data set from two arrays.

    Args:
        train: Images of integers ``(N, C, H, W)``, ``(N, H, W)`` or ``(N, H, W, C)``; or vectors
            of floats ``(N, D)``.
        test: Samples of the same kind, for held-out values and evaluation.
        levels: Number of grey levels; by default all that the dtype can hold, 256 for uint8.
    """
    first, second = _rows("the training data", train), _rows("the test data", test)
    if first.shape[1:] != second.shape[1:] or (first.dtype.kind == "f") != (
        second.dtype.kind == "f"
    ):
        raise InputError(
            f"the training data is {first.dtype} {first.shape} and the test data {second.dtype} "
            f"{second.shape}: give samples of one kind"
        )
    levels = levels_of(first, levels)
    first, second = encode(first, levels), encode(second, levels)
    shape = tuple(first.shape[1:])
    sizes = len(first), len(second)
    identity = Identity(MEMORY, "arrays", *sizes, levels, shape, content_hash(first, second))
    return Dataset(identity, first, second)


def _rows(name: str, values: ArrayLike) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "uif" or array.ndim < 2 or not len(array):
        raise InputError(
            f"{name} is {array.dtype} of shape {array.shape}: give integer images (N, C, H, W) or "
            "float vectors (N, D)"
        )
    return as_rows(name, array)


def as_dataset(data: Data) -> Dataset:
    """The data set that a spec, a data set or a pair of arrays stands for."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str):
        return load(data)
    if not (isinstance(data, tuple | list) and len(data) == 2):
        raise InputError(
            f"data is a {type(data).__name__}: give a spec such as 'cifar10' or 'folder:PATH', a "
            "Dataset, or a pair of arrays (train, test)"
        )
    return from_arrays(*data)


def spec_of(data: Data) -> str:
    """The spec that loads the same data again; :data:`MEMORY` where there is none."""
    if isinstance(data, str):
        return data
    name = data.identity.name if isinstance(data, Dataset) else MEMORY
    return name if name in PUBLISHED else MEMORY
