"""The Fréchet distance of samples to data, with what real images of the same data would get."""

from __future__ import annotations

from typing import Any

import torch

from idode.data import Dataset, default_root
from idode.errors import InputError
from idode.sampling import Samples
from idode.sampling.features import features_for, inception_features
from idode.sampling.fid import FeatureStatistics, fid, frechet_distance, statistics_of

__all__ = ["Judge"]


class Judge:
    """Compares samples with the training split; the test split is the yardstick."""

    def __init__(self, data: Dataset, device: torch.device) -> None:
        if data.levels is None:
            raise InputError("a Fréchet distance is for images, not continuous data: no --fid")
        self.name = data.identity.name
        own = features_for(data)
        self.cached = own is None  # Inception is slow
        self.network, self.features = own or (
            "inception-v3",
            inception_features(data.levels, device),
        )
        self.train = self._statistics(data, "train")
        self.test = self._statistics(data, "test")

    def _statistics(self, data: Dataset, split: str) -> FeatureStatistics:
        images = getattr(data, split)
        if not self.cached:
            return statistics_of(images, self.features)
        name = f"{self.network}-{data.identity.sha256[:16]}-{split}.npz"
        path = default_root() / "features" / name
        if path.exists():
            return FeatureStatistics.load(path)
        found = statistics_of(images, self.features)
        found.save(path)
        return found

    def figures(self, drawn: Samples) -> dict[str, Any]:
        """The distance of samples, and that of the test split."""
        return {
            "fid": fid(drawn.data, self.train, self.features),
            "fid_of_test_split": frechet_distance(self.test, self.train),
            "test_images": self.test.count,
            "fid_features": self.network,
            "fid_data": self.name,
        }
