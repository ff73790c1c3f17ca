"""The Fréchet distance of samples on disk to a data set, shared between processes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from idode.data.memory import Data, as_dataset
from idode.errors import InputError
from idode.runs.distributed import World, joined
from idode.sampling.features import Features
from idode.sampling.fid import FeatureStatistics, FIDReference, frechet_distance, statistics_of
from idode.sampling.reading import read_samples

__all__ = ["SampleFID", "fid_of_samples", "shared_statistics"]


@dataclass(frozen=True)
class SampleFID:
    """How far samples are from the images of a training split."""

    fid: float
    count: int  # of samples
    fid_of_test_split: float  # the yardstick
    test_images: int
    features: str  # name of the network
    data: str
    rank: int = 0  # of this process; all have the same figures


def fid_of_samples(
    samples: Path | str, against: Data, *, device: torch.device | str | None = None
) -> SampleFID:
    """The Fréchet distance of samples that are on disk.

    Under ``torchrun`` the processes share the images.

    Args:
        samples: A folder of pictures, or a ``.npz`` file, see
            :func:`idode.sampling.reading.read_samples`.
        against: The data set, whose training split is the reference.
        device: Of the feature network; by default the best one there is.
    """
    data = as_dataset(against)
    if data.levels is None:
        raise InputError("the Fréchet distance is for images, and this data is continuous")
    images = read_samples(Path(samples), data.levels)
    if images.shape[1:] != data.shape or len(images) < 2:
        raise InputError(
            f"{samples} has {len(images)} images of shape {images.shape[1:]}: give at least two "
            f"of the shape of {data.identity.name}, {data.shape}"
        )
    with joined(device) as world:
        if not world.writes:
            world.barrier()  # the statistics of the data are made once, and stored
        reference = FIDReference.for_data(data, world.device)
        if world.writes:
            world.barrier()
        found = shared_statistics(images, reference.features, world)
        rank = world.rank
    return SampleFID(
        frechet_distance(found, reference.train),
        len(images),
        frechet_distance(reference.test, reference.train),
        reference.test.count,
        reference.network,
        data.identity.name,
        rank,
    )


def shared_statistics(images: NDArray[Any], features: Features, world: World) -> FeatureStatistics:
    """Statistics of all images, of which each process looks at its part, on all processes."""
    cuts = [len(images) * part // world.size for part in range(world.size + 1)]
    if min(b - a for a, b in itertools.pairwise(cuts)) == 0:
        raise InputError(
            f"{len(images)} images are too few for {world.size} processes: start fewer"
        )
    own = statistics_of(images[cuts[world.rank] : cuts[world.rank + 1]], features)
    if world.size == 1:
        return own
    means, scatters = world.gather(own.mean[None]), world.gather(own.scatter[None])
    counts = [b - a for a, b in itertools.pairwise(cuts)]
    parts = [FeatureStatistics(*part) for part in zip(counts, means, scatters, strict=True)]
    total = parts[0]
    for part in parts[1:]:
        total = total.merged(part)
    return total
