r"""flow_matching: a velocity network and its path, :math:`x_t = \alpha_t x_1 + \sigma_t x_0`.

Its schedulers are asked for :math:`\alpha` and :math:`\sigma`; data is at time one.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from idode.adapters.convention import Convention, Named, flow_path, pair

__all__ = ["read", "recognises"]


def recognises(thing: object) -> bool:
    """A network with a path, or with the scheduler of one."""
    both = pair(thing)
    return both is not None and hasattr(getattr(both[1], "scheduler", both[1]), "snr_inverse")


def read(thing: Any) -> Convention:  # noqa: ANN401
    """The convention of the path's scheduler."""
    net, path = thing
    scheduler = getattr(path, "scheduler", path)

    def alpha(t: Tensor) -> Tensor:
        scale: Tensor = scheduler(t).alpha_t
        return scale

    def sigma(t: Tensor) -> Tensor:
        scale: Tensor = scheduler(t).sigma_t
        return scale

    schedule, clock = flow_path(alpha, sigma)
    return Convention(
        source=f"flow_matching velocity of {type(scheduler).__name__}",
        net=Named(net, lambda n, x, t, **c: n(x=x, t=t, **c)),
        predicts="velocity",
        schedule=schedule,
        clock=clock,
        remarks=("independent coupling of noise and data",),
    )
