"""From this library to others, where a network has an equivalent there."""

from __future__ import annotations

from typing import NoReturn

from idode.errors import InputError
from idode.nets.config import CustomNetConfig, MLPConfig, UNetConfig

__all__ = ["to_diffusers"]

REASONS = {
    UNetConfig: (
        "the U-Net keeps its resolution, takes Fourier features of its input and adds the input "
        "to its output, which no model of diffusers does"
    ),
    MLPConfig: "diffusers has no network for vectors with LayerNorm and a gamma clock",
    CustomNetConfig: "the network is your own, and diffusers builds only its own classes",
}


def to_diffusers(net: UNetConfig | MLPConfig | CustomNetConfig) -> NoReturn:
    """Say why a network cannot be a diffusers model: its classes compute something else.

    Weights alone would load into no class there and give other numbers in the nearest one.
    """
    raise InputError(
        f"this run has no equivalent in diffusers: {REASONS[type(net)]}. Its folder is "
        "config.json and model.safetensors: share it as it is, and read it with idode.load"
    )
