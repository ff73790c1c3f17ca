"""Images of a data set in a random order, solved as far as needed on several grids."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from idode.batches import Batch, FittingSize, Pixels, to_tensor
from idode.evaluation.likelihood import DRAWS, fitting_draws, notes_of
from idode.evaluation.multilevel import Estimate, estimate_mean, standardised
from idode.evaluation.proxies import Features, image_features
from idode.evaluation.runner import BatchRunner, fingerprint
from idode.likelihood.bits_per_dim import BitsPerDim, bits_from_draws
from idode.likelihood.calibration import SolverCalibration
from idode.likelihood.estimator import BatchDraws, LogWeightEstimator
from idode.ode import SOLVERS
from idode.ode.solvers import Solver

__all__ = ["ChosenImages", "Level"]


@dataclass
class Level:
    """Solves on one grid: those of the first images in the order of choice."""

    solver: Solver
    largest_gap: float
    parts: list[BatchDraws] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def count(self) -> int:
        """Images solved."""
        return sum(len(part.corrector_gap) for part in self.parts)

    @property
    def evaluations(self) -> float:
        """Network evaluations for all draws of all images."""
        return sum(p.nfe * p.log_w.numel() for p in self.parts)

    @property
    def cost(self) -> float:
        """Evaluations for an image."""
        return self.evaluations / self.count


class ChosenImages:
    """A data set whose images are solved in an order chosen at random by seed.

    Args:
        estimator: The model and how it is solved.
        data: The whole data set ``(N, *)``.
        runner: Knows batches that are done already and shares the others.
        calibration: Of the fine grid.
        depends: All that solves depend on besides the model, the data and the grid.
    """

    def __init__(
        self,
        estimator: LogWeightEstimator,
        data: Pixels,
        runner: BatchRunner,
        calibration: SolverCalibration,
        depends: Mapping[str, object],
    ) -> None:
        self.estimator, self.data, self.runner = estimator, data, runner
        self.calibration, self.depends = calibration, depends
        seed = abs(estimator.settings.seed)
        self.order = np.random.default_rng([seed, len(data)]).permutation(len(data))
        self.dim = math.prod(data.shape[1:])
        self.complete = True
        self.fitting = FittingSize(estimator.settings.batch_size)
        names, values = image_features(np.asarray(data))
        self.names: list[str] = names  # of the proxies
        self.raw: Features = values  # the proxies of all images

    def extend(self, level: Level, count: int) -> None:
        """Solve more images, up to ``count`` of them, in batches."""
        first, count = level.count, min(count, len(self.data))
        if count <= first or not self.complete:
            return
        size = self.estimator.settings.batch_size
        edges = [*range(first, count, size), count]
        solver = [SOLVERS.to_json(level.solver), level.largest_gap]

        def solve(number: int) -> BatchDraws:
            rows = self.order[edges[number] : edges[number + 1]]
            batch = Batch(
                to_tensor(self.data[rows]).to(self.estimator.model.device), rows.tolist(), {}
            )
            return fitting_draws(
                self.estimator, batch, level.solver, level.largest_gap, self.fitting
            )

        steps = getattr(level.solver, "nfe", None)
        name = self.estimator.dequantization.name
        done = self.runner.each(
            f"ODE {name}" if steps is None else f"ODE {name}, {steps} evaluations",
            [b - a for a, b in itertools.pairwise(edges)],
            solve,
            DRAWS,
            # Row numbers, not positions: the order depends on the number of images.
            fingerprint(
                {**self.depends, "solver": solver, "images": self.order[first:count].tolist()}
            ),
        )
        level.parts += done.values
        level.seconds += done.seconds
        self.complete = done.complete

    def result(self, level: Level) -> BitsPerDim:
        """Values of the images of a level with the errors of their noise and probes."""
        s = self.estimator.settings
        return bits_from_draws(
            BatchDraws.joined(level.parts),
            s.n_importance,
            s,
            self.calibration,
            self.dim,
            notes=notes_of(self.estimator),
        )

    def estimate(self, coarse: Level, fine: Level) -> Estimate:
        """Estimate of the mean, from all solves so far."""
        low = self.result(coarse)
        values = low.per_image.numpy()
        noise = math.sqrt(len(values)) * math.hypot(low.errors.dequantization, low.errors.probe)
        high = None
        if coarse is not fine:
            high = self.result(fine).per_image.numpy()[: len(values)]
        return estimate_mean(
            standardised(self.raw), self.order[: len(values)], values, high, noise
        )
