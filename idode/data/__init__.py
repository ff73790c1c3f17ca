"""Data sets: one spec string, one identity, memory-mapped arrays.

``load("cifar10")`` gives a :class:`Dataset` whose splits are arrays of integers; see
``docs/data.md`` for the specs, the formats and what is guaranteed about them.
"""

from __future__ import annotations

from idode.data.augmentation import augment
from idode.data.batches import Batches, Loader
from idode.data.catalogue import CATALOGUE
from idode.data.fetching import fetch
from idode.data.identity import Identity, digest, same_data, warning
from idode.data.loading import default_root, load, verify
from idode.data.prepared import Dataset, Split
from idode.data.spec import KINDS

__all__ = [
    "CATALOGUE",
    "KINDS",
    "Batches",
    "Dataset",
    "Identity",
    "Loader",
    "Split",
    "augment",
    "default_root",
    "digest",
    "fetch",
    "load",
    "same_data",
    "verify",
    "warning",
]
