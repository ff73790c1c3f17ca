r"""A step grid for this model and this data, found on a pilot batch and then reused.

Where a network's field is rough depends on the data: the digits want their steps around
:math:`\gamma = -1`, CIFAR-10 around :math:`-11`. The pilot shows where; equal shares of the error
go to each step. The pilot is solved with more and more steps, twice as many each time. Every solve
is the truth for the one before it and, once there is a finer one, a candidate itself; between two
of them one more is tried. So no solve is made for comparison alone but the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from idode.errors import InputError
from idode.ode.adams import Adams, Trace, uniform_grid
from idode.ode.quadrature import lagrange_weights
from idode.ode.solvers import Calibration, Field, Value

__all__ = ["calibrate"]

FIRST, MOST_STEPS = 32, 1024  # a smooth network needs fewer than the first
FEWEST = 8  # steps of the coarsest grid that is tried
SLOW = 1.0  # order of convergence: of a smooth field it is four or so, of a rough one a half
ROUGH = 256  # steps from which slow convergence counts: fewer may not resolve a wave yet
GRADED = 2  # nodes inside the first step: the path of a diffusion begins slowly
ORDER = 3  # velocities looked back on: more amplify what the network varies by between nodes
USUAL = 4.0  # order of convergence that is assumed until one was seen
MARGIN = 1.05  # more steps than the errors of two grids predict, since these are of few samples
SAVING = 0.9  # share of the steps below which a grid is worth another solve
ENOUGH = 0.7  # share of the steps of a solve up to which it tells the error of another
LEAN = 0.5  # logarithm of the factor by which steps of a leaning grid grow from first to last
LEANER = 0.78  # share of the predicted steps that the leaning grid gets
BLUR = 0.02  # share of the way below which details of a density are noise of the few images


@dataclass(frozen=True)
class _Pilot:
    """What all solves of a search have in common."""

    field: Field
    x: Tensor
    start: float
    end: float
    value: Value

    def solve(self, grid: tuple[float, ...]) -> _Solve:
        """The pilot on one grid."""
        solver = Adams(grid=grid, order=ORDER, graded=GRADED)
        seen = solver.trace(self.field, self.x, self.start, self.end)
        return _Solve(solver, seen, self.value(seen.x, seen.integral()))


@dataclass(frozen=True)
class _Solve:
    """One solve of the pilot."""

    solver: Adams
    seen: Trace
    values: Tensor

    @property
    def steps(self) -> int:
        return len(self.solver.fractions) - 1

    def against(self, finer: _Solve) -> Calibration:
        """The solver with what it misses of the values of a finer one."""
        error, gap = self.values - finer.values, self.seen.corrector_gap
        rms = float(error.square().mean().sqrt())
        return Calibration(
            solver=self.solver,
            mean_error=float(error.mean()),
            rms_error=rms,
            error_per_gap=rms / max(float(gap.square().mean().sqrt()), 1e-300),
            largest_gap=float(gap.max()),
        )


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
    pilot = _Pilot(field, x, start, end, value)
    equal = pilot.solve(uniform_grid(FIRST))
    finer = pilot.solve(_grid(_density(equal.seen), 2 * FIRST))
    solve = pilot.solve(_grid(_density(finer.seen), FIRST))
    made, tried = [equal, finer, solve], [solve.against(finer)]
    while True:
        steps, good = _wanted(tried, tolerance), tried[-1].rms_error <= tolerance
        if steps <= ENOUGH * finer.steps:
            smooth = tried[0].rms_error <= tolerance
            tries, errors = _tries(
                pilot, finer, steps, solve.steps if good else 0, tolerance, smooth
            )
            made += tries
            if good or errors[-1].rms_error <= tolerance:
                tried += errors
                break
        if solve.steps >= MOST_STEPS:
            break
        if solve.steps >= ROUGH and _order(tried[-2], tried[-1]) < SLOW:
            break
        solve, finer = finer, pilot.solve(_grid(_density(finer.seen), 2 * finer.steps))
        made.append(finer)
        tried.append(solve.against(finer))
    met = [one for one in tried if one.rms_error <= tolerance]
    best = min(met or tried, key=lambda one: (_steps(one) if met else 0, one.rms_error))
    return replace(best, nfe=sum(len(one.seen.nodes) for one in made))


def _tries(
    pilot: _Pilot, finer: _Solve, steps: int, enough: int, tolerance: float, smooth: bool
) -> tuple[list[_Solve], list[Calibration]]:
    """Solves until one meets the tolerance: with so many steps, and between them and ``enough``.

    The finest solve knows best where steps are wanted, so they are made of its density. Of a
    smooth field, much of the error is often that of the path, and a deviation at the start is
    carried along all of it: fewer steps that are shorter there are tried first.
    """
    density = _density(finer.seen)
    grids = [_grid(density, steps)]
    if smooth:
        fewer = max(FEWEST, math.ceil(LEANER * steps))
        grids.insert(0, _grid(_blurred(density), fewer, LEAN))
    between = math.ceil(math.sqrt(steps * enough))
    if steps < between < SAVING * enough:
        grids.append(_grid(density, between))
    made: list[_Solve] = []
    errors: list[Calibration] = []
    for grid in grids:
        made.append(pilot.solve(grid))
        errors.append(made[-1].against(finer))
        if errors[-1].rms_error <= tolerance:
            break
    return made, errors


def _wanted(tried: list[Calibration], tolerance: float) -> int:
    """Steps that the errors seen so far predict for a tolerance."""
    order = max(SLOW, min(USUAL, _order(*tried[-2:]))) if len(tried) > 1 else USUAL
    ratio = MARGIN * (tried[-1].rms_error / tolerance) ** (1 / order)
    if tried[-1].rms_error <= tolerance:
        ratio = min(1.0, ratio)
    steps: int = math.ceil(_steps(tried[-1]) * max(0.5, ratio))
    return max(FEWEST, steps)


def _steps(found: Calibration) -> int:
    assert isinstance(found.solver, Adams)
    return len(found.solver.fractions) - 1


def _order(coarse: Calibration, fine: Calibration) -> float:
    """The power of the step size with which the error fell."""
    finer = _steps(fine) / _steps(coarse)
    return math.log(coarse.rms_error / max(fine.rms_error, 1e-300)) / math.log(finer)


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


def _blurred(density: Curve) -> Curve:
    """The density without details that are smaller than ``BLUR``."""
    places = np.linspace(0, 1, 401)
    near = np.exp(-0.5 * ((places[:, None] - places) / BLUR) ** 2)
    values = near @ np.log(np.interp(places, *density)) / near.sum(1)
    return places, np.exp(values)


def _grid(density: Curve, steps: int, lean: float = 0.0) -> tuple[float, ...]:
    """Nodes at shares of the integrated density, 0 to 1.

    The shares are equal, or grow from the first to the last by a factor of ``exp(lean)``.
    """
    fine = np.linspace(0, 1, 4001)
    values = np.interp(fine, *density)
    mass = np.concatenate([[0], np.cumsum((values[1:] + values[:-1]) / 2)])
    shares = np.cumsum(np.exp(np.linspace(0, lean, steps)))
    grid = np.interp(np.concatenate([[0], shares / shares[-1]]), mass / mass[-1], fine)
    grid[0], grid[-1] = 0.0, 1.0
    return tuple(float(u) for u in grid)
