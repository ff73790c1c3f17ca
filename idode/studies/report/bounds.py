"""Bits per dimension by many settings, all on one calibrated grid.

A report asks for a dozen settings on few images, where calibrating the solver for each would take
most of the time. Bounds for several K come from the same draws, so they are ordered for every
image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from idode.batches import IndexedBatches
from idode.diffusion.model import DiffusionODE
from idode.errors import InputError
from idode.evaluation.evaluate import IMPORTANCES, table_rows
from idode.evaluation.likelihood import bounds
from idode.likelihood.bits_per_dim import BitsPerDim
from idode.likelihood.calibration import SolverCalibration, calibrate_solver
from idode.likelihood.dequantization import Uniform, uniform_start
from idode.likelihood.estimator import LikelihoodSettings, LogWeightEstimator
from idode.ode.adams import Adams

__all__ = ["CalibratedModel"]

START_SPAN = 1.1  # of gamma, to both sides of the start where the noise is as wide as a bin


@dataclass(frozen=True)
class CalibratedModel:
    """A model with the solver that was calibrated for it once."""

    model: DiffusionODE
    settings: LikelihoodSettings
    calibration: SolverCalibration

    @classmethod
    def calibrate(
        cls, model: DiffusionODE, pilot: Tensor, tolerance: float, seed: int = 0
    ) -> CalibratedModel:
        """Calibrate the solver on the images ``pilot``.

        Args:
            model: The diffusion ODE.
            pilot: Some images ``(N, *)``.
            tolerance: Root mean square error for an image, in bits/dim.
            seed: Seed of dequantization and probes.
        """
        settings = LikelihoodSettings(solver=Adams(tolerance), seed=seed).for_model(model)
        batch = IndexedBatches(pilot, len(pilot), device=model.device).batch(0)
        return cls(model, settings, calibrate_solver(LogWeightEstimator(model, settings), batch))

    @property
    def nfe(self) -> int:
        """Evaluations of one solve, without those of images that need a finer grid."""
        assert isinstance(self.calibration.solver, Adams)
        return self.calibration.solver.nfe

    def value(self, data: Tensor, settings: LikelihoodSettings | None = None) -> BitsPerDim:
        """Bits/dim with K = 1; by default the truncated normal, nothing for continuous data."""
        return self._bounds(data, settings or self.settings, (1,))[0]

    def table(self, data: Tensor) -> tuple[BitsPerDim, ...]:
        """The paper's table: three dequantizations by K; one value for continuous data."""
        if self.model.levels is None:
            return (self.value(data),)
        chosen = (replace(self.settings, dequantization=way) for way in table_rows(None))
        return tuple(value for s in chosen for value in self._bounds(data, s, IMPORTANCES))

    def uniform_starts(self, data: Tensor, count: int) -> tuple[BitsPerDim, ...]:
        """Uniform dequantization from ``count`` starts around the usual one, on the same noise."""
        if self.model.levels is None:
            raise InputError("continuous data is not dequantized: there is no start to choose")
        middle = max(self.model.gamma_min, uniform_start(self.model.levels))
        first = max(self.model.gamma_min, middle - START_SPAN)
        starts = torch.linspace(first, middle + START_SPAN, count, dtype=torch.float64).tolist()
        chosen = (replace(self.settings, dequantization=Uniform(start)) for start in starts)
        return tuple(self.value(data, settings) for settings in chosen)

    def _bounds(
        self, data: Tensor, settings: LikelihoodSettings, importances: tuple[int, ...]
    ) -> list[BitsPerDim]:
        found = bounds(self.model, data, importances, settings, calibration=self.calibration)
        if not found[0].complete:
            raise KeyboardInterrupt  # a report shows all of its images, or is not written
        return found
