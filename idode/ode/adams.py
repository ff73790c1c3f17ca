r"""Adams predictor-corrector steps on a grid that fits the problem.

The log-density is an integral along the path that never feeds back into it: the rates at the
nodes are stored and integrated once, by a symmetric rule, which is far more accurate than the
one-sided formula that moved the state.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from idode.dataclass_io import new_field
from idode.errors import InputError
from idode.numerics import double
from idode.ode.quadrature import Speed, lagrange_weights, quadrature, scaled_weights
from idode.ode.solvers import (
    Calibration,
    CheckedField,
    Field,
    Solution,
    Solver,
    Value,
    speed_of,
)

__all__ = ["Adams", "Trace", "uniform_grid"]

FEWEST = 6  # steps of the coarsest grid
FINEST = 2048  # intervals of the finest grid that is tried for a single image


def uniform_grid(steps: int) -> tuple[float, ...]:
    """Nodes 0..1 at equal distances."""
    return tuple(float(u) for u in np.linspace(0, 1, steps + 1))


@dataclass(frozen=True)
class Trace:
    """Everything a multistep solve saw."""

    nodes: tuple[float, ...]
    rates: Tensor  # (nodes, n, B) float64
    x: Tensor  # (B, *), the end of the path
    corrector_gap: Tensor  # (B,)

    def integral(self, order: int = 4) -> Tensor:
        """Integral of the rates ``(n, B)``, by polynomials through ``order`` nodes."""
        weights = torch.as_tensor(quadrature(self.nodes, order)).to(self.rates)
        return torch.einsum("g,gnb->nb", weights, self.rates)


@dataclass(frozen=True)
class Adams(Solver):
    """Predict, evaluate once, correct: one evaluation of the field a step.

    The predictor is the polynomial through the last ``order`` velocities, the corrector adds the
    newest. On network fields this is several times cheaper than Runge-Kutta of the same accuracy,
    whose inner stages do not lie on the path (docs/results/solvers.md).

    A field that knows its ``speed``, as those of a diffusion ODE do, has its velocity over the
    speed interpolated, which is the output of the network, and the speed integrated as it is.

    Args:
        tolerance: Root mean square error of a sample that calibration aims at, in the units of
            the value it is calibrated for: bits/dim for a likelihood.
        steps: Equal steps, in place of a calibrated grid.
        grid: Nodes as fractions of the way from 0 to 1; calibration finds them.
        order: Velocities the predictor looks back on.
        graded: Nodes inside the first step, where there is no past to look at.
    """

    tolerance: float = 0.005
    steps: int | None = None
    grid: tuple[float, ...] | None = None
    order: int = 4
    graded: int = new_field(5)

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < math.inf:
            raise InputError(f"the tolerance must be a positive number, got {self.tolerance}")
        if self.steps is not None and self.steps < 1:
            raise InputError(f"adams needs at least 1 step, got {self.steps}")
        if self.grid is not None and self.steps is not None:
            raise InputError("a grid has its own number of steps: give a grid or steps")
        if self.grid is not None:
            if len(self.grid) < 2 or self.grid[0] != 0 or self.grid[-1] != 1:
                raise InputError(f"a grid runs from 0 to 1, got {len(self.grid)} nodes")
            if not bool((np.diff(self.grid) > 0).all()):
                raise InputError("the nodes of a grid must increase")
        if not 1 <= self.order <= 6:
            raise InputError(f"order must be 1 to 6, got {self.order}")
        if not 0 <= self.graded <= 16:
            raise InputError(f"0 to 16 nodes grade the first step, got {self.graded}")

    @property
    def fractions(self) -> tuple[float, ...]:
        """The grid in use; 128 equal steps where none was given or found."""
        return self.grid if self.grid is not None else uniform_grid(self.steps or 128)

    @property
    def nfe(self) -> int:
        """Evaluations of one solve."""
        return len(self.fractions) + self.graded

    def nodes(self, start: float, end: float) -> list[float]:
        """The grid on the clock; the first step is graded, since there is no past to look at."""
        grid = self.fractions
        graded = [grid[1] / 2**k for k in range(self.graded, 0, -1)]
        return [start + (end - start) * u for u in (0.0, *graded, *grid[1:-1])] + [end]

    def reversed(self) -> Adams:
        """The same nodes for the way back."""
        grid = tuple(1 - u for u in reversed(self.fractions))
        return self._on(grid)

    def trace(self, field: Field, x: Tensor, start: float, end: float) -> Trace:
        """Move ``x`` from ``start`` to ``end`` and keep what was seen on the way."""
        nodes = self.nodes(start, end)
        checked, speed = CheckedField(field), speed_of(field)
        v, rates = checked.at(x, nodes[0])
        past, collected = [(nodes[0], v)], [rates]
        gap = torch.zeros(len(x), dtype=torch.float64, device=rates.device)
        for here, there in itertools.pairwise(nodes):
            predicted = _advance(x, past, here, there, speed)
            v, rates = checked.at(predicted, there)
            collected.append(rates)
            x = _advance(x, [*past, (there, v)], here, there, speed)
            past = [*past, (there, v)][-self.order :]
            gap += double((x - predicted).detach()).flatten(1).square().mean(1).sqrt()
        checked.check()
        return Trace(tuple(nodes), torch.stack(collected), x, gap)

    def solve(self, field: Field, x: Tensor, start: float, end: float) -> Solution:
        """Move ``x`` from ``start`` to ``end``."""
        seen = self.trace(field, x, start, end)
        return Solution(seen.x, seen.integral(), len(seen.nodes), seen.corrector_gap)

    def calibrate(
        self, field: Field, x: Tensor, start: float, end: float, value: Value
    ) -> Calibration:
        """The cheapest grid that meets the tolerance on pilot states; a given grid stays."""
        from idode.ode.calibration import calibrate

        if self.grid is not None or self.steps is not None:
            return Calibration(self)
        return calibrate(field, x, start, end, value, self.tolerance)

    def refined(self) -> Adams | None:
        """Twice the steps, every interval halved."""
        grid = self.fractions
        if len(grid) > FINEST:
            return None
        middles = [(a + b) / 2 for a, b in itertools.pairwise(grid)]
        return self._on(tuple(sorted([*grid, *middles])))

    def coarsened(self, share: float) -> Adams | None:
        """A share of the steps, spread over the way as those of the grid in use."""
        grid = self.fractions
        steps = round(share * (len(grid) - 1))
        if steps < FEWEST or steps >= len(grid) - 1:
            return None
        places = np.linspace(0, 1, steps + 1)
        nodes = np.interp(places, np.linspace(0, 1, len(grid)), grid)
        return self._on(tuple(map(float, nodes)))

    def _on(self, grid: tuple[float, ...]) -> Adams:
        return replace(self, steps=None, grid=grid)


def _advance(
    x: Tensor,
    past: list[tuple[float, Tensor]],
    here: float,
    there: float,
    speed: Speed | None,
) -> Tensor:
    nodes = [gamma for gamma, _ in past]
    if speed is None:
        weights = lagrange_weights(nodes, here, there)
    else:
        weights = scaled_weights(nodes, here, there, speed)
    for weight, (_, v) in zip(weights, past, strict=True):
        x = torch.add(x, v, alpha=float(weight))
    return x
