r"""Adaptive Dormand-Prince 5(4), step for step as ``scipy.integrate.solve_ivp`` takes it.

The published values and numbers of evaluations are those of scipy's ``RK45``. Its first step, its
error norm and its rule for the next step are kept here, so that an NFE means the same: with
:math:`e` the difference of the two orders and :math:`s = \mathrm{atol} + \mathrm{rtol}\max(|y|,
|y_{\text{new}}|)`, a step is taken where the root mean square of :math:`e/s` over state and
log-densities together is below 1 (math.md: rk45-norm).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from idode.errors import InputError, NumericalError
from idode.numerics import double
from idode.ode.solvers import CheckedField, Field, Solution, Solver

__all__ = ["Dopri5"]

STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),  # the step itself
)
SHARES = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)  # of the step, where the field is evaluated
DIFFERENCE = (-71 / 57600, 0.0, 71 / 16695, -71 / 1920, 17253 / 339200, -22 / 525, 1 / 40)
SAFETY, SHRINK, GROW = 0.9, 0.2, 10.0
POWER = 1 / 5  # one over the order of the error estimate, plus one


class _State(NamedTuple):
    """Where a path is and what was collected on it, or the slopes of both; float64."""

    x: Tensor  # (B, *)
    integral: Tensor  # (n, B)

    def moved(self, h: float, weights: Sequence[float], slopes: Sequence[_State]) -> _State:
        """The state plus ``h`` times a combination of slopes."""
        x, integral = self
        for weight, slope in zip(weights, slopes, strict=True):
            if weight:
                x = torch.add(x, slope.x, alpha=h * weight)
                integral = torch.add(integral, slope.integral, alpha=h * weight)
        return _State(x, integral)

    def rms(self, scale: _State) -> float:
        """Root mean square of all entries, each over its scale."""
        parts = [(part / by).detach() for part, by in zip(self, scale, strict=True)]
        total = torch.stack([part.square().sum() for part in parts]).sum()
        return math.sqrt(float(total) / sum(part.numel() for part in parts))


@dataclass(frozen=True)
class Dopri5(Solver):
    """The paper's procedure: Dormand-Prince 5(4) on state and log-density together.

    The error norm is taken over the whole batch, so a value depends, within the tolerance, on
    which other samples are solved with it. The log-density is one number among thousands in that
    norm and is hardly controlled. Both are added up in float64; the field is evaluated in the
    dtype of the given state.

    Args:
        tolerance: Relative and absolute, of each step.
    """

    tolerance: float = 1e-5

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < math.inf:
            raise InputError(f"the tolerance must be a positive number, got {self.tolerance}")

    def solve(self, field: Field, x: Tensor, start: float, end: float) -> Solution:
        """Move ``x`` from ``start`` to ``end``."""
        path = _Path(CheckedField(field), x, start, end, self.tolerance)
        step, rejected = path.first_step(), False
        while path.here != end:
            if step < 10 * math.ulp(path.here):
                raise NumericalError(
                    f"Dormand-Prince gave up between gamma {start} and {end}: its step vanished "
                    f"at {path.here:.4f}; the field is too rough for this tolerance"
                )
            size, error = path.attempt(step)
            factor = SAFETY * error**-POWER if error > 0 else GROW
            if error < 1:
                path.accept()
                step = size * min(1.0 if rejected else GROW, factor)
            else:
                step = size * max(SHRINK, factor)
            rejected = error >= 1
        path.field.check()
        unknown = torch.zeros(len(x), dtype=torch.float64, device=path.state.integral.device)
        return Solution(path.state.x.to(x), path.state.integral, path.field.nfe, unknown)


class _Path:
    """A solve on its way: the state at ``here``, its slope, and the step that is tried."""

    def __init__(
        self, field: CheckedField, x: Tensor, start: float, end: float, tolerance: float
    ) -> None:
        self.field, self.like, self.tolerance = field, x, tolerance
        self.here, self.end, self.way = start, end, math.copysign(1.0, end - start)
        v, rates = field.at(x, start)
        self.state = _State(double(x), torch.zeros_like(rates))
        self.slope = _State(double(v), rates)
        self.tried = (start, self.state, self.slope)

    def slope_at(self, state: _State, gamma: float) -> _State:
        """The field at a state, in the precision of the given one."""
        v, rates = self.field.at(state.x.to(self.like), gamma)
        return _State(double(v), rates)

    def scale(self, *states: _State) -> _State:
        """Error allowed for each entry."""
        x, integral = (
            self.tolerance * (1 + torch.stack([part.detach().abs() for part in parts]).amax(0))
            for parts in zip(*states, strict=True)
        )
        return _State(x, integral)

    def first_step(self) -> float:
        """Size of the first step, from the slope and how fast it changes (Hairer, II.4)."""
        most, scale = abs(self.end - self.here), self.scale(self.state)
        high, steep = self.state.rms(scale), self.slope.rms(scale)
        small = min(most, 1e-6 if min(high, steep) < 1e-5 else 0.01 * high / steep)
        there = self.here + self.way * small
        next_slope = self.slope_at(self.state.moved(self.way * small, (1.0,), [self.slope]), there)
        bend = next_slope.moved(-1.0, (1.0,), [self.slope]).rms(scale) / small
        steepest = max(steep, bend)
        step = (0.01 / steepest) ** POWER if steepest > 1e-15 else max(1e-6, small * 1e-3)
        return min(100 * small, step, most)

    def attempt(self, step: float) -> tuple[float, float]:
        """Try a step; its size, cut off at the end, and its error over what is allowed."""
        there = self.here + self.way * step
        there = self.end if self.way * (there - self.end) > 0 else there
        h, slopes, new = there - self.here, [self.slope], self.state
        for row, share in zip(STAGES, SHARES, strict=True):
            new = self.state.moved(h, row, slopes)
            slopes.append(self.slope_at(new, self.here + share * h))
        zero = _State(*(torch.zeros_like(part) for part in self.state))
        error = zero.moved(h, DIFFERENCE, slopes).rms(self.scale(self.state, new))
        if not math.isfinite(error):
            self.field.check()
            error = math.inf
        self.tried = (there, new, slopes[-1])
        return abs(h), error

    def accept(self) -> None:
        """Take the step that was tried."""
        self.here, self.state, self.slope = self.tried
