"""Which data a number belongs to: the identity of a data set.

A bits/dim means nothing without the exact images behind it; two data sets are called ImageNet-32
and differ by more than most papers improve. The identity is stored with every run and printed
with every result, and its hash is taken over the values themselves and not over some archive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idode.data.mapped import blocks
from idode.errors import InputError

__all__ = ["Identity", "content_hash", "mismatch_warning", "same_data"]

LARGEST = 2**48  # of a size, above any file
IMAGENET32 = {"imagenet32", "imagenet32-old"}


@dataclass(frozen=True)
class Identity:
    """Name, sizes, value range and hash of a data set.

    ``levels`` is the number of grey levels, ``None`` for continuous vectors; ``shape`` is that of
    one sample, ``(C, H, W)`` or ``(D,)``; ``sha256`` is :func:`content_hash` of the two splits.
    """

    name: str
    version: str
    train_size: int
    test_size: int
    levels: int | None
    shape: tuple[int, ...]
    sha256: str

    def __str__(self) -> str:
        values = "continuous" if self.levels is None else f"{self.levels} levels"
        return (
            f"{self.name} ({self.version}), {self.train_size} train + {self.test_size} test, "
            f"{'x'.join(map(str, self.shape))}, {values}, sha256 {self.sha256[:12]}"
        )

    def to_json(self) -> dict[str, Any]:
        """A mapping of plain JSON values; :meth:`from_json` reads it back."""
        return {**asdict(self), "shape": list(self.shape)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Identity:
        """The identity that :meth:`to_json` wrote; a missing or extra field is refused."""
        try:
            found = cls(**{**fields, "shape": tuple(fields["shape"])})
            text = all(isinstance(v, str) for v in (found.name, found.version, found.sha256))
            numbers = [found.train_size, found.test_size, found.levels or 0, *found.shape]
            if not text or not all(type(n) is int and 0 <= n < LARGEST for n in numbers):
                raise TypeError("a value is of another kind")
            return found
        except (KeyError, TypeError) as error:
            raise InputError(
                f"not the identity of a data set ({error}): prepare the data set again"
            ) from None


def content_hash(train: NDArray[Any], test: NDArray[Any]) -> str:
    """SHA-256 of all values, train before test, row-major and little-endian.

    Headers, file names and compression stay out of it, so every route to the same pixels gives
    the same hash.
    """
    total = hashlib.sha256()
    for split in (train, test):
        for block in blocks(split):
            little = block.astype(block.dtype.newbyteorder("<"), copy=False)
            total.update(np.ascontiguousarray(little).data)
    return total.hexdigest()


def same_data(a: Identity, b: Identity) -> bool:
    """Whether two identities stand for the same values, whatever they are called."""
    return (a.sha256, a.train_size, a.test_size, a.levels, a.shape) == (
        b.sha256,
        b.train_size,
        b.test_size,
        b.levels,
        b.shape,
    )


def mismatch_warning(model: Identity, data: Identity) -> str | None:
    """One sentence where a model meets other data than it was trained on, else ``None``."""
    if same_data(model, data):
        return None
    if {model.name, data.name} == IMAGENET32:
        return (
            f"the model was trained on {model.name} and is evaluated on {data.name}: the old "
            "(49,999 validation images) and the new ImageNet-32 (50,000, anti-aliased and easier) "
            "are different data, and their bits/dim must not be compared."
        )
    return (
        f"the model was trained on other data than it is evaluated on: "
        f"trained on {model}; evaluated on {data}."
    )
