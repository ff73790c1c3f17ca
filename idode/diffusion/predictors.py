r"""What a network may predict, and how to read it as anything else (math.md: equivalence).

Given the state :math:`x` at :math:`\gamma`, every target of the field is the same unknown seen
through a line,

.. math:: \text{prediction} = a(\gamma)\,x + b(\gamma)\,\hat\epsilon,

so a predictor is the pair :math:`(a, b)`, and all conversions between any two are one formula.
The likelihood weighting follows too: :math:`\frac12\|\hat\epsilon - \epsilon\|^2
= \frac{1}{2b^2}\|\text{prediction} - \text{target}\|^2`.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

import torch
from torch import Tensor

from idode.diffusion.clocks import CLOCKS, Clock
from idode.diffusion.schedules import Schedule
from idode.errors import InputError, choose
from idode.numerics import like

__all__ = [
    "DATA",
    "NOISE",
    "NORMALIZED_VELOCITY",
    "PREDICTORS",
    "SCORE",
    "VELOCITY",
    "Preconditioned",
    "Predictor",
    "TimedVelocity",
    "convert",
    "named",
    "target",
]


class Predictor(abc.ABC):
    """A quantity a network can be trained to predict."""

    @abc.abstractmethod
    def coefficients(self, schedule: Schedule, gamma: Tensor) -> tuple[Tensor, Tensor]:
        r"""The pair :math:`(a, b)` at ``gamma``, each of its shape."""

    def c_in(self, schedule: Schedule, gamma: Tensor) -> Tensor:
        """What the state is multiplied by before the network sees it."""
        return torch.ones_like(gamma)

    def likelihood_weight(self, schedule: Schedule, gamma: Tensor) -> Tensor:
        r""":math:`1/(2b^2)`: turns the squared error of this predictor into nats."""
        _, b = self.coefficients(schedule, gamma)
        return 0.5 / b**2


@dataclass(frozen=True)
class Noise(Predictor):
    r""":math:`\hat\epsilon` itself.

    ``scaled`` divides the state by :math:`\sqrt{\alpha^2 + \sigma^2}` for the network, which
    states of variance exploding models need and VP's are already.
    """

    scaled: bool = False

    def c_in(self, schedule: Schedule, gamma: Tensor) -> Tensor:
        """One, or what gives data of unit variance unit variance at every noise level."""
        if not self.scaled:
            return torch.ones_like(gamma)
        return torch.rsqrt(schedule.alpha(gamma) ** 2 + schedule.sigma(gamma) ** 2)

    def coefficients(self, schedule: Schedule, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """Zero and one."""
        return torch.zeros_like(gamma), torch.ones_like(gamma)


class Score(Predictor):
    r""":math:`\nabla\log q = -\hat\epsilon/\sigma`."""

    def coefficients(self, schedule: Schedule, gamma: Tensor) -> tuple[Tensor, Tensor]:
        r"""Zero and :math:`-1/\sigma`."""
        return torch.zeros_like(gamma), -torch.exp(-schedule.log_sigma(gamma))


class Data(Predictor):
    r""":math:`\hat x_0 = (x - \sigma\hat\epsilon)/\alpha`."""

    def coefficients(self, schedule: Schedule, gamma: Tensor) -> tuple[Tensor, Tensor]:
        r""":math:`1/\alpha` and :math:`-\sigma/\alpha`."""
        return torch.exp(-schedule.log_alpha(gamma)), -torch.exp(gamma / 2)


class Velocity(Predictor):
    r"""The drift :math:`\mathrm dx/\mathrm d\gamma`."""

    def coefficients(self, schedule: Schedule, gamma: Tensor) -> tuple[Tensor, Tensor]:
        r""":math:`\dot{(\log\alpha)}` and :math:`\sigma/2`."""
        return schedule.dlog_alpha(gamma), schedule.sigma(gamma) / 2


class NormalizedVelocity(Predictor):
    r"""The paper's network: the drift over :math:`\sqrt{\dot\alpha^2 + \dot\sigma^2}`."""

    def coefficients(self, schedule: Schedule, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """The line of the velocity over the speed."""
        speed = schedule.speed(gamma)
        return schedule.dlog_alpha(gamma) / speed, schedule.sigma(gamma) / (2 * speed)


@dataclass(frozen=True)
class TimedVelocity(Predictor):
    r"""The drift on somebody else's clock, :math:`\mathrm dx/\mathrm dt`."""

    clock: Clock

    def coefficients(self, schedule: Schedule, gamma: Tensor) -> tuple[Tensor, Tensor]:
        r"""The line of the velocity over :math:`\mathrm dt/\mathrm d\gamma`."""
        dtime = self.clock.dtime(gamma)
        return schedule.dlog_alpha(gamma) / dtime, schedule.sigma(gamma) / (2 * dtime)


@dataclass(frozen=True)
class Preconditioned(Predictor):
    r"""Preconditioning in the paper's form: :math:`\hat\epsilon = c_{skip}x + c_{out}F(c_{in}x)`.

    EDM's own network predicts data, :math:`D = (x - \sigma\hat\epsilon)/\alpha`, so its raw
    output has the opposite sign; wrap its :math:`D` as ``data``. Input and target have unit
    variance when data has standard deviation ``sigma_data`` (math.md: preconditioning). With 1
    and VP it is the normalised velocity.
    """

    sigma_data: float = 0.5

    def __post_init__(self) -> None:
        if not self.sigma_data > 0:
            raise InputError(
                f"sigma_data must be positive, got {self.sigma_data}: "
                "it is the standard deviation of the data on its [-1, 1] scale"
            )

    def variance(self, schedule: Schedule, gamma: Tensor) -> Tensor:
        """Variance of the state, per dimension."""
        return schedule.sigma(gamma) ** 2 + (self.sigma_data * schedule.alpha(gamma)) ** 2

    def c_in(self, schedule: Schedule, gamma: Tensor) -> Tensor:
        """One over the state's standard deviation."""
        return self.variance(schedule, gamma).rsqrt()

    def c_skip(self, schedule: Schedule, gamma: Tensor) -> Tensor:
        """Share of the state that is noise, in the sense of least squares."""
        return schedule.sigma(gamma) / self.variance(schedule, gamma)

    def c_out(self, schedule: Schedule, gamma: Tensor) -> Tensor:
        """Scale of what the network adds."""
        return self.sigma_data * schedule.alpha(gamma) * self.c_in(schedule, gamma)

    def coefficients(self, schedule: Schedule, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """Solved for the network's output."""
        c_out = self.c_out(schedule, gamma)
        return -self.c_skip(schedule, gamma) / c_out, 1 / c_out


NOISE, SCORE, DATA = Noise(), Score(), Data()
VELOCITY, NORMALIZED_VELOCITY = Velocity(), NormalizedVelocity()

PREDICTORS: dict[str, Predictor] = {
    "normalized-velocity": NORMALIZED_VELOCITY,
    "velocity": VELOCITY,
    "noise": NOISE,
    "noise-of-scaled": Noise(scaled=True),
    "data": DATA,
    "score": SCORE,
    "preconditioned": Preconditioned(),
}


def named(name: str) -> Predictor:
    """The predictor called ``name`` in a configuration.

    >>> named("velocity:trigonometric") == TimedVelocity(CLOCKS["trigonometric"])
    True
    """
    kind, colon, clock = name.partition(":")
    if kind == "velocity" and colon:
        return TimedVelocity(choose("clock", clock, CLOCKS))
    return choose("predictor", name, {**PREDICTORS, "velocity:CLOCK": VELOCITY})


def convert(
    value: Tensor,
    x: Tensor,
    gamma: Tensor,
    schedule: Schedule,
    given: Predictor,
    wanted: Predictor,
) -> Tensor:
    r"""Read one prediction as another, at the same state.

    Eliminating :math:`\hat\epsilon`: with :math:`r = b_w/b_g`, the wanted value is
    :math:`r\cdot\text{value} + (a_w - r a_g)x`.

    Args:
        value: What the network said, ``(B, *)``.
        x: The state it was asked about, ``(B, *)``.
        gamma: Clock, ``(B,)`` or ``()``.
        schedule: How ``x`` was noised.
        given: What ``value`` is.
        wanted: What it should be read as.
    """
    if given == wanted:
        return value
    a_given, b_given = given.coefficients(schedule, gamma)
    a_wanted, b_wanted = wanted.coefficients(schedule, gamma)
    ratio = b_wanted / b_given
    return like(ratio, x) * value + like(a_wanted - ratio * a_given, x) * x


def target(
    x0: Tensor, eps: Tensor, gamma: Tensor, schedule: Schedule, predictor: Predictor
) -> Tensor:
    r"""What the predictor should have said: :math:`a x + b\epsilon` with the true noise.

    Written as :math:`a\alpha\,x_0 + (a\sigma + b)\,\epsilon`, so that no digits are lost in the
    state when the noise is small.
    """
    a, b = predictor.coefficients(schedule, gamma)
    return like(a * schedule.alpha(gamma), x0) * x0 + like(a * schedule.sigma(gamma) + b, x0) * eps
