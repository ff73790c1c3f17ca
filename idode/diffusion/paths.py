r"""Paths given as functions of somebody's time: :math:`\alpha(t)` and :math:`\sigma(t)`.

Most paths have a schedule and a clock in closed form. The others, such as those of flow matching
with some noise left at the data, are turned into both by inverting :math:`\gamma(t)` numerically.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from idode.diffusion.clocks import Clock
from idode.diffusion.schedules import Schedule
from idode.errors import InputError
from idode.numerics import increasing_root

__all__ = ["PathSchedule", "PathTime"]

Scale = Callable[[Tensor], Tensor]
PURE = 60.0  # gamma beyond which a state is clean data, or noise, to the last digit
INSIDE = 1e-9  # from the ends of the unit interval
NEWTON, CLOSE = 5, 1e-8  # steps, and how near to a gamma they must come


class PathTime(Clock):
    r"""A time in [0, 1] whose :math:`\gamma = 2\log(\sigma/\alpha)` is monotone.

    Args:
        alpha: Scale of the data at a time, ``(*)`` to ``(*)``, differentiable, float64.
        sigma: Scale of the noise.
    """

    def __init__(self, alpha: Scale, sigma: Scale) -> None:
        self.alpha, self.sigma = alpha, sigma
        times = torch.linspace(0, 1, 65, dtype=torch.float64)[1:-1]
        steps = self.gamma(times).diff()
        if not (bool((steps > 0).all()) or bool((steps < 0).all())):
            raise InputError("the path's noise does not grow from the data to the prior")
        self.direction = 1.0 if bool(steps[0] > 0) else -1.0
        ends = self.gamma(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
        self.ends = min(ends), max(ends)
        self.reaches_data, self.reaches_noise = self.ends[0] < -PURE, self.ends[1] > PURE
        self._found: dict[float, float] = {}

    def known(self) -> tuple[float, float]:
        """From one end of the unit interval to the other."""
        low, high = self.ends
        return (
            -math.inf if self.reaches_data else low,
            math.inf if self.reaches_noise else high,
        )

    def gamma(self, time: Tensor) -> Tensor:
        r""":math:`2\log(\sigma/\alpha)`."""
        return 2 * (torch.log(self.sigma(time)) - torch.log(self.alpha(time)))

    def time(self, gamma: Tensor) -> Tensor:
        """The root of :meth:`gamma`; a solver asks for few different values, which are kept."""
        values, places = torch.unique(gamma.detach().double().cpu(), return_inverse=True)
        new = [value for value in values.tolist() if value not in self._found]
        if new:
            roots = self._root(torch.tensor(new, dtype=torch.float64))
            self._found.update(zip(new, roots.tolist(), strict=True))
        roots = torch.tensor([self._found[v] for v in values.tolist()], dtype=torch.float64)
        return roots[places].to(gamma)

    def dtime(self, gamma: Tensor) -> Tensor:
        """One over the slope of gamma."""
        time = self.time(gamma.double()).clamp(INSIDE, 1 - INSIDE)
        return (1 / self._slope(time)).to(gamma)

    def _root(self, gamma: Tensor) -> Tensor:
        """Newton's method from a table; where that fails, in a bracket."""
        times, known = self._table
        right = torch.searchsorted(known, gamma).clamp(1, len(known) - 1)
        share = (gamma - known[right - 1]) / (known[right] - known[right - 1])
        time = torch.lerp(times[right - 1], times[right], share.clamp(0, 1))
        for _ in range(NEWTON):
            step = (self.gamma(time) - gamma) / self._slope(time)
            time = torch.where(step.isfinite(), time - step, time).clamp(INSIDE, 1 - INSIDE)
        if bool(((self.gamma(time) - gamma).abs() < CLOSE).all()):
            return time
        return increasing_root(
            lambda t: self.direction * self.gamma(t),
            lambda t: self.direction * self._slope(t),
            self.direction * gamma,
            0.0,
            1.0,
        )

    @functools.cached_property
    def _table(self) -> tuple[Tensor, Tensor]:
        """Times, close together at both ends, and their gammas, increasing."""
        times = torch.sigmoid(torch.linspace(-16, 16, 1025, dtype=torch.float64))
        gammas = self.gamma(times)
        return (times, gammas) if self.direction > 0 else (times.flip(0), gammas.flip(0))

    def _slope(self, time: Tensor) -> Tensor:
        return _slope(self.gamma, time)


class PathSchedule(Schedule):
    """The schedule of a :class:`PathTime`."""

    def __init__(self, clock: PathTime) -> None:
        self.clock = clock

    def log_alpha(self, gamma: Tensor) -> Tensor:
        r""":math:`\log\alpha(t(\gamma))`."""
        return torch.log(self.clock.alpha(self.clock.time(gamma.double()))).to(gamma)

    def dlog_alpha(self, gamma: Tensor) -> Tensor:
        """Its slope, by the chain rule."""
        time = self.clock.time(gamma.double())
        slope = _slope(lambda t: torch.log(self.clock.alpha(t)), time)
        return (slope * self.clock.dtime(gamma.double())).to(gamma)


def _slope(f: Scale, time: Tensor) -> Tensor:
    with torch.enable_grad():
        time = time.detach().requires_grad_()
        (slope,) = torch.autograd.grad(f(time).sum(), time)
    return slope
