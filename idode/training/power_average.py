r"""Averages of weights whose width is chosen after training (math.md: power-average).

The weights :math:`\theta(s)` of steps up to :math:`t` are averaged with the profile
:math:`p_{\gamma,t}(s) = (\gamma + 1)\,s^\gamma / t^{\gamma + 1}`. Its width is its standard
deviation as a share of :math:`t`. Two such averages, stored at several steps, span the profiles of
other widths nearly (Karras et al., 2024), so that one training has the averages of many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from idode.errors import InputError

__all__ = ["LARGEST", "WIDTHS", "Combination", "combination", "exponent", "power_rate"]

Array = NDArray[np.float64]
WIDTHS = (0.05, 0.1)  # of the two that are kept
LARGEST = 0.28  # width of the flat average is 0.289


def exponent(width: float) -> float:
    r"""Exponent of a width: :math:`\sigma^2 = (\gamma+1)\,(\gamma+2)^{-2}\,(\gamma+3)^{-1}`."""
    if not 0 < width <= LARGEST:
        raise InputError(f"width={width:g}: give a share of the training above 0, up to {LARGEST}")
    inverse = width**-2
    roots = np.roots([1.0, 7.0, 16.0 - inverse, 12.0 - inverse])
    return float(roots[np.isreal(roots)].real.max())


def power_rate(width: float) -> Callable[[int], float]:
    r"""Share of the old average kept after step 0, 1, 2, ...: :math:`(1 - 1/t)^{\gamma + 1}`.

    It gives the weights of step :math:`s` the integral of the profile from :math:`s - 1` to
    :math:`s`, exactly.
    """
    power = exponent(width) + 1
    return lambda step: (step / (step + 1)) ** power


def products(gamma: Array, t: Array, other_gamma: Array, other_t: Array) -> Array:
    r"""Integrals :math:`\int_0^\infty p_{\gamma,t}(s)\,p_{\gamma',t'}(s)\,ds`, broadcast."""
    least = np.minimum(t, other_t)
    scale = (gamma + 1) * (other_gamma + 1) / (gamma + other_gamma + 1)
    found: Array = scale * (least / t) ** (gamma + 1) * (least / other_t) ** (other_gamma + 1)
    return found / least


@dataclass(frozen=True)
class Combination:
    """Factors of the snapshots, which sum to one, and the error of the profile they make."""

    factors: tuple[float, ...]
    error: float  # root of the squared error of the profile, as a share of the profile's own


def combination(snapshots: Sequence[tuple[float, int]], width: float, step: int) -> Combination:
    """The combination of averages that is nearest to that of another width.

    Args:
        snapshots: Width and step of each average.
        width: The width that is wanted.
        step: The step up to which it averages.
    """
    if not snapshots:
        raise InputError("there are no snapshots: train with --set train.snapshot_every=N")
    gamma = np.array([exponent(w) for w, _ in snapshots])
    t = np.array([float(s) for _, s in snapshots])
    goal, end = np.array(exponent(width)), np.array(float(step))
    inner = products(gamma[:, None], t[:, None], gamma[None], t[None])
    wanted = products(gamma, t, goal, end)
    # The least squared error among those that sum to one, so that constant weights stay.
    count = len(t)
    system = np.ones((count + 1, count + 1))
    system[:count, :count], system[count, count] = inner * end, 0.0
    given = np.append(wanted * end, 1.0)
    factors = np.linalg.lstsq(system, given, rcond=1e-14)[0][:count]
    own = float(products(goal, end, goal, end))
    squared = own - 2 * float(factors @ wanted) + float(factors @ inner @ factors)
    return Combination(tuple(factors.tolist()), float(np.sqrt(max(0.0, squared) / own)))
