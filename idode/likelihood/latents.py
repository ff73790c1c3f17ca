r"""From states to their latents and back, with the error of the round trip.

The ODE is a bijection between states at :math:`\gamma_{\min}` and latents at
:math:`\gamma_{\max}`; a solver follows it up to an error, which going there and back shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from idode.batches import Pixels, rows_for
from idode.diffusion.model import Condition, DiffusionODE
from idode.likelihood.log_prob import PILOT, DensityField, PathField, check_repeatable
from idode.likelihood.states import states
from idode.numerics import double, float32_products
from idode.ode.adams import Adams
from idode.ode.divergence import Rademacher
from idode.ode.solvers import Solver

__all__ = ["Mapped", "decode", "encode"]


@dataclass(frozen=True)
class Mapped:
    """Results of :func:`encode` and :func:`decode`: the other ends of the paths."""

    x: Tensor  # (B, *) latents of states, or states of latents
    round_trip_error: Tensor  # (B,) root mean square distance, after going back, from the input
    nfe: int  # evaluations for one way
    solver: Solver  # with its steps, to go the same way again
    way_back: Solver  # on the same nodes


def encode(
    model: DiffusionODE,
    x: Pixels,
    solver: Solver | None = None,
    condition: Condition | None = None,
    *,
    tolerance: float = 1e-3,
    check: bool = True,
) -> Mapped:
    """The latent of each state: the path from ``gamma_min`` to ``gamma_max``.

    Args:
        model: The diffusion ODE.
        x: States ``(B, *)`` at ``gamma_min``, a tensor or an array.
        solver: By default Adams steps, calibrated on the first states.
        condition: Keyword arguments of the network, ``(B, ...)`` each.
        tolerance: Root mean square error of the other end that calibration aims at.
        check: Also map back to measure the error; otherwise it is NaN.
    """
    return _mapped(model, x, solver, condition or {}, tolerance, check, forward=True)


def decode(
    model: DiffusionODE,
    z: Pixels,
    solver: Solver | None = None,
    condition: Condition | None = None,
    *,
    tolerance: float = 1e-3,
    check: bool = True,
) -> Mapped:
    """The state of each latent: the same path backwards; arguments as of :func:`encode`."""
    return _mapped(model, z, solver, condition or {}, tolerance, check, forward=False)


@float32_products()
def _mapped(
    model: DiffusionODE,
    x: Pixels,
    solver: Solver | None,
    condition: Condition,
    tolerance: float,
    check: bool,
    *,
    forward: bool,
) -> Mapped:
    x = states(model, x, "encode" if forward else "decode")
    condition = rows_for(condition, len(x), model.device)
    start, end = (model.gamma_min, model.gamma_max)[:: 1 if forward else -1]
    chosen = solver or _calibrated(model, x.detach(), condition, tolerance, start, end)
    way_back = chosen.reversed()
    field = PathField(model, condition)
    there = chosen.solve(field, x, start, end)
    error = torch.full((len(x),), math.nan, dtype=torch.float64)
    if check:
        with torch.no_grad():
            back = way_back.solve(field, there.x.detach(), end, start).x
        error = double(back - x.detach()).flatten(1).square().mean(1).sqrt()
    return Mapped(there.x, error, there.nfe, chosen, way_back)


@torch.no_grad()
def _calibrated(
    model: DiffusionODE,
    x: Tensor,
    condition: Condition,
    tolerance: float,
    start: float,
    end: float,
) -> Solver:
    """Adams steps for the other end of the first paths; the grid follows the divergence."""
    probes = Rademacher().draw(1, x[:PILOT], torch.Generator(x.device).manual_seed(0))
    few = {name: value[:PILOT] for name, value in condition.items()}
    field = DensityField(model, probes, few)
    check_repeatable(field, x[:PILOT], start)
    return (
        Adams(tolerance)
        .calibrate(field, x[:PILOT], start, end, lambda z, _: double(z).flatten(1).T)
        .solver
    )
