"""Data sets: one spec string, one identity, memory-mapped arrays.

``load("cifar10")`` gives a :class:`Dataset` whose splits are arrays of integers; see
``docs/data.md`` for the specs, the formats and what is guaranteed about them. Names are loaded
when they are first used, so that the two tables can be listed without numpy or torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from idode.registry import Registry

if TYPE_CHECKING:
    from idode.data.augmentation import augment
    from idode.data.batches import Batches, Loader
    from idode.data.format import FileFormat
    from idode.data.identity import Identity, content_hash, mismatch_warning, same_data
    from idode.data.loading import default_root, fetch, load, verify
    from idode.data.prepared import Dataset, Split
    from idode.data.published import Published

# Data sets that have a name of their own.
PUBLISHED: Registry[Published] = Registry(
    "published data set",
    {
        "digits": ("idode.data.digits:DIGITS", "the 8x8 digits of scikit-learn"),
        "mnist": ("idode.data.idx:MNIST", "MNIST"),
        "fashion-mnist": ("idode.data.idx:FASHION_MNIST", "Fashion-MNIST"),
        "cifar10": ("idode.data.cifar:CIFAR10", "CIFAR-10"),
        "imagenet32": ("idode.data.imagenet:IMAGENET32", "the new ImageNet-32, of 2017"),
        "imagenet32-old": ("idode.data.imagenet:IMAGENET32_OLD", "the old ImageNet-32, of 2016"),
    },
)
# Formats of the user's own files, written FORMAT:PATH.
FORMATS: Registry[type[FileFormat]] = Registry(
    "file format",
    {
        "folder": ("idode.data.images:Images", "a folder of image files"),
        "tar": ("idode.data.images:Images", "a tar or zip of image files"),
        "npy": ("idode.data.arrays:Npy", "an array of integers (images) or floats (vectors)"),
        "npz": ("idode.data.arrays:Npz", "the same with train and test, or one array of several"),
        "csv": ("idode.data.arrays:Csv", "a table of numbers, one vector a line"),
    },
)

LAZY = {  # public name: module
    "Batches": "batches",
    "Dataset": "prepared",
    "Identity": "identity",
    "Loader": "batches",
    "Split": "prepared",
    "augment": "augmentation",
    "content_hash": "identity",
    "default_root": "loading",
    "fetch": "loading",
    "load": "loading",
    "mismatch_warning": "identity",
    "same_data": "identity",
    "verify": "loading",
}

__all__ = [
    "FORMATS",
    "PUBLISHED",
    "Batches",
    "Dataset",
    "Identity",
    "Loader",
    "Split",
    "augment",
    "content_hash",
    "default_root",
    "fetch",
    "load",
    "mismatch_warning",
    "same_data",
    "verify",
]


def __getattr__(name: str) -> object:
    if name in LAZY:
        return getattr(importlib.import_module(f"idode.data.{LAZY[name]}"), name)
    raise AttributeError(f"module 'idode.data' has no attribute {name!r}")
