r"""k-diffusion denoisers, and networks of EDM and EDM2: :math:`D(x;\sigma)` at :math:`\alpha = 1`.

They are taken as modules: EDM's own files are pickles, which run code when they are opened.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from idode.adapters.convention import Convention, Named, signature
from idode.diffusion.clocks import NoiseLevel
from idode.errors import InputError

__all__ = ["read", "recognises"]

# EDM's own range of noise, for data of standard deviation 0.5.
SIGMAS, SIGMA_DATA = (0.002, 80.0), 0.5


def recognises(thing: object) -> bool:
    """A module with EDM's preconditioning, or k-diffusion's around a network of DDPM."""
    if not isinstance(thing, nn.Module):
        return False
    return _is_edm(thing) or (hasattr(thing, "sigma_data") and hasattr(thing, "inner_model"))


def read(thing: Any) -> Convention:  # noqa: ANN401
    """The convention of the denoiser."""
    if getattr(thing, "quantize", False) or _rounds(thing):
        raise InputError(
            "the denoiser rounds noise levels to the steps of its table, so its field jumps: "
            "make it with quantize=False, or adapt the network inside with its table"
        )
    low, high = _stated(thing)
    scale = float(getattr(thing, "sigma_data", SIGMA_DATA)) / SIGMA_DATA
    least, most = low or SIGMAS[0] * scale, high if high < math.inf else SIGMAS[1] * scale
    shape = None
    if hasattr(thing, "img_resolution") and hasattr(thing, "img_channels"):
        shape = (thing.img_channels, thing.img_resolution, thing.img_resolution)
    return Convention(
        source=f"{'EDM' if _is_edm(thing) else 'k-diffusion'} {type(thing).__name__}",
        net=Named(thing, _call_of(thing), {"labels": "class_labels"} if _is_edm(thing) else {}),
        predicts="data",
        schedule="ve",
        clock=NoiseLevel(low, high),
        levels=None if shape is None else 256,
        data_range="bin-centres" if shape is None else "[-1, 1]",
        shape=shape,
        # What the denoiser does not state is usual for EDM; pixels may need less noise than that.
        gamma_min=None if shape is not None or low else 2 * math.log(least),
        gamma_max=None if high < math.inf else 2 * math.log(most),
        remarks=(f"sigma {least:.4g} to {most:.4g}",),
    )


def _stated(thing: Any) -> tuple[float, float]:  # noqa: ANN401
    """Noise the denoiser says it knows; EDM's own say 0 and infinity."""
    low, high = (float(getattr(thing, name, math.nan)) for name in ("sigma_min", "sigma_max"))
    return low if 0 < low < math.inf else 0.0, high if 0 < high < math.inf else math.inf


def _is_edm(thing: Any) -> bool:  # noqa: ANN401
    """Whether it has the attributes that EDM's samplers use; EDM2 no longer has the first."""
    return hasattr(thing, "round_sigma") or (
        hasattr(thing, "sigma_data") and hasattr(thing, "img_resolution")
    )


def _rounds(thing: Any) -> bool:  # noqa: ANN401
    """Whether noise levels are moved to the nearest of a table, as for networks of iDDPM."""
    if not hasattr(thing, "round_sigma"):
        return False
    sigmas = torch.tensor([0.0123, 0.456, 7.89])
    return not torch.allclose(torch.as_tensor(thing.round_sigma(sigmas)).float(), sigmas)


def _call_of(thing: Any) -> Callable[..., Tensor]:  # noqa: ANN401
    """How to call it: in single precision also where it would choose half on a GPU."""
    exact = {"force_fp32": True} if "force_fp32" in signature(thing) else {}

    def call(net: Any, x: Tensor, sigma: Tensor, **condition: Tensor) -> Tensor:  # noqa: ANN401
        said: Tensor = net(x, sigma, **condition, **exact)
        return said

    return call
