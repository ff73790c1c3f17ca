r"""improved-diffusion, guided-diffusion and DiT: a network and its ``GaussianDiffusion``.

A table of :math:`\bar\alpha` as in DDPM, on [-1, 1]. A network with learned variances has twice
the channels, and the first half is the prediction. With ``rescale_timesteps`` it is told times
out of 1000 whatever the number of steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from idode.adapters.convention import (
    Convention,
    Named,
    pair,
    refuse_time_table,
    without_variances,
)
from idode.diffusion.clocks import TableTime
from idode.errors import InputError

__all__ = ["read", "recognises"]

PREDICTIONS = {"EPSILON": "noise", "START_X": "data"}


def recognises(thing: object) -> bool:
    """A network with a diffusion that says what its mean type is."""
    both = pair(thing)
    return both is not None and all(
        hasattr(both[1], name) for name in ("model_mean_type", "alphas_cumprod")
    )


def read(thing: Any) -> Convention:  # noqa: ANN401
    """The convention of the diffusion."""
    net, diffusion = thing
    table = torch.as_tensor(diffusion.alphas_cumprod)
    steps = len(table)
    kept = list(getattr(diffusion, "timestep_map", range(steps)))
    if kept != list(range(getattr(diffusion, "original_num_steps", steps))):
        raise InputError(
            f"the diffusion keeps {steps} of its steps, which says too little about the noise "
            "between them: create it with timestep_respacing=''"
        )
    prediction = getattr(diffusion.model_mean_type, "name", str(diffusion.model_mean_type))
    if prediction not in PREDICTIONS:
        raise InputError(
            f"a network that predicts {prediction} cannot be converted: only "
            f"{' and '.join(PREDICTIONS)} can"
        )
    refuse_time_table(net, steps)
    told = 1000 / steps if getattr(diffusion, "rescale_timesteps", False) else 1.0
    size, channels = (getattr(net, name, None) for name in ("image_size", "in_channels"))

    def call(n: Any, x: Tensor, t: Tensor, **c: Tensor) -> Tensor:  # noqa: ANN401
        return without_variances(n(x, told * t, **c), x)

    return Convention(
        source=f"guided-diffusion {type(net).__name__} with {type(diffusion).__name__}",
        net=Named(net, call, {"labels": "y"}),
        predicts=PREDICTIONS[prediction],
        schedule="vp",
        clock=TableTime(table),
        levels=256,
        data_range="[-1, 1]",
        shape=(channels, size, size) if isinstance(size, int) and channels else None,
        remarks=(f"a table of {steps} steps",),
    )
