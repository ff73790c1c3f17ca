r"""A step grid for this model and this data, found on a pilot batch and then reused.

Where a network's field is rough depends on the data: the digits want their steps around
:math:`\gamma = -1`, CIFAR-10 around :math:`-11`. The pilot shows where; equal shares of the error
go to each step; and solving the pilot again with twice the steps tells the error that is left,
which is reported with every number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from idode.errors import InputError
from idode.ode import Adams, Field, Trace, lagrange_weights, uniform_grid

__all__ = ["Calibration", "calibrate"]

MOST_STEPS = 1024


@dataclass(frozen=True)
class Calibration:
    """A solver and what it is known to miss, in the units of the value it was tuned for."""

    solver: Adams
    mean_error: float  # of the pilot against twice the steps, signed
    rms_error: float  # per sample
    error_per_roughness: float  # scales a sample's roughness to its likely error
    most_roughness: float  # of the pilot; far above it, a sample deserves a finer grid
    nfe: int  # spent on calibrating, for each pilot sample


def calibrate(
    field: Field,
    x: Tensor,
    start: float,
    end: float,
    value: Callable[[Tensor, Tensor], Tensor],
    tolerance: float,
    order: int = 5,
) -> Calibration:
    """Find the cheapest grid whose per-sample error on ``x`` is below ``tolerance``.

    Args:
        field: The field to be solved.
        x: Pilot states ``(B, *)`` at ``start``.
        start: Where solves begin.
        end: Where they end.
        value: Maps the end of a path and its integrals ``(n, B)`` to the numbers ``(n, B)`` whose
            error counts.
        tolerance: Root mean square error allowed, in units of ``value``.
        order: Of the multistep formula.
    """
    if not tolerance > 0:
        raise InputError(f"the solver's tolerance must be positive, got {tolerance}")
    steps, spent = 64, 0
    coarse = Adams(uniform_grid(steps), order)
    density = _density(coarse.trace(field, x, start, end))
    spent += steps
    for _ in range(8):
        coarse = Adams(_grid(density, steps), order)
        fine = coarse.refined()
        rough, smooth = (s.trace(field, x, start, end) for s in (coarse, fine))
        spent += len(rough.nodes) + len(smooth.nodes)
        error = value(rough.x, rough.integral()) - value(smooth.x, smooth.integral())
        rms = float(error.square().mean().sqrt())
        # The formula has order five and the grid is not yet asymptotic: trust the fourth power.
        wanted = steps * min(2.0, max(0.6, 1.1 * (rms / tolerance) ** 0.25))
        if (rms <= tolerance and wanted > 0.85 * steps) or steps >= MOST_STEPS:
            break
        density = _density(smooth)
        steps = min(MOST_STEPS, max(8, round(wanted)))
    scale = float(rough.roughness.square().mean().sqrt())
    return Calibration(
        solver=coarse,
        mean_error=float(error.mean()),
        rms_error=rms,
        error_per_roughness=rms / max(scale, 1e-300),
        most_roughness=float(rough.roughness.max()),
        nfe=spent,
    )


Curve = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


def _density(seen: Trace) -> Curve:
    """Steps wanted per unit of the way, at the middles of the intervals of a trace.

    The cubic rule's error on an interval is some C h^5, read off as its difference from the
    quintic rule; equal shares of it need a density proportional to C^(1/5).
    """
    nodes = np.asarray(seen.nodes)
    rates = seen.rates.flatten(1).cpu().numpy()  # (G, n B)
    count = len(nodes)
    share = np.empty(count - 1)
    for i in range(count - 1):
        rules = []
        for order in (4, 6):
            first = max(0, min(i - order // 2 + 1, count - order))
            near = slice(first, first + order)
            rules.append(lagrange_weights(list(nodes[near]), nodes[i], nodes[i + 1]) @ rates[near])
        h = abs(nodes[i + 1] - nodes[i])
        share[i] = np.sqrt(np.mean((rules[0] - rules[1]) ** 2)) ** 0.2 / h
    # One interval's difference may vanish by chance: look at its neighbours too, and leave no
    # stretch with less than a twentieth of the densest.
    padded = np.pad(share, 2, mode="edge")
    share = np.max([padded[k : k + count - 1] for k in range(1, 4)], axis=0)
    share = np.maximum(share, share.max() / 20) if share.max() > 0 else np.ones_like(share)
    way = (nodes - nodes[0]) / (nodes[-1] - nodes[0])
    return (way[1:] + way[:-1]) / 2, share


def _grid(density: Curve, steps: int) -> tuple[float, ...]:
    """Nodes at equal shares of the integrated density, 0 to 1."""
    fine = np.linspace(0, 1, 4001)
    values = np.interp(fine, *density)
    mass = np.concatenate([[0], np.cumsum((values[1:] + values[:-1]) / 2)])
    grid = np.interp(np.linspace(0, 1, steps + 1), mass / mass[-1], fine)
    grid[0], grid[-1] = 0.0, 1.0
    return tuple(float(u) for u in grid)
