r"""Fréchet distance (FID) between two sets of images, in the features of a network.

.. math:: \|\mu_a - \mu_b\|^2 + \operatorname{tr}\,(C_a + C_b)
          - 2\operatorname{tr}\,(C_a^{1/2} C_b\, C_a^{1/2})^{1/2}

The last trace is the sum of the singular values of :math:`C_a^{1/2}C_b^{1/2}`: taken like this
nothing is squared, so a covariance of low rank loses no digits and no result is complex.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from idode.batches import to_tensor
from idode.data.arrays import npz_arrays
from idode.data.loading import default_root
from idode.data.prepared import Dataset
from idode.errors import InputError
from idode.sampling.features import Features, features_for, inception_features
from idode.storage import write_atomically

__all__ = ["FIDReference", "FeatureStatistics", "fid", "frechet_distance", "statistics_of"]

Images = Tensor | npt.NDArray[np.generic]


@dataclass(frozen=True)
class FeatureStatistics:
    """Mean and covariance of features, all in float64 on the CPU."""

    count: int
    mean: Tensor  # (D,)
    scatter: Tensor  # (D, D), sum of outer products of deviations from the mean

    @classmethod
    def of(cls, features: Tensor) -> FeatureStatistics:
        """Mean and covariance of features ``(N, D)``."""
        if features.ndim != 2 or len(features) == 0:
            raise InputError(f"features must be (N, D) with N > 0, got {tuple(features.shape)}")
        if not bool(torch.isfinite(features).all()):
            raise InputError("a feature is not finite: check the images and the feature network")
        values = features.detach().cpu().double()
        mean = values.mean(0)
        return cls(len(values), mean, (values - mean).T @ (values - mean))

    @property
    def covariance(self) -> Tensor:
        """Unbiased estimate, ``(D, D)``."""
        if self.count < 2:
            raise InputError(f"a covariance needs at least 2 samples, got {self.count}")
        return self.scatter / (self.count - 1)

    def merged(self, other: FeatureStatistics) -> FeatureStatistics:
        """Statistics of both sets together, without cancellation of large sums."""
        if self.mean.shape != other.mean.shape:
            raise InputError(
                f"features of {len(self.mean)} and {len(other.mean)} dimensions are of different "
                "networks: use one network for both"
            )
        count = self.count + other.count
        apart = other.mean - self.mean
        outer = torch.outer(apart, apart) * (self.count * other.count / count)
        return FeatureStatistics(
            count,
            self.mean + apart * (other.count / count),
            self.scatter + other.scatter + outer,
        )

    def save(self, path: Path) -> None:
        """Write a ``.npz`` file atomically."""
        buffer = io.BytesIO()
        np.savez(buffer, count=self.count, mean=self.mean, scatter=self.scatter)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, buffer.getvalue())
        except OSError as error:
            raise InputError(
                f"cannot write {path} ({error.strerror}): choose another place"
            ) from None

    @classmethod
    def load(cls, path: Path) -> FeatureStatistics:
        """Read a file that :meth:`save` wrote, without pickle."""
        try:
            found = npz_arrays(path, "count", "mean", "scatter")
        except InputError as error:
            raise InputError(
                f"{path} holds no feature statistics ({error}): make it again"
            ) from None
        shapes = [found[name].shape for name in ("count", "mean", "scatter") if name in found]
        fits = len(shapes) == 3 and shapes[0] == () and shapes[2] == shapes[1] * 2
        good = fits and len(shapes[1]) == 1 and all(np.isfinite(v).all() for v in found.values())
        if not good or (count := int(found["count"])) < 1:
            raise InputError(f"{path} holds no usable feature statistics: make it again")
        mean, scatter = (torch.as_tensor(found[name]).double() for name in ("mean", "scatter"))
        return cls(count, mean, scatter)


def frechet_distance(a: Tensor | FeatureStatistics, b: Tensor | FeatureStatistics) -> float:
    """Distance of the normals fitted to two sets of features ``(N, D)``, or statistics."""
    first = FeatureStatistics.of(a) if isinstance(a, Tensor) else a
    second = FeatureStatistics.of(b) if isinstance(b, Tensor) else b
    if first.mean.shape != second.mean.shape:
        raise InputError(
            f"features of {len(first.mean)} and {len(second.mean)} dimensions cannot be compared: "
            "use one feature network for both"
        )
    shift = (first.mean - second.mean).square().sum()
    spread = torch.trace(first.covariance) + torch.trace(second.covariance)
    overlap = torch.linalg.svdvals(_root(first.covariance) @ _root(second.covariance)).sum()
    return max(0.0, float(shift + spread - 2 * overlap))


def _root(covariance: Tensor) -> Tensor:
    """The symmetric square root; rounding may have made small eigenvalues negative."""
    values, axes = torch.linalg.eigh((covariance + covariance.T) / 2)
    root: Tensor = (axes * values.clamp(min=0).sqrt()) @ axes.T
    return root


def statistics_of(
    images: Images,
    features: Features,
    batch_size: int = 64,
    progress: Callable[[int], None] | None = None,
) -> FeatureStatistics:
    """Statistics of the features of integer images ``(N, C, H, W)``, computed in batches."""
    if len(images) == 0:
        raise InputError("there are no images to compute features of: pass at least one")
    total: FeatureStatistics | None = None
    for lo in range(0, len(images), batch_size):
        batch = to_tensor(images[lo : lo + batch_size])
        with torch.no_grad():
            part = FeatureStatistics.of(features(batch))
        total = part if total is None else total.merged(part)
        if progress is not None:
            progress(len(batch))
    assert total is not None
    return total


def fid(
    images: Images,
    reference: Images | FeatureStatistics,
    features: Features,
    batch_size: int = 64,
) -> float:
    """Fréchet distance of images to a reference; comparable only at equal numbers of images.

    Args:
        images: Integers ``(N, C, H, W)``.
        reference: Images of the same kind, or their statistics.
        features: The network: :func:`idode.sampling.features.digits_features`,
            :func:`idode.sampling.features.inception_features` or one of your own.
        batch_size: Images in one call of the network.
    """
    known = reference
    if not isinstance(known, FeatureStatistics):
        known = statistics_of(known, features, batch_size)
    return frechet_distance(statistics_of(images, features, batch_size), known)


@dataclass(frozen=True)
class FIDReference:
    """Real images that samples are compared with.

    Args:
        data: The training split is the reference; the FID of the test split gives the scale.
        network: Name of the feature network.
        features: The feature network.
        stored: Whether to keep statistics in the data folder, for slow networks.
    """

    data: Dataset
    network: str
    features: Features
    stored: bool = False

    @classmethod
    def for_data(cls, data: Dataset, device: torch.device | str = "cpu") -> FIDReference:
        """With the features made for the data set, or else those of the Inception network.

        Statistics are computed here, so that errors are found before samples are drawn.
        """
        if data.levels is None:
            raise InputError("the Fréchet distance is for images, and this data is continuous")
        own = features_for(data)
        if own is not None:
            found = cls(data, *own)
        else:
            features = inception_features(data.levels, device)
            found = cls(data, "inception-v3", features, stored=True)
        _ = found.train, found.test
        return found

    @cached_property
    def train(self) -> FeatureStatistics:
        """Statistics of the training split."""
        return self._statistics("train")

    @cached_property
    def test(self) -> FeatureStatistics:
        """Statistics of the test split."""
        return self._statistics("test")

    def fid(self, images: Images) -> float:
        """Fréchet distance of images ``(N, C, H, W)`` to the training split."""
        return fid(images, self.train, self.features)

    def figures(self, images: Images) -> dict[str, Any]:
        """The FID of images and of the test split, as plain values with their origin."""
        return {
            "fid": self.fid(images),
            "fid_of_test_split": frechet_distance(self.test, self.train),
            "test_images": self.test.count,
            "fid_features": self.network,
            "fid_data": self.data.identity.name,
        }

    def _statistics(self, split: str) -> FeatureStatistics:
        images: Images = getattr(self.data, split)
        if not self.stored:
            return statistics_of(images, self.features)
        # All that makes two data sets the same, see same_data, but not what they are called.
        values = replace(self.data.identity, name="", version="").to_json()
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        path = default_root() / "features" / f"{self.network}-{digest[:16]}-{split}.npz"
        if path.exists():
            return FeatureStatistics.load(path)
        found = statistics_of(images, self.features)
        found.save(path)
        return found
