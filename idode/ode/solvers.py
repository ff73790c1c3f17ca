r"""Solvers for the state and, beside it, integrals along its path.

A field gives the velocity and some rates at ``(x, gamma)``; a solver moves the state from one end
of the clock to the other and integrates the rates in float64. The log-density is such an
integral, of the divergence. It never feeds back into the path, so it need not go through the
stages of a solver: :class:`Adams` stores the rates at its nodes and integrates them once, by a
symmetric rule, which is far more accurate than the one-sided formula that moved the state.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from idode.errors import InputError, NumericalError

__all__ = ["RK4", "Adams", "Dopri5", "Field", "Solution", "Solver", "uniform_grid"]

Field = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps a state ``(B, *)`` and a scalar gamma to the velocity ``(B, *)`` and rates ``(n, B)``."""

Weights = npt.NDArray[np.float64]

GRADED = 5  # nodes inside the first step of a multistep method


@dataclass(frozen=True)
class Solution:
    """Where the path ends and what was collected on it."""

    x: Tensor  # (B, *)
    integral: Tensor  # (n, B) float64
    nfe: int  # evaluations of the field for each sample
    corrector_gap: Tensor  # (B,) how far predictions were from corrections; 0 where unknown


class Solver(Protocol):
    """Anything that integrates a field from one gamma to another, in either direction."""

    def __call__(self, field: Field, x: Tensor, start: float, end: float) -> Solution:
        """Move ``x`` from ``start`` to ``end``."""
        ...


def _checked(field: Field, x: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Evaluate the field; refuse to go on from a value that is not a number."""
    v, rates = field(x, torch.tensor(gamma, dtype=torch.float64, device=x.device))
    good = torch.isfinite(v).flatten(1).all(1) & torch.isfinite(rates).all(0)
    if not bool(good.all()):
        bad = int((~good).nonzero()[0, 0])
        raise NumericalError(
            f"the field is not finite at gamma = {gamma:.4f} for sample {bad} of its batch "
            f"({int((~good).sum())} of {len(x)} samples)",
            sample=bad,
        )
    return v, rates.double()


def lagrange_weights(nodes: Sequence[float], lo: float, hi: float) -> Weights:
    """Weights that integrate the polynomial through ``nodes`` from ``lo`` to ``hi`` exactly."""
    centre = (lo + hi) / 2
    scale = max(abs(node - centre) for node in (*nodes, lo, hi))
    powers = np.arange(len(nodes))
    vander = ((np.asarray(nodes) - centre) / scale)[None, :] ** powers[:, None]
    a, b = (lo - centre) / scale, (hi - centre) / scale
    moments = scale * (b ** (powers + 1) - a ** (powers + 1)) / (powers + 1)
    return np.asarray(np.linalg.solve(vander, moments))


def quadrature(grid: Sequence[float], order: int = 4) -> Weights:
    """Weights on all nodes of ``grid``: on each interval, the polynomial through the nearest."""
    count = len(grid)
    order = min(order, count)
    weights = np.zeros(count)
    for i in range(count - 1):
        first = max(0, min(i - order // 2 + 1, count - order))
        near = slice(first, first + order)
        weights[near] += lagrange_weights(list(grid[near]), grid[i], grid[i + 1])
    return weights


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
        """Of the rates, ``(n, B)``, by polynomials through ``order`` nodes."""
        weights = torch.as_tensor(quadrature(self.nodes, order)).to(self.rates)
        return torch.einsum("g,gnb->nb", weights, self.rates)


@dataclass(frozen=True)
class Adams:
    """Predict, evaluate once, correct: one evaluation of the field a step.

    The predictor is the polynomial through the last ``order`` velocities, the corrector adds the
    newest. On network fields this is several times cheaper than Runge-Kutta of the same accuracy,
    whose inner stages do not lie on the path (docs/results/solvers.md).

    Args:
        grid: Nodes as fractions of the way, 0 to 1; the clock's own direction for any ends.
        order: Velocities the predictor looks back on.
    """

    grid: tuple[float, ...] = uniform_grid(128)
    order: int = 4

    def __post_init__(self) -> None:
        if len(self.grid) < 2 or self.grid[0] != 0 or self.grid[-1] != 1:
            raise InputError(f"a grid runs from 0 to 1, got {len(self.grid)} nodes")
        if not bool((np.diff(self.grid) > 0).all()):
            raise InputError("the nodes of a grid must increase")
        if not 1 <= self.order <= 6:
            raise InputError(f"order must be 1 to 6, got {self.order}")

    def nodes(self, start: float, end: float) -> list[float]:
        """The grid on the clock; the first step is graded, since there is no past to look at."""
        graded = [self.grid[1] / 2**k for k in range(GRADED, 0, -1)]
        return [start + (end - start) * u for u in (0.0, *graded, *self.grid[1:-1])] + [end]

    def trace(self, field: Field, x: Tensor, start: float, end: float) -> Trace:
        """Move ``x`` from ``start`` to ``end`` and keep what was seen on the way."""
        nodes = self.nodes(start, end)
        v, rates = _checked(field, x, nodes[0])
        past, collected = [(nodes[0], v)], [rates]
        corrector_gap = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for here, there in itertools.pairwise(nodes):
            predicted = _advance(x, past, here, there)
            v, rates = _checked(field, predicted, there)
            collected.append(rates)
            x = _advance(x, [*past, (there, v)], here, there)
            past = [*past, (there, v)][-self.order :]
            corrector_gap += (x - predicted).double().flatten(1).square().mean(1).sqrt()
        return Trace(tuple(nodes), torch.stack(collected), x, corrector_gap)

    def __call__(self, field: Field, x: Tensor, start: float, end: float) -> Solution:
        """Move ``x`` from ``start`` to ``end``."""
        seen = self.trace(field, x, start, end)
        return Solution(seen.x, seen.integral(), len(seen.nodes), seen.corrector_gap)

    def refined(self) -> Adams:
        """Twice the steps, every interval halved."""
        middles = [(a + b) / 2 for a, b in itertools.pairwise(self.grid)]
        return Adams(tuple(sorted([*self.grid, *middles])), self.order)


def _advance(x: Tensor, past: list[tuple[float, Tensor]], here: float, there: float) -> Tensor:
    weights = lagrange_weights([gamma for gamma, _ in past], here, there)
    for weight, (_, v) in zip(weights, past, strict=True):
        x = torch.add(x, v, alpha=float(weight))
    return x


@dataclass(frozen=True)
class RK4:
    """The classical fourth-order method on equal steps, for comparison."""

    steps: int = 100

    def __call__(self, field: Field, x: Tensor, start: float, end: float) -> Solution:
        """Move ``x`` from ``start`` to ``end``."""
        h = (end - start) / self.steps
        integral: Tensor | float = 0.0
        for i in range(self.steps):
            here = start + i * h
            k1, r1 = _checked(field, x, here)
            k2, r2 = _checked(field, x + h / 2 * k1, here + h / 2)
            k3, r3 = _checked(field, x + h / 2 * k2, here + h / 2)
            k4, r4 = _checked(field, x + h * k3, here + h)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            integral = integral + h / 6 * (r1 + 2 * r2 + 2 * r3 + r4)
        assert isinstance(integral, Tensor)
        return Solution(x, integral, 4 * self.steps, torch.zeros_like(integral[0]))


@dataclass(frozen=True)
class Dopri5:
    """The paper's procedure: adaptive Dormand-Prince 5(4) on state and log-density together.

    The error norm is taken over the whole batch, so a value depends, within the tolerance, on
    which other samples are solved with it. The log-density is one number among thousands in that
    norm and is controlled far less than the state. Both are added up in float64; the field is
    evaluated in the dtype of the state that came.
    """

    rtol: float = 1e-5
    atol: float = 1e-5

    def __call__(self, field: Field, x: Tensor, start: float, end: float) -> Solution:
        """Move ``x`` from ``start`` to ``end``."""
        from torchdiffeq import odeint

        # The first evaluation only shows how many rates there are.
        _, first = field(x, torch.tensor(start, dtype=torch.float64, device=x.device))
        calls = 1

        def augmented(gamma: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            nonlocal calls
            calls += 1
            v, rates = _checked(field, state[0].to(x.dtype), float(gamma))
            return v.double(), rates

        ends = torch.tensor([start, end], dtype=torch.float64, device=x.device)
        try:
            states, integrals = odeint(
                augmented,
                (x.double(), torch.zeros_like(first, dtype=torch.float64)),
                ends,
                rtol=self.rtol,
                atol=self.atol,
                method="dopri5",
            )
        except AssertionError as error:
            raise NumericalError(
                f"Dormand-Prince gave up between gamma {start} and {end}: {error}; "
                "the field is too rough for this tolerance"
            ) from error
        unknown = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        return Solution(states[-1].to(x.dtype), integrals[-1], calls, unknown)
