r"""Bits per dimension for a page of figures, from one grid and shared draws.

:func:`idode.likelihood.bounds` tunes its solver for every setting it is asked for, and solves one
draw at a time. A report asks for a dozen settings on few images, where that would be most of the
time: here the grid is tuned once, and the draws of few images are solved in one batch. The bounds
for K = 1, 5, 20 come from the same twenty draws, as there: they are ordered for every image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from idode.errors import InputError
from idode.evaluation import IMPORTANCES
from idode.model import DiffusionODE
from idode.numerics import log_mean_exp, nats_to_bits
from idode.ode import GRADED, Adams
from idode.pilot import Pilot, tune
from idode.weights import Settings, Task, dequantization_for, uniform_start

__all__ = ["Engine", "Value", "bounds", "engine", "uniform_starts"]

START_SPAN = 1.1  # of gamma, to both sides of the start where the noise is as wide as a bin


@dataclass(frozen=True)
class Value:
    """A mean in bits/dim with its error bar; ``settings`` say how each image was solved."""

    mean: float
    standard_error: float  # images, noise and probes together
    per_image: Tensor  # (N,) float64
    solver_error: float  # likely size for an image, from its roughness
    nfe: float  # evaluations for one solve of one image
    draws: int  # of the noise for each image
    settings: Settings


@dataclass(frozen=True)
class Engine:
    """A model and the grid it is solved on."""

    model: DiffusionODE
    settings: Settings
    pilot: Pilot

    @property
    def nfe(self) -> int:
        """Evaluations of one solve on the grid, without those of images that need a finer one."""
        assert isinstance(self.pilot.solver, Adams)
        return len(self.pilot.solver.grid) + GRADED

    def draw(self, pixels: Tensor, settings: Settings, draws: int) -> tuple[Tensor, float, float]:
        """Log-weights ``(draws, N)`` of images, NFE of a solve, and likely solver error.

        An image keeps its probe over all draws, as in :class:`Settings`.
        """
        task = Task(self.model, settings, dequantization_for(self.model, settings), torch.float32)
        solver, limit = self.pilot.solver, self.pilot.most_roughness
        columns, error, nfe = [], 0.0, 0.0
        for lo in range(0, len(pixels), settings.batch_size):
            chunk = pixels[lo : lo + settings.batch_size]
            indices = range(lo, lo + len(chunk))
            rows = []
            # Few images leave room in a batch: several of their draws are solved together.
            together = max(1, settings.batch_size // len(chunk))
            for first in range(0, draws, together):
                block = range(first, min(draws, first + together))
                states = [task.state(chunk, indices, k) for k in block]
                x = torch.cat([x for x, _ in states])
                weight = torch.cat([weight for _, weight in states])
                probes = task.probes(states[0][0], indices, 0, settings.probes)
                probes = None if probes is None else torch.cat([probes] * len(block), dim=1)
                found = task.solve(x, probes, solver, limit)
                rows.append((found.log_p + weight).reshape(len(block), -1).cpu())
                share = len(x) / (len(pixels) * draws)
                nfe += found.nfe * share
                error += float(found.roughness.mean()) * share
            columns.append(torch.cat(rows))
        error *= self.pilot.error_per_roughness
        return torch.cat(columns, dim=1), nfe, error

    def values(
        self, pixels: Tensor, settings: Settings, importance: tuple[int, ...]
    ) -> tuple[Value, ...]:
        """One value for each K, all from the same draws of the largest."""
        draws = max(importance)
        log_w, nfe, error = self.draw(pixels, settings, draws)
        dim = pixels[0].numel()
        found = []
        for k in importance:
            groups = log_w.reshape(draws // k, k, -1).transpose(0, 1)
            per_image = -nats_to_bits(log_mean_exp(groups).mean(0), dim)
            n = len(per_image)
            spread = math.sqrt(float(per_image.var()) / n) if n > 1 else math.nan
            found.append(
                Value(
                    mean=float(per_image.mean()),
                    standard_error=spread,
                    per_image=per_image,
                    solver_error=error,
                    nfe=nfe,
                    draws=draws,
                    settings=replace(settings, importance=k),
                )
            )
        return tuple(found)


def engine(
    model: DiffusionODE,
    pixels: Tensor,
    tolerance: float,
    seed: int = 0,
) -> Engine:
    """Tune a grid on ``pixels`` to ``tolerance`` bits/dim, root mean square for an image."""
    name = "none" if model.levels is None else "tn"
    settings = Settings(dequantization=name, tolerance=tolerance, seed=seed)
    task = Task(model, settings, dequantization_for(model, settings), torch.float32)
    return Engine(model, settings, tune(task, pixels, list(range(len(pixels)))))


def bounds(solve: Engine, pixels: Tensor) -> tuple[Value, ...]:
    """The paper's table: three dequantizations by K; one value for continuous data."""
    if solve.model.levels is None:
        return solve.values(pixels, solve.settings, (1,))
    names = ("uniform", "variational", "tn")
    chosen = (replace(solve.settings, dequantization=name) for name in names)
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
