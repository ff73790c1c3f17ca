r"""Solvers for the state and, beside it, integrals along its path.

A field gives the velocity and some rates at ``(x, gamma)``; a solver moves the state from one end
of the clock to the other and integrates the rates in float64. The log-density is such an
integral, of the divergence. It never feeds back into the path, so a solver may integrate it by
another rule than the one that moved the state.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from idode.errors import InputError, NumericalError

__all__ = ["RK4", "Calibration", "Dopri5", "Field", "Solution", "Solver", "evaluate_field"]

Field = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps a state ``(B, *)`` and a scalar gamma to the velocity ``(B, *)`` and rates ``(n, B)``."""

Value = Callable[[Tensor, Tensor], Tensor]
"""Maps the end of a path and its integrals ``(n, B)`` to the numbers whose error counts."""


@dataclass(frozen=True)
class Solution:
    """Where the path ends and what was collected on it."""

    x: Tensor  # (B, *)
    integral: Tensor  # (n, B) float64
    nfe: int  # evaluations of the field for each sample
    corrector_gap: Tensor  # (B,) distance of predictions from corrections; 0 where unknown


@dataclass(frozen=True)
class Calibration:
    """A solver with its steps chosen, and its error in the units of the value it was tuned for.

    The errors are NaN for a solver that has no estimate of its own error.
    """

    solver: Solver
    mean_error: float = math.nan  # signed, on the pilot samples, against twice the steps
    rms_error: float = math.nan  # per sample
    error_per_gap: float = math.nan  # scales a sample's corrector gap to its likely error
    largest_gap: float = math.inf  # of the pilot; far above it, a sample needs a finer grid
    nfe: int = 0  # spent on calibrating, for each pilot sample


class Solver(abc.ABC):
    """Integrates a field from one gamma to another, in either direction.

    A final class is a frozen dataclass of plain values, listed in :data:`idode.ode.SOLVERS`; it
    gives :meth:`solve` and, where its steps depend on the problem, :meth:`calibrate`.
    """

    @abc.abstractmethod
    def solve(self, field: Field, x: Tensor, start: float, end: float) -> Solution:
        """Move ``x`` from ``start`` to ``end``."""

    def calibrate(
        self, field: Field, x: Tensor, start: float, end: float, value: Value
    ) -> Calibration:
        """Choose the steps on pilot states ``x``; a solver that adapts by itself stays as it is.

        Args:
            field: The field to be solved.
            x: Pilot states ``(B, *)`` at ``start``.
            start: Where solves begin.
            end: Where they end.
            value: Maps the end of a path and its integrals ``(n, B)`` to the numbers ``(n, B)``
                whose error counts.
        """
        return Calibration(self)

    def refined(self) -> Solver | None:
        """The same solver with twice the steps, or ``None`` where there is no such thing."""
        return None

    def coarsened(self, share: float) -> Solver | None:
        """The same solver with a share of its steps, or ``None`` where that makes no sense."""
        return None


def evaluate_field(field: Field, x: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
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


@dataclass(frozen=True)
class RK4(Solver):
    """The classical fourth-order method on equal steps, for comparison."""

    steps: int = 100

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"rk4 needs at least 1 step, got {self.steps}")

    def solve(self, field: Field, x: Tensor, start: float, end: float) -> Solution:
        """Move ``x`` from ``start`` to ``end``."""
        h = (end - start) / self.steps
        integral: Tensor | float = 0.0
        for i in range(self.steps):
            here = start + i * h
            k1, r1 = evaluate_field(field, x, here)
            k2, r2 = evaluate_field(field, x + h / 2 * k1, here + h / 2)
            k3, r3 = evaluate_field(field, x + h / 2 * k2, here + h / 2)
            k4, r4 = evaluate_field(field, x + h * k3, here + h)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            integral = integral + h / 6 * (r1 + 2 * r2 + 2 * r3 + r4)
        assert isinstance(integral, Tensor)
        unknown = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        return Solution(x, integral, 4 * self.steps, unknown)

    def refined(self) -> RK4:
        """Twice the steps."""
        return RK4(2 * self.steps)


@dataclass(frozen=True)
class Dopri5(Solver):
    """The paper's procedure: adaptive Dormand-Prince 5(4) on state and log-density together.

    The error norm is taken over the whole batch, so a value depends, within the tolerance, on
    which other samples are solved with it. The log-density is one number among thousands in that
    norm and is controlled far less than the state. Both are added up in float64; the field is
    evaluated in the dtype of the given state.

    Args:
        tolerance: Relative and absolute, of each step.
    """

    tolerance: float = 1e-5

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < math.inf:
            raise InputError(f"the tolerance must be a positive number, got {self.tolerance}")

    def solve(self, field: Field, x: Tensor, start: float, end: float) -> Solution:
        """Move ``x`` from ``start`` to ``end``."""
        from torchdiffeq import odeint

        # The first evaluation only shows how many rates there are.
        _, first = field(x, torch.tensor(start, dtype=torch.float64, device=x.device))
        calls = 1

        def augmented(gamma: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            nonlocal calls
            calls += 1
            v, rates = evaluate_field(field, state[0].to(x.dtype), float(gamma.detach()))
            return v.double(), rates

        ends = torch.tensor([start, end], dtype=torch.float64, device=x.device)
        try:
            states, integrals = odeint(
                augmented,
                (x.double(), torch.zeros_like(first, dtype=torch.float64)),
                ends,
                rtol=self.tolerance,
                atol=self.tolerance,
                method="dopri5",
            )
        except AssertionError as error:
            raise NumericalError(
                f"Dormand-Prince gave up between gamma {start} and {end}: {error}; "
                "the field is too rough for this tolerance"
            ) from error
        unknown = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        return Solution(states[-1].to(x.dtype), integrals[-1], calls, unknown)
