"""A value that was estimated from some images of a test set, and what was done for it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from idode.evaluation.multilevel import Spread
from idode.likelihood.bits_per_dim import BitsPerDim, student_interval

__all__ = ["SampledBitsPerDim", "Sampling"]


@dataclass(frozen=True)
class Sampling:
    """Images, grids and proxies of an estimate, and its cost."""

    images: int  # of the test set
    coarse: int  # of them solved on the coarse grid; 0 where all are fine
    fine: int  # on the fine one
    nfe_coarse: float
    nfe_fine: float
    proxies: tuple[str, ...]
    correlation: float  # of values and their predictions by proxies
    spread: Spread
    evaluations: float  # of the network, everything counted
    evaluations_of_all: float  # if all images were solved on the fine grid
    precision: float  # standard error that was asked for

    @property
    def saving(self) -> float:
        """How many times fewer evaluations than for all images."""
        return self.evaluations_of_all / self.evaluations

    def lines(self) -> list[str]:
        """What was done, for people."""
        s = self.spread
        if self.fine >= self.images:
            return [
                f"images: all {self.images} on {self.nfe_fine:.0f} evaluations; nothing was saved",
                f"evaluations of the network: {self.evaluations:,.0f}, calibration included",
            ]
        coarse = f"{self.coarse} on {self.nfe_coarse:.0f} evaluations, " if self.coarse else ""
        apart = f", grids differ by {s.corrections:.4f}" if self.coarse else ""
        return [
            f"images: {coarse}{self.fine} on {self.nfe_fine:.0f}, of {self.images} at random",
            f"proxies: {', '.join(self.proxies)}; correlation {self.correlation:.3f}",
            f"standard deviation over images {s.values:.4f}, {s.residuals:.4f} after the proxies"
            f"{apart}",
            f"evaluations of the network: {self.evaluations:,.0f}, calibration included; all "
            f"images would take {self.evaluations_of_all:,.0f} ({self.saving:.3g} times as many)",
        ]


@dataclass(frozen=True)
class SampledBitsPerDim(BitsPerDim):
    """Bits/dim of a test set from some of its images.

    ``standard_error`` is that of the test set's own mean, all of whose images might have been
    solved; ``per_image`` has the solved ones, corrected to the fine grid.
    """

    population_error: float  # standard error of the mean of all images of the test set's kind
    degrees: float  # degrees of freedom of both
    skewness: float  # of the estimate
    indices: tuple[int, ...]  # places of the solved images
    sampling: Sampling

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the test set's mean."""
        return student_interval(self.mean, self.standard_error, self.degrees, level, self.skewness)

    def population_interval(self, level: float = 0.95) -> tuple[float, float]:
        """The same for the mean of all images of the kind the test set came from."""
        return student_interval(
            self.mean, self.population_error, self.degrees, level, self.skewness
        )

    def sampling_json(self) -> dict[str, Any]:
        """What was done, as plain values."""
        return {
            **dataclasses.asdict(self.sampling),
            "proxies": list(self.sampling.proxies),
            "population_error": self.population_error,
            "degrees": self.degrees,
            "indices": list(self.indices),
        }
