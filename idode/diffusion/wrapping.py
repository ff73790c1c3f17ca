r"""Networks trained elsewhere, read as diffusion ODEs.

Three conventions differ between libraries: what the network predicts, the time it is given, and
the scale of its data. The first two are the predictor and the clock of the model. The third is
an affine map :math:`y_0 = a x_0 + b` from our scale to the network's: with primes for the
network's own units, noise carries the same information about both where

.. math:: \gamma' = \gamma + 2\log a, \qquad y = \frac{\alpha' a}{\alpha}\,x + \alpha' b,

and :math:`\hat\epsilon` is then the same number in both (math.md: data-scale).
"""

from __future__ import annotations

import math
from typing import TypeAlias

from torch import nn

from idode.diffusion.clocks import CLOCKS, Clock, GammaTime
from idode.diffusion.foreign import CheckedNetwork, OwnUnits
from idode.diffusion.model import DiffusionODE, Network
from idode.diffusion.predictors import NOISE, PREDICTORS, VELOCITY, Predictor, TimedVelocity
from idode.diffusion.schedules import SCHEDULES, Schedule, start_gamma
from idode.errors import InputError, choose

__all__ = ["DATA_RANGES", "DataRange", "default_end", "default_start", "wrap"]

DataRange: TypeAlias = str | tuple[float, float]
"""Values a network was trained on for the lowest and the highest level, or a name of such."""

DATA_RANGES: dict[str, tuple[float, float] | None] = {
    "bin-centres": None,  # this library's: (2X + 1)/L - 1
    "[-1, 1]": (-1.0, 1.0),  # 2X/(L - 1) - 1
    "[0, 1]": (0.0, 1.0),  # X/(L - 1)
}

# Largest KL divergence from the end of the path to the prior, nats for each dimension. Networks
# that have seen pure noise can be asked for more of it at no risk.
PRIOR_KL, PRIOR_KL_OF_FLOWS = 1e-5, 1e-8
LEAST_NOISE = 22.0  # of clocks that reach clean data: sigma/alpha = e^-11 of the data's scale


def default_start(clock: Clock, levels: int | None, data_scale: float, shift: float) -> float:
    r"""Where to start on the clock of a network.

    By the three-sigma rule of the levels. For continuous data, noise of :math:`e^{-11}` of its
    scale where the clock reaches clean data, else the least noise the network knows.

    Args:
        clock: Of the network.
        levels: Grey levels of the data, ``None`` for continuous data.
        data_scale: Root mean square of the data.
        shift: Of the network's gamma against ours.
    """
    low = clock.known()[0] - shift
    if levels is not None:
        return max(low, start_gamma(levels))
    if clock.reaches_data:
        return max(low, 2 * math.log(data_scale) - LEAST_NOISE)
    if low == -math.inf:
        raise InputError(
            "continuous data has no bins to derive gamma_min from: "
            "pass the least noise the network was trained on as gamma_min"
        )
    return low


def default_end(clock: Clock, data_scale: float, shift: float) -> float:
    r"""Where to end on the clock of a network.

    Where the KL divergence from the noised data to the prior, at most
    :math:`\frac12 e^{-\gamma}s^2`, is 1e-5 nats for each dimension, and 1e-8 for networks that
    were trained up to pure noise; but not beyond the clock.
    """
    kl = PRIOR_KL_OF_FLOWS if clock.reaches_noise else PRIOR_KL
    return min(clock.known()[1] - shift, 2 * math.log(data_scale) - math.log(2 * kl))


def wrap(
    net: Network,
    predicts: str | Predictor,
    schedule: str | Schedule,
    clock: str | Clock = "gamma",
    *,
    levels: int | None = 256,
    data_range: DataRange = "bin-centres",
    data_scale: float = 1.0,
    gamma_min: float | None = None,
    gamma_max: float | None = None,
    extend: bool = False,
    shape: tuple[int, ...] | None = None,
    gaussian_path: bool = True,
) -> DiffusionODE:
    r"""A network trained elsewhere as a diffusion ODE.

    A velocity is taken on the given clock, :math:`\mathrm dx/\mathrm dt`, in its direction.
    :func:`idode.adapt` does this for the networks of other libraries.

    Args:
        net: Called as ``net(x, t, **condition)`` with ``t`` of shape ``(B,)`` on ``clock``.
        predicts: One of velocity, noise, data, score, normalized-velocity (the "v prediction" of
            vp), preconditioned, or a predictor.
        schedule: vp, sp or ve, or a schedule.
        clock: A name in :data:`idode.diffusion.clocks.CLOCKS` or a clock.
        levels: Grey levels of the data, ``None`` for continuous data.
        data_range: Scale of the pixels the network was trained on: ``"[-1, 1]"`` for
            2X/(L-1) - 1, which most libraries use, ``"[0, 1]"`` for X/(L-1), or any pair of
            values for the lowest and highest level; the default is this library's own scale,
            the middles of L bins, (2X+1)/L - 1. Gammas here are on this library's scale.
        data_scale: Root mean square of the data, which decides where the noise drowns it; images
            have at most 1.
        gamma_min: Start; by default :func:`default_start`.
        gamma_max: End, where the state is the prior; by default :func:`default_end`.
        extend: Start as low as the levels ask for, with the network held at its last time where
            its clock ends earlier.
        shape: Shape of one sample.
        gaussian_path: Whether the state given clean data is Gaussian; not so for couplings by
            optimal transport, whose velocity can be followed and not be read as a noise.
    """
    clock = _clock(clock)
    predictor = predicts if isinstance(predicts, Predictor) else _predictor(predicts, clock)
    path = schedule if isinstance(schedule, Schedule) else choose("schedule", schedule, SCHEDULES)
    if not 0 < data_scale < math.inf:
        raise InputError(f"data_scale must be a positive number, got {data_scale}")
    if not callable(net):
        raise InputError(f"net is called as net(x, t): give a module or a function, got {net!r}")
    scale, shift = _affine(data_range, levels)
    away = 2 * math.log(scale)
    if gamma_min is None and extend and levels is not None:
        gamma_min = start_gamma(levels)
    if gamma_min is None:
        gamma_min = default_start(clock, levels, data_scale, away)
    if gamma_max is None:
        gamma_max = default_end(clock, data_scale, away)
    low, high = (end - away for end in clock.known())
    if (gamma_min < low and not extend) or gamma_max > high:
        raise InputError(
            f"the network's clock covers gamma from {low:.3f} to {high:.3f}, got "
            f"{gamma_min:.3f} to {gamma_max:.3f}: stay inside; extend=True starts lower, with "
            "the network held at its last time"
        )
    checked: nn.Module = CheckedNetwork(net)
    if (scale, shift) != (1.0, 0.0) or gamma_min < low:
        least = max(low, gamma_min)
        inner = DiffusionODE(checked, path, least + away, gamma_max + away, predictor, clock)
        checked, predictor = OwnUnits(inner, path, scale, shift, least), NOISE
        clock = GammaTime()
    return DiffusionODE(
        checked, path, gamma_min, gamma_max, predictor, clock, levels, shape, gaussian_path
    )


def _clock(clock: str | Clock) -> Clock:
    if isinstance(clock, Clock):
        return clock
    if not isinstance(clock, str):
        raise InputError(
            f"a clock is one of {', '.join(CLOCKS)} or a Clock, got a {type(clock).__name__}: "
            "for a network with its scheduler use idode.adapt((net, scheduler)), for a table of "
            "alphas TableTime(scheduler.alphas_cumprod)"
        )
    return choose("clock", clock, CLOCKS)


def _predictor(name: str, clock: Clock) -> Predictor:
    predictor = choose("predictor", name, PREDICTORS)
    return TimedVelocity(clock) if predictor is VELOCITY else predictor


def _affine(data_range: DataRange, levels: int | None) -> tuple[float, float]:
    """Scale and shift from the middles of the bins to the values the network was trained on."""
    if isinstance(data_range, str):
        ends = choose("data range", data_range, DATA_RANGES)
    else:
        ends = data_range
    if ends is None:
        return 1.0, 0.0
    if levels is None:
        raise InputError(
            "data_range says how levels become numbers; continuous data has none: pass the data "
            "as the network knows it and leave data_range out"
        )
    if len(ends) != 2 or not -math.inf < ends[0] < ends[1] < math.inf:
        raise InputError(
            f"data_range must be the values of the lowest and the highest level, in this order, "
            f"got {' and '.join(map(str, ends))}"
        )
    low, high = ends
    return (high - low) * levels / (2 * (levels - 1)), (low + high) / 2
