r"""What the first images tell about all: a step grid, what it misses, and how noisy a value is.

The pilot is solved on several grids to calibrate the solver, and with several probes and two
draws of the noise, to tell the noise of dequantization from that of the probes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from idode.diffusion.model import DiffusionODE
from idode.likelihood.estimator import Task
from idode.likelihood.log_prob import ode_field, prior_log_prob
from idode.numerics import nats_to_bits
from idode.ode.calibration import calibrate
from idode.ode.solvers import Adams, Dopri5, Solver

__all__ = ["PILOT", "Pilot", "tune"]

PILOT = 8  # images
PROBES = 3  # to see their variance


@dataclass(frozen=True)
class Pilot:
    """A solver, and the errors of one draw with one probe, in bits/dim."""

    solver: Solver
    solver_mean: float  # signed error of the pilot against twice the steps; NaN where unknown
    solver_rms: float  # the same for an image; NaN where unknown
    error_per_gap: float  # NaN where unknown
    largest_gap: float
    noise_variance: float  # over draws of the dequantization
    probe_variance: float  # over probes
    interaction: float  # part of it that differs between draws, so stays inside a logarithm
    nfe: int  # spent on calibrating, for each image of the pilot

    def to_json(self) -> dict[str, Any]:
        """Plain values, every bit of them; :meth:`from_json` reads them back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Pilot:
        """The pilot that :meth:`to_json` wrote."""
        plain = dict(fields["solver"])
        if "grid" in plain:
            solver: Solver = Adams(tuple(plain["grid"]), plain["order"])
        else:
            solver = Dopri5(**plain)
        return cls(**{**fields, "solver": solver})


def tune(
    task: Task,
    pixels: Tensor,
    indices: list[int],
    tick: Callable[[int], None] | None = None,
) -> Pilot:
    """Calibrate the solver and measure the two sources of randomness.

    Args:
        task: The model and how it is solved.
        pixels: The pilot's images ``(B, *)``.
        indices: Their places in the data set.
        tick: Called with the number of evaluations of the network just done.
    """
    if tick is not None:
        task = dataclasses.replace(task, model=_counting(task.model, tick))
    s, model, dim = task.settings, task.model, pixels[0].numel()
    count = 0 if s.probes == 0 else max(PROBES, s.probes)
    x, weight = task.state(pixels, indices, 0)
    probes = task.probes(x, indices, 0, count)
    solver: Solver = Dopri5(s.allowed, s.allowed)
    mean, rms, scale, limit, spent = math.nan, math.nan, math.nan, math.inf, 0
    if s.solver == "adams":
        found = calibrate(
            ode_field(model, None if probes is None else probes[: s.probes]),
            x,
            task.bridge.gamma,
            model.gamma_max,
            lambda z, integral: -nats_to_bits(prior_log_prob(model, z) + integral, dim),
            s.allowed,
        )
        solver, limit, spent = found.solver, found.largest_gap, found.nfe
        mean, rms, scale = found.mean_error, found.rms_error, found.error_per_gap
    first = nats_to_bits(task.solve(x, probes, solver, limit).per_probe + weight, dim)
    y, weight = task.state(pixels, indices, 1)
    second = nats_to_bits(task.solve(y, probes, solver, limit).per_probe + weight, dim)
    # The same probes in both draws: their difference holds the noise of dequantization twice,
    # and of the probe only what does not cancel.
    difference = first - second
    return Pilot(
        solver=solver,
        solver_mean=mean,
        solver_rms=rms,
        error_per_gap=scale,
        largest_gap=limit,
        noise_variance=float(difference.mean(0).square().mean() / 2),
        probe_variance=float(first.var(0).mean()) if count else 0.0,
        interaction=float(difference.var(0).mean() / 2) if count else 0.0,
        nfe=spent,
    )


def _counting(model: DiffusionODE, tick: Callable[[int], None]) -> DiffusionODE:
    """The same model; each call of its network is told."""
    net = model.net

    def counted(*inputs: Tensor) -> Tensor:
        found = net(*inputs)
        tick(1)
        return found

    return dataclasses.replace(model, net=counted)
