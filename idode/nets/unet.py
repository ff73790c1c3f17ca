"""The U-Net of variational diffusion models, which the paper uses unchanged, for any image.

The published network never changes resolution: likelihood depends on fine detail. ``halvings``
makes it affordable on a laptop: the inner blocks run on a coarser grid, while the input, its
Fourier features and the final ``+ x`` stay at full resolution.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idode.errors import InputError
from idode.nets.config import UNetConfig
from idode.nets.layers import (
    Attention,
    Conv,
    ResidualBlock,
    TimeCondition,
    fading,
    fourier_features,
    initialise,
    with_skip,
)
from idode.nets.memory import RandomState, recomputed
from idode.nets.normalisation import SwishNorm
from idode.numerics import full_precision

__all__ = ["UNet"]


class Stage(nn.Module):
    """A residual block and, if asked for, attention."""

    def __init__(self, config: UNetConfig, inputs: int, *, attention: bool) -> None:
        super().__init__()
        self.block = ResidualBlock(
            inputs,
            config.width,
            condition=4 * config.width,
            groups=config.groups,
            dropout=config.dropout,
        )
        self.attention = (
            Attention(config.width, groups=config.groups) if attention else nn.Identity()
        )

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Map ``(B, inputs, H, W)`` to ``(B, width, H, W)``."""
        h: Tensor = self.attention(self.block(x, condition))
        return h


class UNet(nn.Module):
    """Images ``(B, C, H, W)`` and times in [0, 1] to images of the same shape.

    Fresh from ``generator`` it returns its input. The layers follow the layout of their kernels
    (channels-last); ``net.to(memory_format=torch.contiguous_format)`` undoes it, for example
    for ``torch.func.jvp``, which cannot normalise groups in that layout.

    ``code`` is the length of a vector that is given beside the time.
    """

    def __init__(
        self, config: UNetConfig, generator: torch.Generator | None = None, code: int = 0
    ) -> None:
        super().__init__()
        self.config, self.checkpointing = config, config.checkpointing
        width, colours = config.width, config.channels
        everywhere, depth = config.attention == "everywhere", config.depth
        self.time = TimeCondition(width, flag=config.flag, code=code)
        self.conv_in = Conv(colours * (5 if config.fourier else 1), width)
        self.down = nn.ModuleList(Stage(config, width, attention=everywhere) for _ in range(depth))
        self.middle1 = Stage(config, width, attention=config.attention != "none")
        self.middle2 = Stage(config, width, attention=False)
        self.up = nn.ModuleList(
            Stage(config, 2 * width, attention=everywhere) for _ in range(depth + 1)
        )
        self.norm_out = SwishNorm(config.groups, width)
        self.conv_out = Conv(width, colours, zero=True)
        # Block i halves its input if i is in here; skip i then meets a doubled image.
        spacing = depth / (config.halvings + 1)
        self.halving = {round(i * spacing) for i in range(1, config.halvings + 1)}
        initialise(self, generator)

    def forward(
        self, x: Tensor, t: Tensor, flag: Tensor | None = None, code: Tensor | None = None
    ) -> Tensor:
        """``x`` is ``(B, C, H, W)``; ``t`` in [0, 1] and ``flag`` in {0, 1} are ``(B,)``.

        ``code`` is ``(B, code)``, where the network was made for one.
        """
        multiple = 2 ** len(self.halving)
        if x.shape[2] % multiple or x.shape[3] % multiple:
            raise InputError(
                f"images of {x.shape[2]}x{x.shape[3]} pixels: this network needs sides that are "
                f"multiples of {multiple}; choose fewer halvings"
            )
        config = self.config
        strength = fading(t, config.fade)
        h = fourier_features(x, config.levels, strength) if config.fourier else x
        # Bins and times are finer than the 8 bits of bfloat16.
        with full_precision(x):
            h = self.conv_in(h)
            condition = self.time(t, flag, code)
        if self.checkpointing and torch.is_grad_enabled():
            h = self._frugal(h, condition)
        else:
            skips = self._descend(h, condition, 0, self.config.depth)
            h = self._climb(self._turn(skips.pop(), condition), skips, condition, 0)
        change: Tensor = self.conv_out(self.norm_out(h))
        return x + change

    def _descend(self, h: Tensor, condition: Tensor, start: int, stop: int) -> list[Tensor]:
        """Skips ``start..stop`` (both included) from skip ``start``."""
        skips = [h]
        for i in range(start, stop):
            h = F.avg_pool2d(skips[-1], 2) if i in self.halving else skips[-1]
            skips.append(self.down[i](h, condition))
        return skips

    def _turn(self, skip: Tensor, condition: Tensor) -> Tensor:
        """The middle, and the first block of the way up, which takes the last skip."""
        h = self.middle2(self.middle1(skip, condition), condition)
        turned: Tensor = self.up[0](with_skip(h, skip), condition)
        return turned

    def _climb(self, h: Tensor, skips: list[Tensor], condition: Tensor, start: int) -> Tensor:
        """Up past ``skips``, the first of which has the number ``start``."""
        for i in reversed(range(start, start + len(skips))):
            h = F.interpolate(h, scale_factor=2) if i in self.halving else h
            h = self.up[self.config.depth - i](with_skip(h, skips[i - start]), condition)
        return h

    def _frugal(self, h: Tensor, condition: Tensor) -> Tensor:
        """The same value in memory of order sqrt(depth), for more time.

        The skips alone are of order depth, so they are not kept: of each segment of the way
        down only the first is, and the segment of the way up that needs the others computes
        them again. One up and one down segment are ever in memory with all they save; at about
        eight times the size of a skip per block, segments of sqrt(depth / 8) blocks are best.
        """
        depth = self.config.depth
        size = math.ceil(math.sqrt(depth / 8))
        kept: list[tuple[int, int, Tensor, RandomState]] = []
        for start in range(0, depth, size):
            stop = min(start + size, depth)
            kept.append((start, stop, h, RandomState(h)))
            h = recomputed(self._descend_to, h, condition, start, stop)
        h = recomputed(self._turn, h, condition)
        for start, stop, skip, state in reversed(kept):
            h = recomputed(self._climb_from, h, skip, condition, start, stop, state)
        return h

    def _descend_to(self, h: Tensor, condition: Tensor, start: int, stop: int) -> Tensor:
        return self._descend(h, condition, start, stop)[-1]

    def _climb_from(
        self, h: Tensor, skip: Tensor, condition: Tensor, start: int, stop: int, state: RandomState
    ) -> Tensor:
        with state.replayed():
            skips = self._descend(skip, condition, start, stop - 1)
        return self._climb(h, skips, condition, start)
