"""How much a report computes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from idode.errors import InputError

__all__ = ["FAST", "FULL", "Effort"]


@dataclass(frozen=True)
class Effort:
    """Counts of everything drawn; two reports compare only where these agree.

    Args:
        limit: Test images of the table of bounds.
        images: Test images of the histogram and of the SDE bound.
        starts: Starts of uniform dequantization.
        start_images: Test images at each of them.
        levels: Noise levels.
        data: Test images of the figures over noise levels.
        noises: Draws of the noise for each of them at each level.
        samples: Drawn from the model.
        pilot: Test images the solver's grid is tuned on.
        tolerance: Of the solver, bits/dim rms for an image.
        sde_draws: Noise levels for each image of the SDE bound, even.
        seed: Of everything random.
    """

    limit: int = 6
    images: int = 64
    starts: int = 7
    start_images: int = 16
    levels: int = 24
    data: int = 32
    noises: int = 20
    samples: int = 16
    pilot: int = 8
    tolerance: float = 0.02
    sde_draws: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "seed" and not value > 0:
                raise InputError(f"{field.name} must be positive, got {value}")


FAST = Effort()
FULL = Effort(  # the paper's 32 images and 100 draws, and enough images for two decimals
    limit=64,
    images=1024,
    starts=15,
    start_images=128,
    levels=64,
    noises=100,
    samples=64,
    pilot=16,
    tolerance=0.005,
    sde_draws=64,
)
