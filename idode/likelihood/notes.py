"""What a reader must know about a bound whose clock is too short at either end."""

from __future__ import annotations

import math

__all__ = ["early_end", "loose_bound"]

LOOSE = 0.05  # bits/dim from which a loose bound is said; by the three-sigma rule it is 0.004
MISMATCH = 0.005  # bits/dim that the prior may cost before it is said


def loose_bound(gamma: float, levels: int) -> tuple[str, ...]:
    r"""What noise wider than a bin may cost the truncated normal.

    Levels without neighbours spread over a normal of which only :math:`Z` lies in their bin, so
    the bound misses :math:`-\log_2 Z` bits/dim of the truth; smooth data fills the bins evenly
    and loses little.

    >>> "up to 1.72 bits/dim" in loose_bound(-9.21, 256)[0], loose_bound(-13.29, 256)
    (True, ())
    """
    tau = math.exp(-gamma / 2) / levels  # half a bin, in standard deviations
    cost = -math.log2(math.erf(tau / math.sqrt(2)))
    if cost < LOOSE:
        return ()
    return (
        f"the least noise, gamma {gamma:.2f}, is {0.5 / tau:.2g} of a bin of {levels} levels: the "
        f"bound may be loose by up to {cost:.2f} bits/dim (by so much where levels are isolated, "
        "by little where the data is smooth); to remove this, start lower with the network held "
        "at its last time: extend=True in wrap or adapt, diffusers:FOLDER?extend=true for a "
        "command; a learned dequantization recovers only what the shape of the noise inside a "
        "bin costs",
    )


def early_end(excess: float) -> tuple[str, ...]:
    """Whether the end of the paths is the prior, as far as it matters.

    Args:
        excess: Of :func:`idode.likelihood.prior.prior_cost`, bits/dim.
    """
    if excess < MISMATCH:
        return ()
    return (
        "the paths end before the data has drowned in noise, so the prior may be wrong by "
        f"{excess:.4f} bits/dim: choose a larger gamma_max if the network knows one",
    )
