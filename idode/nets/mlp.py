"""A residual network for vectors, tables and anything else without neighbourhoods."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idode.dataclass_io import at_least, later
from idode.errors import InputError
from idode.nets.layers import Dense, TimeCondition, fading, fourier_features, initialise

__all__ = ["MLP", "MLPConfig"]


@dataclass(frozen=True)
class MLPConfig:
    """What a network for vectors is made of.

    Args:
        features: Length of a vector.
        levels: Levels of an entry, which set the Fourier frequencies; unused without them.
        width: Units inside.
        depth: Residual blocks.
        dropout: Rate inside each block, while training.
        fourier: Whether sines and cosines of x are given beside x: for discrete data.
        flag: Whether the augmentation flag is an input.
        fade: Time by which the sines and cosines have faded to 1/e; 0 keeps them.
    """

    features: int
    levels: int = 256
    width: int = 128
    depth: int = 3
    dropout: float = 0.0
    fourier: bool = False
    flag: bool = False
    fade: float = later(0.0)

    def __post_init__(self) -> None:
        at_least(self, features=1, levels=2, width=4, depth=1)
        if self.width % 2:
            raise InputError(f"width={self.width}: must be even")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout={self.dropout}: must be at least 0 and less than 1")
        at_least(self, fade=0)
        if self.fade and not self.fourier:
            raise InputError(f"fade={self.fade:g}: needs fourier=true, whose features it fades")


class Layer(nn.Module):
    """``x + dense2(drop(act(dense1(act(x)) + condition)))`` with act = swish of LayerNorm."""

    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        width = config.width
        self.norm1 = nn.LayerNorm(width)
        self.dense1 = Dense(width, width)
        self.condition = Dense(4 * width, width, bias=False, zero=True)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(config.dropout)
        self.dense2 = Dense(width, width, zero=True)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Map ``(B, width)`` to the same shape."""
        h = self.dense1(F.silu(self.norm1(x))) + self.condition(condition)
        branch: Tensor = self.dense2(self.dropout(F.silu(self.norm2(h))))
        return x + branch


class MLP(nn.Module):
    """Vectors ``(B, D)`` and times in [0, 1] to vectors; fresh, it returns its input."""

    def __init__(self, config: MLPConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.time = TimeCondition(config.width, flag=config.flag)
        self.dense_in = Dense(config.features * (5 if config.fourier else 1), config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.depth))
        self.norm_out = nn.LayerNorm(config.width)
        self.dense_out = Dense(config.width, config.features, zero=True)
        initialise(self, generator)

    def forward(self, x: Tensor, t: Tensor, flag: Tensor | None = None) -> Tensor:
        """``x`` is ``(B, D)``; ``t`` in [0, 1] and ``flag`` in {0, 1} are ``(B,)``."""
        config = self.config
        strength = fading(t, config.fade)
        h = fourier_features(x, config.levels, strength) if config.fourier else x
        h = self.dense_in(h)
        condition = self.time(t, flag)
        for layer in self.layers:
            h = layer(h, condition)
        change: Tensor = self.dense_out(F.silu(self.norm_out(h)))
        return x + change
