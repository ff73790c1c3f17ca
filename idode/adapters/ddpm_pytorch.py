r"""denoising-diffusion-pytorch: ``GaussianDiffusion`` and its relatives.

Images are normalised inside, by default from [0, 1] to [-1, 1]. The discrete ones have a table of
:math:`\bar\alpha`; continuous time is told as :math:`\log\mathrm{SNR} = -\gamma`; the
``ElucidatedDiffusion`` is an EDM denoiser.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from idode.adapters.convention import (
    Convention,
    Named,
    refuse_time_table,
    signature,
    without_variances,
)
from idode.diffusion.clocks import LogSNR, NoiseLevel, TableTime
from idode.diffusion.wrapping import DataRange
from idode.errors import InputError, choose

__all__ = ["read", "recognises"]

OBJECTIVES = {"pred_noise": "noise", "pred_x0": "data", "pred_v": "normalized-velocity"}


def recognises(thing: object) -> bool:
    """A diffusion module of the library, by its parts."""
    discrete = all(hasattr(thing, name) for name in ("objective", "alphas_cumprod", "model"))
    continuous = hasattr(thing, "log_snr") and hasattr(thing, "model")
    elucidated = hasattr(thing, "preconditioned_network_forward")
    return isinstance(thing, nn.Module) and (discrete or continuous or elucidated)


def read(thing: Any) -> Convention:  # noqa: ANN401
    """The convention of the module."""
    kind = f"denoising-diffusion-pytorch {type(thing).__name__}"
    net = getattr(thing, "model", None) or thing.net
    if getattr(thing, "self_condition", False) or getattr(net, "self_condition", False):
        raise InputError(
            "the network is conditioned on its own last prediction, so its field depends on the "
            "path and is no ODE: train it with self_condition=False"
        )
    if hasattr(thing, "preconditioned_network_forward"):
        clock = NoiseLevel(float(thing.sigma_min), float(thing.sigma_max))
        call = Named(thing, lambda d, x, t: d.preconditioned_network_forward(x, t))
        return Convention(
            kind, call, "data", "ve", clock, 256, "[-1, 1]", _shape(thing), remarks=("EDM",)
        )
    if hasattr(thing, "log_snr"):
        ends = [-float(thing.log_snr(torch.tensor([t]))) for t in (0.0, 1.0)]
        predicts = "normalized-velocity" if "VParam" in type(thing).__name__ else "noise"
        return Convention(
            kind, _named(net), predicts, "vp", LogSNR(*ends), 256, "[-1, 1]", _shape(thing),
            remarks=("told log SNR",),
        )  # fmt: skip
    steps = len(thing.alphas_cumprod)
    refuse_time_table(net, steps)
    sequence = hasattr(thing, "seq_length")
    return Convention(
        kind,
        _named(net),
        choose("objective", thing.objective, OBJECTIVES),
        "vp",
        TableTime(thing.alphas_cumprod),
        None if sequence else 256,
        "bin-centres" if sequence else _range(thing),
        _shape(thing),
        remarks=(f"a table of {steps} steps", thing.objective),
    )


def _range(thing: Any) -> DataRange:  # noqa: ANN401
    """Where its pixels lie; the diffusion with guidance has no choice and no attribute for it."""
    normalize = getattr(thing, "normalize", None)
    return "[-1, 1]" if normalize is None or float(normalize(torch.zeros(()))) < 0 else "[0, 1]"


def _named(net: Any) -> Named:  # noqa: ANN401
    """The network; one with guidance would forget labels at random in evaluation mode too."""
    known = signature(net)
    call = partial(_call, cond_drop_prob=0.0) if "cond_drop_prob" in known else _call
    return Named(net, call, {"labels": "classes"} if "classes" in known else {})


def _call(net: Any, x: Tensor, time: Tensor, **given: Any) -> Tensor:  # noqa: ANN401
    return without_variances(net(x, time, **given), x)


def _shape(thing: Any) -> tuple[int, ...] | None:  # noqa: ANN401
    channels = getattr(thing, "channels", None)
    if channels is None:
        return None
    if hasattr(thing, "seq_length"):
        return int(channels), int(thing.seq_length)
    size = thing.image_size
    side = tuple(size) if isinstance(size, tuple | list) else (size, size)
    return int(channels), int(side[0]), int(side[1])
