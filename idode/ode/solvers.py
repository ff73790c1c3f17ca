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
from idode.numerics import clock_at, double
from idode.ode.quadrature import Speed

__all__ = ["RK4", "Calibration", "CheckedField", "Field", "Solution", "Solver", "speed_of"]

Field = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps a state ``(B, *)`` and a scalar gamma to the velocity ``(B, *)`` and rates ``(n, B)``."""


def speed_of(field: Field) -> Speed | None:
    """What a field's velocity is known to grow and fall with; ``None`` where nothing is known."""
    return getattr(field, "speed", None)


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
    mean_error: float = math.nan  # signed, on the pilot samples, against a finer grid
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

    def reversed(self) -> Solver:
        """The solver for the way back, on the same nodes; one that adapts by itself is its own."""
        return self

    def nodes(self, start: float, end: float) -> list[float] | None:
        """Where a solve evaluates the field, once each and in order; ``None`` if not known."""
        return None


class CheckedField:
    """A field that notes where its values are not finite, and refuses them when asked to.

    Nothing is read from the device before :meth:`check`: a GPU that has to report every value
    waits for the host at every step.

    Args:
        field: Velocity and rates at ``(x, gamma)``.
    """

    def __init__(self, field: Field) -> None:
        self._field = field
        self._seen: list[tuple[float, Tensor]] = []

    @property
    def nfe(self) -> int:
        """Evaluations so far."""
        return len(self._seen)

    def at(self, x: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
        """Velocity ``(B, *)`` and rates ``(n, B)`` in float64."""
        v, rates = self._field(x, clock_at(gamma, x))
        good = torch.isfinite(v.detach()).flatten(1).all(1)
        good = good & torch.isfinite(rates.detach()).all(0).to(good.device)
        self._seen.append((gamma, good))
        return v, double(rates)

    def check(self) -> None:
        """Refuse a value that is not a number; the first one is named."""
        if any(found.device.type == "meta" for _, found in self._seen):
            return  # shapes alone are computed there
        good = torch.stack([found for _, found in self._seen])
        if bool(good.all()):
            return
        number = int((~good).any(1).nonzero()[0, 0])
        gamma, found = self._seen[number]
        bad = int((~found).nonzero()[0, 0])
        raise NumericalError(
            f"the field is not finite at gamma = {gamma:.4f} for sample {bad} of its batch "
            f"({int((~found).sum())} of {len(found)} samples)",
            sample=bad,
        )


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
        checked = CheckedField(field)
        integral: Tensor | float = 0.0
        for i in range(self.steps):
            here = start + i * h
            k1, r1 = checked.at(x, here)
            k2, r2 = checked.at(x + h / 2 * k1, here + h / 2)
            k3, r3 = checked.at(x + h / 2 * k2, here + h / 2)
            k4, r4 = checked.at(x + h * k3, here + h)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            integral = integral + h / 6 * (r1 + 2 * r2 + 2 * r3 + r4)
        checked.check()
        assert isinstance(integral, Tensor)
        unknown = torch.zeros(len(x), dtype=torch.float64, device=integral.device)
        return Solution(x, integral, checked.nfe, unknown)

    def refined(self) -> RK4:
        """Twice the steps."""
        return RK4(2 * self.steps)
