r"""k-diffusion denoisers, and networks of EDM and EDM2: :math:`D(x;\sigma)` at :math:`\alpha = 1`.

They are taken as modules: EDM's own files are pickles, which run code when they are opened.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from idode.adapters.convention import Convention, Named
from idode.diffusion.clocks import NoiseLevel
from idode.errors import InputError

__all__ = ["read", "recognises"]

# EDM's own range of noise, for data of standard deviation 0.5.
SIGMAS, SIGMA_DATA = (0.002, 80.0), 0.5


def recognises(thing: object) -> bool:
    """A module with EDM's preconditioning, or k-diffusion's around a network of DDPM."""
    outer = hasattr(thing, "inner_model") or hasattr(thing, "round_sigma")
    return isinstance(thing, nn.Module) and hasattr(thing, "sigma_data") and outer


def read(thing: Any) -> Convention:  # noqa: ANN401
    """The convention of the denoiser."""
    if getattr(thing, "quantize", False):
        raise InputError(
            "the denoiser rounds noise levels to the steps of its table, so its field jumps: "
            "make it with quantize=False"
        )
    low, high = _sigmas(thing)
    known = hasattr(thing, "sigmas")
    shape = None
    if hasattr(thing, "img_resolution") and hasattr(thing, "img_channels"):
        shape = (thing.img_channels, thing.img_resolution, thing.img_resolution)
    return Convention(
        source=f"{'EDM' if _is_edm(thing) else 'k-diffusion'} {type(thing).__name__}",
        net=Named(thing, _call, {"labels": "class_labels"} if _is_edm(thing) else {}),
        predicts="data",
        schedule="ve",
        clock=NoiseLevel(low, high) if known else NoiseLevel(),
        levels=None if shape is None else 256,
        data_range="bin-centres" if shape is None else "[-1, 1]",
        shape=shape,
        gamma_min=None if shape is not None else 2 * math.log(low),
        gamma_max=2 * math.log(high),
        remarks=(f"sigma {low:.4g} to {high:.4g}",),
    )


def _sigmas(thing: Any) -> tuple[float, float]:  # noqa: ANN401
    """Noise the network knows: by its table, by its attributes, or as is usual for EDM."""
    scale = float(thing.sigma_data) / SIGMA_DATA
    low, high = (float(getattr(thing, name, math.nan)) for name in ("sigma_min", "sigma_max"))
    return (
        low if 0 < low < math.inf else SIGMAS[0] * scale,
        high if 0 < high < math.inf else SIGMAS[1] * scale,
    )


def _is_edm(thing: Any) -> bool:  # noqa: ANN401
    return hasattr(thing, "round_sigma")


def _call(net: Any, x: Tensor, sigma: Tensor, **condition: Tensor) -> Tensor:  # noqa: ANN401
    said: Tensor = net(x, sigma, **condition)
    return said
