r"""A network read as a diffusion ODE.

.. math:: \frac{\mathrm dx}{\mathrm d\gamma} = v(x, \gamma)
          = \sqrt{\dot\alpha^2 + \dot\sigma^2}\;\tilde v_\theta(x, \gamma)

The network may predict anything in :mod:`idode.diffusion.predictors` on any clock; from here on nobody
needs to know which (math.md: diffusion-ode).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from idode.diffusion.clocks import CLOCKS, Clock, ScaledGamma
from idode.diffusion.predictors import (
    NOISE,
    NORMALIZED_VELOCITY,
    PREDICTORS,
    VELOCITY,
    Predictor,
    TimedVelocity,
    convert,
)
from idode.diffusion.schedules import SCHEDULES, Schedule, start_gamma
from idode.errors import InputError, choose
from idode.numerics import check_range, like

__all__ = ["DiffusionODE", "wrap"]

Network = Callable[..., Tensor]


@dataclass(frozen=True)
class DiffusionODE:
    """A network, what it predicts, and the path it was trained on.

    Args:
        net: Called as ``net(x, t)``, or ``net(x, t, flag)`` where there is a flag; ``x`` is
            ``(B, *)``, ``t`` is ``(B,)``.
        schedule: How data is noised.
        gamma_min: Least noise, where pixels meet the continuum.
        gamma_max: Most noise, where the prior takes over.
        predictor: What the network says.
        clock: The time it is told; by default gamma scaled to [0, 1].
        levels: Grey levels of the data; ``None`` for continuous data.
    """

    net: Network
    schedule: Schedule
    gamma_min: float
    gamma_max: float
    predictor: Predictor = NORMALIZED_VELOCITY
    clock: Clock | None = None
    levels: int | None = None

    def __post_init__(self) -> None:
        check_range(self.gamma_min, self.gamma_max)

    def predict(
        self, x: Tensor, gamma: Tensor, wanted: Predictor, flag: Tensor | None = None
    ) -> Tensor:
        """The network's answer at ``(x, gamma)``, read as ``wanted``.

        Args:
            x: States ``(B, *)``.
            gamma: Clock ``(B,)`` or ``()``.
            wanted: The predictor to convert to.
            flag: Augmentation flags ``(B,)`` for networks that have them.
        """
        if not x.is_floating_point():
            raise InputError(
                f"the state must be floating point, got {x.dtype}: dequantize integer pixels first"
            )
        if gamma.ndim > 1 or (gamma.ndim == 1 and gamma.shape[0] != x.shape[0]):
            raise InputError(
                f"gamma must be a scalar or one value for each of {x.shape[0]} states, "
                f"got shape {tuple(gamma.shape)}"
            )
        clock = self.clock or ScaledGamma(self.gamma_min, self.gamma_max)
        time = clock.time(gamma).to(x.dtype).expand(x.shape[0])
        inside = like(self.predictor.c_in(self.schedule, gamma), x) * x
        said = self.net(inside, time) if flag is None else self.net(inside, time, flag)
        return convert(said, x, gamma, self.schedule, self.predictor, wanted)

    def velocity(self, x: Tensor, gamma: Tensor, flag: Tensor | None = None) -> Tensor:
        r"""Drift of the ODE, :math:`\mathrm dx/\mathrm d\gamma`."""
        return self.predict(x, gamma, VELOCITY, flag)

    def noise(self, x: Tensor, gamma: Tensor, flag: Tensor | None = None) -> Tensor:
        r""":math:`\hat\epsilon`, what the bounds compare."""
        return self.predict(x, gamma, NOISE, flag)


def wrap(
    net: Network,
    predicts: str,
    schedule: str,
    clock: str | Clock = "gamma",
    *,
    levels: int | None = 256,
    gamma_min: float | None = None,
    gamma_max: float = 5.0,
) -> DiffusionODE:
    r"""Somebody else's network as a diffusion ODE.

    A velocity is taken on the given clock, :math:`\mathrm dx/\mathrm dt`, in its direction.

    Args:
        net: Called as ``net(x, t)`` with ``t`` of shape ``(B,)`` on ``clock``.
        predicts: One of velocity, noise, data, score, normalized-velocity, preconditioned.
        schedule: vp, sp or ve.
        clock: A name in :data:`idode.diffusion.clocks.CLOCKS` or a clock.
        levels: Grey levels of the data, ``None`` for continuous data.
        gamma_min: Start; by default the three-sigma rule for ``levels``, or the least noise the
            clock knows where that is more.
        gamma_max: End, where the network's input is the prior.
    """
    if isinstance(clock, str):
        clock = choose("clock", clock, CLOCKS)
    predictor = choose("predictor", predicts, PREDICTORS)
    if predictor is VELOCITY:
        predictor = TimedVelocity(clock)
    if gamma_min is None:
        if levels is None:
            raise InputError(
                "continuous data has no bins to derive gamma_min from: "
                "pass the least noise the network was trained on as gamma_min"
            )
        gamma_min = max(start_gamma(levels), clock.known()[0])
    low, high = clock.known()
    if gamma_min < low or gamma_max > high:
        raise InputError(
            f"the network's clock knows gamma from {low:.3f} to {high:.3f}, got "
            f"{gamma_min:.3f} to {gamma_max:.3f}: stay inside"
        )
    return DiffusionODE(
        net=net,
        schedule=choose("schedule", schedule, SCHEDULES),
        gamma_min=gamma_min,
        gamma_max=gamma_max,
        predictor=predictor,
        clock=clock,
        levels=levels,
    )
