r"""What the first images tell about all: a step grid, its error, and how noisy a value is.

Half of the pilot images are solved on several grids to calibrate the solver. All are solved on the
grid that was found, with several probes and two draws of the noise, to tell the noise of
dequantization from that of the probes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idode.batches import Batch
from idode.diffusion.model import Condition, DiffusionODE
from idode.errors import InputError
from idode.likelihood.estimator import LogWeightEstimator, image_named
from idode.likelihood.log_prob import DensityField, LogProb, check_repeatable, prior_log_prob
from idode.numerics import nats_to_bits
from idode.ode import SOLVERS
from idode.ode.solvers import Solver

__all__ = ["PILOT", "SolverCalibration", "calibrate_solver"]

PILOT = 8  # images
SEARCHED = 4  # of them, on which grids are tried; what was found is then seen on all
PROBES = 3  # to see their variance
LARGEST_COUNT = 10**12


@dataclass(frozen=True)
class SolverCalibration:
    """A solver with its steps chosen, and the errors of one draw with one probe, in bits/dim."""

    solver: Solver
    solver_mean: float  # signed error of the pilot against a finer grid; NaN where unknown
    solver_rms: float  # the same for an image; NaN where unknown
    error_per_gap: float  # NaN where unknown
    largest_gap: float
    noise_variance: float  # over draws of the dequantization
    probe_variance: float  # over probes
    interaction: float  # part of it that differs between draws, so stays inside a logarithm
    nfe: int  # spent on calibrating, for each image of the pilot

    def to_json(self) -> dict[str, Any]:
        """Plain values, every bit of them; :meth:`from_json` reads them back."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {**fields, "solver": SOLVERS.to_json(self.solver)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SolverCalibration:
        """The inverse of :meth:`to_json`."""
        solver = SOLVERS.from_json(fields["solver"])
        numbers = {f.name: fields[f.name] for f in dataclasses.fields(cls) if f.name != "solver"}
        if len(fields) != len(numbers) + 1 or not all(map(_number, numbers.values())):
            raise InputError("a calibration holds other values than it was written with")
        return cls(solver, **numbers)


def _number(value: object) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < LARGEST_COUNT)


@torch.no_grad()
def calibrate_solver(
    estimator: LogWeightEstimator, pilot: Batch, tick: Callable[[int], None] | None = None
) -> SolverCalibration:
    """Choose the solver's steps and measure the two sources of randomness.

    Args:
        estimator: The model and how it is solved.
        pilot: Some images.
        tick: Called with the number of evaluations of the network just done.
    """
    if tick is not None:
        estimator = estimator.with_model(_counting(estimator.model, tick))
    with image_named(pilot.indices):
        return _calibrated(estimator, pilot)


def _calibrated(estimator: LogWeightEstimator, pilot: Batch) -> SolverCalibration:
    s, model, dim = estimator.settings, estimator.model, pilot.values[0].numel()
    count = 0 if s.n_probes == 0 else max(PROBES, s.n_probes)
    x, weight = estimator.states(pilot.values, pilot.indices, 0)
    probes = estimator.probes(x, pilot.indices, 0, count)
    x0 = estimator.clean(pilot.values)
    condition, cost = estimator.code(pilot, x0, 0)
    few = {name: value[:SEARCHED] for name, value in condition.items()}
    field = DensityField(model, None if probes is None else probes[: s.n_probes, :SEARCHED], few)
    start = estimator.dequantization.gamma(model)
    check_repeatable(field, x[:SEARCHED], start)
    found = s.solver.calibrate(
        field,
        x[:SEARCHED],
        start,
        model.gamma_max,
        lambda z, integral: -nats_to_bits(prior_log_prob(model, z) + integral, dim),
    )

    def solve(states: Tensor, condition: Condition) -> LogProb:
        return estimator.solve(states, probes, found.solver, math.inf, condition)

    other, its_weight = estimator.states(pilot.values, pilot.indices, 1)
    its_condition, its_cost = estimator.code(pilot, x0, 1)
    solved = solve(x, condition)
    first = nats_to_bits(solved.per_probe + weight + cost, dim)
    second = nats_to_bits(solve(other, its_condition).per_probe + its_weight + its_cost, dim)
    # The same probes in both draws: their difference holds the noise of dequantization twice,
    # that of the code too, and of the probe only what does not cancel.
    difference = first - second
    share = min(SEARCHED, len(x)) / len(x)
    return SolverCalibration(
        solver=found.solver,
        solver_mean=found.mean_error,
        solver_rms=found.rms_error,
        error_per_gap=found.error_per_gap,
        largest_gap=max(found.largest_gap, float(solved.corrector_gap.max())),
        noise_variance=float(difference.mean(0).square().mean() / 2),
        probe_variance=float(first.var(0).mean()) if count else 0.0,
        interaction=float(difference.var(0).mean() / 2) if count else 0.0,
        nfe=math.ceil(share * found.nfe),
    )


def _counting(model: DiffusionODE, tick: Callable[[int], None]) -> DiffusionODE:
    """The same model; each call of its network is counted."""
    net = model.net

    def counted(*inputs: Tensor, **condition: Tensor) -> Tensor:
        prediction: Tensor = net(*inputs, **condition)
        tick(1)
        return prediction

    return model.with_net(counted)
