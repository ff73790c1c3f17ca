r"""score_sde: a network trained in continuous time, and its SDE.

VP and sub-VP: the network is given :math:`999\,t` and returns :math:`-\sigma` times the score,
data in [-1, 1]. VE: it is given :math:`\sigma` and returns the score, data in [0, 1].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from idode.adapters.convention import Convention, Named, pair
from idode.diffusion.clocks import LinearBeta, NoiseLevel
from idode.diffusion.paths import PathSchedule, PathTime

__all__ = ["read", "recognises"]

LABEL = 999.0


def recognises(thing: object) -> bool:
    """A network with an SDE, known by its marginals."""
    both = pair(thing)
    return both is not None and hasattr(both[1], "marginal_prob")


def read(thing: Any) -> Convention:  # noqa: ANN401
    """The convention of the SDE."""
    net, sde = thing
    source = f"score_sde network of {type(sde).__name__}"
    if hasattr(sde, "sigma_max"):
        clock = NoiseLevel(float(sde.sigma_min), float(sde.sigma_max))
        return Convention(source, Named(net, _call), "score", "ve", clock, 256, "[0, 1]")
    told = Named(net, lambda n, x, t, **c: n(x, LABEL * t, **c))
    if "subvp" in type(sde).__name__.lower():

        def alpha(t: Tensor) -> Tensor:
            scale: Tensor = sde.marginal_prob(torch.ones_like(t)[:, None], t)[0][:, 0]
            return scale

        path = PathTime(_rows(alpha), _rows(lambda t: sde.marginal_prob(t[:, None], t)[1]))
        return Convention(source, told, "noise", PathSchedule(path), path, 256, "[-1, 1]")
    linear = LinearBeta(float(sde.beta_0), float(sde.beta_1))
    return Convention(source, told, "noise", "vp", linear, 256, "[-1, 1]")


def _rows(f: Any) -> Any:  # noqa: ANN401
    """A function of a batch of times, for times of any shape."""
    return lambda t: f(t.reshape(-1)).reshape(t.shape)


def _call(net: Any, x: Tensor, time: Tensor, **condition: Tensor) -> Tensor:  # noqa: ANN401
    said: Tensor = net(x, time, **condition)
    return said
