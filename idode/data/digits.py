"""The 8x8 digits that come with scikit-learn, the data of every small example."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from idode.data.download import Progress
from idode.data.format import Chunks
from idode.data.identity import Identity, content_hash
from idode.data.prepared import Dataset
from idode.data.published import Published
from idode.errors import InputError

__all__ = ["DIGITS"]


class Digits(Published):
    """1,797 images of 17 levels, always ready: they are installed and stay in memory."""

    def state(self, root: Path) -> str:
        """Always ``ready``."""
        return "ready"

    def load(self, source: Path | None, root: Path) -> Dataset:
        """The two splits, by position in scikit-learn's file."""
        if source is not None:
            raise InputError("digits come with scikit-learn: leave out the path")
        train, test = (rows for _, rows in self.read(root))
        sizes, hashed = (len(train), len(test)), content_hash(train, test)
        identity = Identity(self.name, self.version, *sizes, self.levels, self.shape, hashed)
        if hashed != self.sha256:
            raise InputError("scikit-learn's digits are not the known ones: install it again")
        return Dataset(identity, train, test)

    def fetch(self, root: Path, progress: Progress) -> Dataset:
        """The digits come with scikit-learn; nothing is fetched."""
        return self.load(None, root)


def read_digits(path: Path) -> Chunks:
    """Images ``(n, 1, 8, 8)``: the first 1,500, then the others; ``path`` is not used."""
    from sklearn.datasets import load_digits

    images = load_digits().images.astype(np.uint8)[:, None]
    yield "train", images[: DIGITS.train_size]
    yield "test", images[DIGITS.train_size :]


DIGITS = Digits(
    name="digits",
    version="scikit-learn",
    train_size=1500,
    test_size=297,
    shape=(1, 8, 8),
    sha256="8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3",
    read=read_digits,
    files="none",
    levels=17,
)
