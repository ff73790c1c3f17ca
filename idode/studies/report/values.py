r"""Bits per dimension for a page of figures, from one grid and shared draws.

:func:`idode.likelihood.bits_per_dim.bounds` tunes its solver for every setting it is asked for. A report asks
for a dozen settings on few images, where that would be most of the time: here the grid is tuned
once and passed on. The bounds for K = 1, 5, 20 come from the same twenty draws: they are ordered
for every image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from idode.diffusion.model import DiffusionODE
from idode.errors import InputError
from idode.evaluation.evaluate import IMPORTANCES, PAPER_ROWS
from idode.likelihood import bits_per_dim as likelihood
from idode.likelihood.calibration import Pilot, tune
from idode.likelihood.estimator import LikelihoodSettings, Task, dequantization_for, uniform_start
from idode.ode.solvers import GRADED, Adams

__all__ = ["Engine", "Value", "bounds", "engine", "uniform_starts"]

START_SPAN = 1.1  # of gamma, to both sides of the start where the noise is as wide as a bin


@dataclass(frozen=True)
class Value:
    """A mean in bits/dim with its error bar; ``settings`` say how each image was solved."""

    mean: float
    standard_error: float  # images, noise and probes together
    per_image: Tensor  # (N,) float64
    solver_error: float  # likely size for an image, from its corrector_gap
    nfe: float  # evaluations for one solve of one image
    draws: int  # of the noise for each image
    settings: LikelihoodSettings


@dataclass(frozen=True)
class Engine:
    """A model and the grid it is solved on."""

    model: DiffusionODE
    settings: LikelihoodSettings
    pilot: Pilot

    @property
    def nfe(self) -> int:
        """Evaluations of one solve on the grid, without those of images that need a finer one."""
        assert isinstance(self.pilot.solver, Adams)
        return len(self.pilot.solver.grid) + GRADED

    def values(
        self, pixels: Tensor, settings: LikelihoodSettings, importance: tuple[int, ...]
    ) -> tuple[Value, ...]:
        """One value for each K, all from the same draws of the largest."""
        found = likelihood.bounds(self.model, pixels, importance, settings, pilot=self.pilot)
        if not found[0].complete:
            raise KeyboardInterrupt  # a page shows all of its images, or is not written
        return tuple(
            Value(
                mean=each.mean,
                standard_error=each.standard_error,
                per_image=each.per_image,
                solver_error=float(each.solver_error.mean()),
                nfe=each.nfe,
                draws=each.groups * each.settings.importance,
                settings=each.settings,
            )
            for each in found
        )


def engine(
    model: DiffusionODE,
    pixels: Tensor,
    tolerance: float,
    seed: int = 0,
) -> Engine:
    """Tune a grid on ``pixels`` to ``tolerance`` bits/dim, root mean square for an image."""
    name = "none" if model.levels is None else "tn"
    settings = LikelihoodSettings(dequantization=name, tolerance=tolerance, seed=seed)
    task = Task(model, settings, dequantization_for(model, settings), torch.float32)
    return Engine(model, settings, tune(task, pixels, list(range(len(pixels)))))


def bounds(solve: Engine, pixels: Tensor) -> tuple[Value, ...]:
    """The paper's table: three dequantizations by K; one value for continuous data."""
    if solve.model.levels is None:
        return solve.values(pixels, solve.settings, (1,))
    chosen = (replace(solve.settings, dequantization=name) for name in PAPER_ROWS)
    return tuple(value for s in chosen for value in solve.values(pixels, s, IMPORTANCES))


def uniform_starts(solve: Engine, pixels: Tensor, count: int) -> tuple[Value, ...]:
    """Uniform dequantization from ``count`` starts around the usual one, on the same noise."""
    model = solve.model
    if model.levels is None:
        raise InputError("continuous data is not dequantized: there is no start to choose")
    middle = uniform_start(model.levels)
    first = max(model.gamma_min, middle - START_SPAN)
    starts = torch.linspace(first, middle + START_SPAN, count, dtype=torch.float64).tolist()
    chosen = (replace(solve.settings, dequantization="uniform", start=g) for g in starts)
    return tuple(solve.values(pixels, s, (1,))[0] for s in chosen)
