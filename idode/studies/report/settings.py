"""How much a report computes, as plain values: reading them needs no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from idode.errors import InputError

__all__ = ["FAST", "FULL", "ReportSettings"]


@dataclass(frozen=True)
class ReportSettings:
    """Numbers of images and draws; two reports compare only where these agree.

    Args:
        bounds_images: Test images in the table of bounds.
        images: Test images in the histogram and for the SDE bound.
        starts: Starts of uniform dequantization.
        start_images: Test images at each start.
        levels: Noise levels in the figures over noise levels.
        level_images: Test images in those figures.
        level_draws: Draws of the noise for each of those images at each level.
        samples: Samples drawn from the model.
        pilot_images: Test images that the solver is calibrated on.
        tolerance: Error of the solver, in bits/dim rms for an image.
        sde_draws: Noise levels for each image of the SDE bound, an even number.
        seed: Seed of all random numbers.
    """

    bounds_images: int = 6
    images: int = 64
    starts: int = 7
    start_images: int = 16
    levels: int = 24
    level_images: int = 32
    level_draws: int = 20
    samples: int = 16
    pilot_images: int = 8
    tolerance: float = 0.02
    sde_draws: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "seed" and not value > 0:
                raise InputError(f"{field.name} must be positive, got {value}")


FAST = ReportSettings()
FULL = ReportSettings(  # the paper's 32 images and 100 draws, and enough images for two decimals
    bounds_images=64,
    images=1024,
    starts=15,
    start_images=128,
    levels=64,
    level_draws=100,
    samples=64,
    pilot_images=16,
    tolerance=0.005,
    sde_draws=64,
)
