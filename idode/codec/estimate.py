"""The expected size of an archive, without coding."""

from __future__ import annotations

import io
import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from idode.codec import ordinary
from idode.codec.archive import BLOCK, STEPS, Group, arrange, write_archive
from idode.codec.blocks import check_width
from idode.codec.bound import every_step, image_bits
from idode.codec.coding import AnyModel, model_for
from idode.codec.files import of_input
from idode.data.memory import Data

__all__ = ["Expected", "expected_size"]


@dataclass(frozen=True)
class Expected:
    """The size of an archive, and the part of it that the model codes."""

    bytes: float
    error: float  # standard error at most: differences between images are counted in
    images: int  # by the model
    bits_per_dim: float  # of those
    other: int  # bytes of everything else


def expected_size(
    given: str | Path,
    model: AnyModel,
    *,
    steps: int = STEPS,
    block: int = BLOCK,
    exact: bool = False,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    data: Data | None = None,
) -> Expected:
    """What ``compress_files`` would write, with the same arguments."""
    contents = of_input(str(given), exact, split, limit)
    opened = model_for(model, data=data)
    groups, _, _ = arrange(contents, opened)
    # Everything but the blocks.
    other = write_archive(
        io.BytesIO(), contents, opened, steps=steps, block=block, coded=itertools.repeat(b"")
    ).bytes_after
    bits, variance, values, count = 0.0, 0.0, 0, 0
    scheme = opened.scheme(steps)
    for group in groups:
        if not group.modelled:
            other += _ordinary_bytes(group)
            continue
        for images in group.blocks(block):
            found = image_bits(scheme, images, seed)
            limits = np.array([8.0 * len(ordinary.encode(image)[1]) + 32 for image in images])
            cost = np.minimum(found, limits) if every_step(scheme, len(images)) else found
            bits += min(float(cost.sum()), float(limits.sum()))
            variance += float(cost.var()) * len(images)
            other += 40 + check_width(images.shape[1:]) * len(
                images
            )  # checksums, sizes of batches
            count, values = count + len(images), values + images.size
    return Expected(
        bytes=bits / 8 + other,
        error=math.sqrt(variance) / 8 if values else 0.0,
        images=count,
        bits_per_dim=bits / max(values, 1),
        other=other,
    )


def _ordinary_bytes(group: Group) -> int:
    return sum(len(ordinary.encode(x)[1]) + 8 for images in group.images for x in images)
