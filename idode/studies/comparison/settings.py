"""How the runs of a comparison are measured, as plain values: reading them needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from idode.errors import InputError, is_number, whole

__all__ = ["MeasurementSettings"]


@dataclass(frozen=True)
class MeasurementSettings:
    """What is measured on every run; by default it takes about a third of the training time.

    Args:
        limit: Test images of the ODE values.
        tolerance: Error of the solver in bits/dim rms for an image. With a smaller one, most of
            the time would be spent on calibration.
        draws: Noise levels for each image of the SDE bound, an even number.
        samples: Samples drawn together by the paper's adaptive solver, for its NFE and the FID.
    """

    limit: int = 128
    tolerance: float = 0.02
    draws: int = 16
    samples: int = 128

    def __post_init__(self) -> None:
        for name, least in (("limit", 1), ("draws", 2), ("samples", 2)):
            whole(name, getattr(self, name), least)
        if not (is_number(self.tolerance) and 0 < self.tolerance < math.inf):
            raise InputError(f"tolerance must be above 0, got {self.tolerance}")
