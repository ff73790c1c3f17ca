"""A residual network for vectors, tables and anything else without neighbourhoods."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idode.nets.config import MLPConfig
from idode.nets.layers import Dense, TimeCondition, fading, fourier_features, initialise

__all__ = ["MLP"]


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
    """Vectors ``(B, D)`` and times in [0, 1] to vectors; fresh, it returns its input.

    ``code`` is the length of a vector that is given beside the time.
    """

    def __init__(
        self, config: MLPConfig, generator: torch.Generator | None = None, code: int = 0
    ) -> None:
        super().__init__()
        self.config = config
        self.time = TimeCondition(config.width, flag=config.flag, code=code)
        self.dense_in = Dense(config.features * (5 if config.fourier else 1), config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.depth))
        self.norm_out = nn.LayerNorm(config.width)
        self.dense_out = Dense(config.width, config.features, zero=True)
        initialise(self, generator)

    def forward(
        self, x: Tensor, t: Tensor, flag: Tensor | None = None, code: Tensor | None = None
    ) -> Tensor:
        """``x`` is ``(B, D)``; ``t`` in [0, 1] and ``flag`` in {0, 1} are ``(B,)``.

        ``code`` is ``(B, code)``, where the network was made for one.
        """
        config = self.config
        strength = fading(t, config.fade)
        h = fourier_features(x, config.levels, strength) if config.fourier else x
        h = self.dense_in(h)
        condition = self.time(t, flag, code)
        for layer in self.layers:
            h = layer(h, condition)
        change: Tensor = self.dense_out(F.silu(self.norm_out(h)))
        return x + change
