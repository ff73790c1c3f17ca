"""Randomness that belongs to an image.

Noise and probes are drawn from a generator seeded by the image's place in its data set, so that a
draw does not depend on the batch an image came in, or on how many processes share the work.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = [
    "CODE",
    "DIFFUSION",
    "NOISE",
    "PROBE",
    "RECONSTRUCTION",
    "per_image",
    "uniform",
    "uniforms",
]

# Purposes: two streams of one image must never share a seed.
NOISE, PROBE, DIFFUSION, RECONSTRUCTION, CODE = range(5)


def per_image(
    draw: Callable[[torch.Generator], Tensor],
    indices: Sequence[int],
    *,
    seed: int,
    purpose: int,
    repeat: int,
) -> Tensor:
    """Stack ``draw(generator)`` over images, each with a generator of its own.

    Args:
        draw: Makes the numbers for one image.
        indices: Places of the images in their data set.
        seed: Seed of the whole evaluation.
        purpose: One of the five above.
        repeat: Number of the draw, 0, 1, ... for one image.
    """
    drawn = []
    for index in indices:
        key = struct.pack("<qqqq", seed, purpose, index, repeat)
        number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        drawn.append(draw(torch.Generator().manual_seed(number >> 1)))
    return torch.stack(drawn)


def uniform(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Float64 numbers strictly inside (0, 1), which quantile functions need."""
    u = torch.rand(tuple(shape), generator=generator, dtype=torch.float64)
    return u + 2.0**-54


def uniforms(
    indices: Sequence[int], *, seed: int, purpose: int, repeat: int
) -> Callable[[int], Tensor]:
    """A function that draws so many numbers of :func:`uniform` for each image, ``(B, count)``."""
    return lambda count: per_image(
        lambda g: uniform((count,), g), indices, seed=seed, purpose=purpose, repeat=repeat
    )
