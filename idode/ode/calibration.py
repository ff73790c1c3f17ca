r"""A step grid for this model and this data, found on a pilot batch and then reused.

Where a network's field is rough depends on the data: the digits want their steps around
:math:`\gamma = -1`, CIFAR-10 around :math:`-11`. The pilot shows where; equal shares of the error
go to each step; and solving the pilot again with twice the steps measures the error that is left,
which is reported with every number.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
from torch import Tensor

from idode.errors import InputError
from idode.ode.adams import GRADED, Adams, Trace
from idode.ode.quadrature import lagrange_weights
from idode.ode.solvers import Calibration, Field, Value

__all__ = ["calibrate"]

FIRST, MOST_STEPS = 32, 1024  # a smooth network needs fewer than the first
SLOW = 1.0  # order of convergence: of a smooth field it is four or so, of a rough one a half
ROUGH = 256  # steps from which slow convergence counts: fewer may not resolve a wave yet
ORDERS = (3, 4)  # rough fields favour the longer memory, smooth ones the shorter


def calibrate(
    field: Field,
    x: Tensor,
    start: float,
    end: float,
    value: Value,
    tolerance: float,
) -> Calibration:
    """Find the cheapest grid whose per-sample error on ``x`` is below ``tolerance``.

    A field that varies between neighbouring nodes, however close, is not resolved by more of them
    at any sensible price: the search then ends early with the best grid it saw and its error.

    Args:
        field: The field to be solved.
        x: Pilot states ``(B, *)`` at ``start``.
        start: Where solves begin.
        end: Where they end.
        value: Maps the end of a path and its integrals ``(n, B)`` to the numbers ``(n, B)`` whose
            error counts.
        tolerance: Root mean square error allowed, in units of ``value``.
    """
    if not tolerance > 0:
        raise InputError(f"the solver's tolerance must be positive, got {tolerance}")
    steps = FIRST
    orders: tuple[int, ...] = ORDERS
    trace = Adams(steps=steps).trace(field, x, start, end)
    best: Calibration | None = None
    spent = len(trace.nodes)
    earlier: Calibration | None = None
    for _ in range(8):
        grid = _grid(_density(trace), steps)
        trace = _halved(grid).trace(field, x, start, end)
        spent += len(trace.nodes)
        truth = value(trace.x, trace.integral())
        tried = [
            _try(Adams(grid=grid, order=order), field, x, start, end, value, truth)
            for order in orders
        ]
        spent += len(tried) * (steps + GRADED + 1)
        found = min(tried, key=lambda trial: trial.rms_error)
        orders = (_adams(found).order,)
        met = found.rms_error <= tolerance
        if best is None or met or found.rms_error < best.rms_error:
            best = found
        elif best.rms_error <= tolerance:
            break  # a cheaper grid was tried and failed
        # Errors fall with the fourth power or so; a little more, since the estimate is noisy.
        factor = min(2.0, max(0.5, 1.1 * (found.rms_error / tolerance) ** 0.25))
        if (met and factor > 0.7) or steps >= MOST_STEPS:
            break
        if steps >= ROUGH and earlier and not met and _order(earlier, found) < SLOW:
            break
        earlier = found
        steps = min(MOST_STEPS, max(8, round(steps * factor)))
    assert best is not None
    return dataclasses.replace(best, nfe=spent)


def _halved(grid: tuple[float, ...]) -> Adams:
    finer = Adams(grid=grid).refined()
    assert finer is not None
    return finer


def _adams(found: Calibration) -> Adams:
    assert isinstance(found.solver, Adams)
    return found.solver


def _order(coarse: Calibration, fine: Calibration) -> float:
    """The power of the step size with which the error fell."""
    steps = len(_adams(fine).fractions) / len(_adams(coarse).fractions)
    return math.log(coarse.rms_error / max(fine.rms_error, 1e-300)) / math.log(steps)


def _try(
    solver: Adams,
    field: Field,
    x: Tensor,
    start: float,
    end: float,
    value: Value,
    truth: Tensor,
) -> Calibration:
    """What a solver misses of the values of a finer one."""
    seen = solver.trace(field, x, start, end)
    error = value(seen.x, seen.integral()) - truth
    rms = float(error.square().mean().sqrt())
    return Calibration(
        solver=solver,
        mean_error=float(error.mean()),
        rms_error=rms,
        error_per_gap=rms / max(float(seen.corrector_gap.square().mean().sqrt()), 1e-300),
        largest_gap=float(seen.corrector_gap.max()),
        nfe=len(seen.nodes),
    )


Curve = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


def _density(seen: Trace) -> Curve:
    """Steps wanted per unit of the way, at the middles of the intervals of a trace.

    The cubic rule's error on an interval is some C h^5, read off as its difference from the
    quintic rule; equal shares of it need a density proportional to C^(1/5).
    """
    # Without the graded first step: its intervals are so short that rounding is all they show.
    keep = [0, *range(GRADED + 1, len(seen.nodes))]
    nodes = np.asarray(seen.nodes)[keep]
    rates = seen.rates.flatten(1).cpu().numpy()[keep]  # (G, n B)
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
