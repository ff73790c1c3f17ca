r"""zuko: continuous normalising flows, an ODE from data at :math:`t_0` to the base at :math:`t_1`.

Such a flow is no diffusion: there is no noise level behind its time. Gamma is then time on
another scale, so wide that :math:`\alpha` and :math:`\sigma` are exactly one at its ends.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from idode.adapters.convention import Convention, Named
from idode.diffusion.clocks import ScaledGamma
from idode.errors import InputError

__all__ = ["read", "recognises"]

END = 40.0  # sigmoid(40) is one in float64


def recognises(thing: object) -> bool:
    """A flow: a transform and a base."""
    return hasattr(thing, "transform") and hasattr(thing, "base")


def read(thing: Any) -> Convention:  # noqa: ANN401
    """The flow's velocity, on its own time."""
    transform = thing.transform
    if not (hasattr(transform, "f") and hasattr(transform, "times")):
        raise InputError(
            f"a {type(transform).__name__} is not a flow along an ODE: only zuko's CNF is one"
        )
    base = thing.base()
    mean, std = base.mean, base.stddev
    if not (torch.all(mean == 0) and torch.all(std == 1)):
        raise InputError("the flow's base must be the standard normal distribution")
    t0, t1 = (float(t) for t in transform.times)

    def call(net: Any, x: Tensor, time: Tensor, context: Tensor | None = None) -> Tensor:  # noqa: ANN401
        velocity: Tensor = net.f(t0 + (t1 - t0) * time, x, context)
        return (t1 - t0) * velocity

    return Convention(
        source=f"zuko {type(thing).__name__}",
        net=Named(transform, call),
        predicts="velocity",
        schedule="vp",
        clock=ScaledGamma(-END, END),
        shape=tuple(mean.shape),
        gamma_min=-END,
        gamma_max=END,
        gaussian_path=False,
        remarks=("a flow of its own: ODE only, no SDE bound",),
    )
