r"""torchcfm: a velocity network and the flow matcher that trained it.

The matcher defines the path: :math:`\alpha(t)` is its mean for :math:`x_0 = 0, x_1 = 1`, and the
variance is that of its noise and of the base together, so with :math:`\sigma > 0` the prior at
:math:`t = 0` is :math:`\mathcal N(0, 1 + \sigma^2)`. Couplings by optimal transport and
Schrödinger bridges have no Gaussian path given the data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from idode.adapters.convention import Convention, Named, flow_path, pair, signature

__all__ = ["read", "recognises"]

COUPLED = ("ExactOptimalTransport", "SchrodingerBridge")


def recognises(thing: object) -> bool:
    """A network with a flow matcher."""
    both = pair(thing)
    return both is not None and all(
        hasattr(both[1], name) for name in ("compute_mu_t", "compute_sigma_t")
    )


def read(thing: Any) -> Convention:  # noqa: ANN401
    """The convention of the matcher's path."""
    net, matcher = thing
    kinds = [kind.__name__ for kind in type(matcher).__mro__]
    gaussian = not any(kind.startswith(COUPLED) for kind in kinds)

    def alpha(t: Tensor) -> Tensor:
        mean: Tensor = matcher.compute_mu_t(torch.zeros_like(t), torch.ones_like(t), t)
        return mean

    def sigma(t: Tensor) -> Tensor:
        base = matcher.compute_mu_t(torch.ones_like(t), torch.zeros_like(t), t)
        return torch.sqrt(base**2 + torch.as_tensor(matcher.compute_sigma_t(t)) ** 2)

    schedule, clock = flow_path(alpha, sigma)
    call, how = _calls(net)
    remarks = (how,) if gaussian else (how, "coupled: ODE only, no SDE bound")
    return Convention(
        source=f"torchcfm velocity of {type(matcher).__name__}",
        net=Named(net, call),
        predicts="velocity",
        schedule=schedule,
        clock=clock,
        gaussian_path=gaussian,
        remarks=remarks,
    )


def _calls(net: Any) -> tuple[Any, str]:  # noqa: ANN401
    """How the network takes its time: first, last, or as one more feature."""
    names = signature(net)
    if getattr(net, "time_varying", False) or len(names) == 1:
        return (
            lambda n, x, t, **c: n(torch.cat([x, t[:, None]], dim=-1), **c),
            "called as net(cat([x, t]))",
        )
    if names and names[0] in ("x", "xt", "x_t", "input", "sample"):
        return lambda n, x, t, **c: n(x, t, **c), "called as net(x, t)"
    return lambda n, x, t, **c: n(t, x, **c), "called as net(t, x)"
