r"""A conditional flow on the unit cube: noise inside the bins that knows the image.

Uniform numbers :math:`v` become :math:`v'` by coupling layers: one colour of a checkerboard is
bent by splines that look at the image and at the other colour; then the other way round. Density
and inverse are exact, and a fresh flow is the identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idode.errors import InputError
from idode.nets.layers import Conv, initialise
from idode.nets.splines import Spline, spline
from idode.numerics import per_sample

__all__ = ["BinFlow", "BinFlowConfig"]

MAX_SIZE = 1024  # of each number below: files come from strangers


@dataclass(frozen=True)
class BinFlowConfig:
    """Size of a flow.

    Args:
        channels: Of the image; 1 for data that is not an image.
        width: Channels inside.
        layers: Couplings; two reach every element once.
        pieces: Of each spline.
    """

    channels: int
    width: int = 32
    layers: int = 4
    pieces: int = 8

    def __post_init__(self) -> None:
        least = {"channels": 1, "width": 1, "layers": 1, "pieces": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= MAX_SIZE:
                raise InputError(f"{name} must be {low} to {MAX_SIZE}, got {value!r:.80}")


class _Look(nn.Module):
    """What the splines should know of the image, ``(B, C, H, W)`` to ``(B, width, H, W)``."""

    def __init__(self, config: BinFlowConfig) -> None:
        super().__init__()
        self.into = Conv(config.channels, config.width)
        self.first = Conv(config.width, config.width)
        self.second = Conv(config.width, config.width, zero=True)

    def forward(self, image: Tensor) -> Tensor:
        h: Tensor = self.into(image)
        branch: Tensor = self.second(F.silu(self.first(F.silu(h))))
        return h + branch


class _Coupling(nn.Module):
    """Splines for every element, from the image and the elements that stay."""

    def __init__(self, config: BinFlowConfig) -> None:
        super().__init__()
        self.numbers = 3 * config.pieces + 1
        self.into = Conv(2 * config.channels + config.width, config.width)
        self.inside = Conv(config.width, config.width, 1)
        self.out = Conv(config.width, config.channels * self.numbers, zero=True)

    def forward(self, v: Tensor, stays: Tensor, seen: Tensor) -> Spline:
        shown = torch.where(stays, 2 * v - 1, 0.0).to(seen.dtype)
        colour = stays.to(seen.dtype).expand_as(shown)
        h = F.silu(self.into(torch.cat([shown, colour, seen], dim=1)))
        raw: Tensor = self.out(F.silu(self.inside(h)))
        batch, _, height, width = raw.shape
        raw = raw.reshape(batch, -1, self.numbers, height, width).movedim(2, -1)
        return spline(raw.to(v.dtype))


class BinFlow(nn.Module):
    """The flow; images are ``(B, C, H, W)`` of any size, other data ``(B, *)`` one long row."""

    def __init__(self, config: BinFlowConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.look = _Look(config)
        self.couplings = nn.ModuleList(_Coupling(config) for _ in range(config.layers))
        initialise(self, generator)

    def forward(self, v: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        r"""Bend the noise.

        Args:
            v: Numbers in (0, 1), ``(B, *)``. Splines have their precision, the networks that
                of their weights.
            image: The image on [-1, 1], ``(B, *)``.

        Returns:
            :math:`v'` in (0, 1), ``(B, *)``, and :math:`\log|\partial v'/\partial v|`, ``(B,)``.
        """
        y, image = self._as_images(v), self._as_images(image)
        seen, total = self._seen(image), v.new_zeros(len(v))
        for coupling, stays in self._steps(y):
            bent, log_slope = coupling(y, stays, seen)(y)
            y = torch.where(stays, y, bent)
            total = total + per_sample(torch.where(stays, 0.0, log_slope))
        return y.reshape(v.shape), total

    def inverse(self, v: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        r"""The noise that becomes ``v``, and :math:`\log|\partial v'/\partial v|` there.

        Its negative is the log-density of ``v`` given the image, for uniform noise.
        """
        y, image = self._as_images(v), self._as_images(image)
        seen, total = self._seen(image), v.new_zeros(len(v))
        for coupling, stays in reversed(list(self._steps(y))):
            bent, log_slope = coupling(y, stays, seen).inverse(y)
            y = torch.where(stays, y, bent)
            total = total + per_sample(torch.where(stays, 0.0, log_slope))
        return y.reshape(v.shape), total

    def _as_images(self, x: Tensor) -> Tensor:
        x = x if x.ndim == 4 else x.flatten(1)[:, None, None]
        if x.shape[1] != self.config.channels:
            raise InputError(
                f"the dequantizer is for {self.config.channels} channels, the data has "
                f"{x.shape[1]}: train one for it"
            )
        return x

    def _seen(self, image: Tensor) -> Tensor:
        weight = self.look.into.weight
        seen: Tensor = self.look(image.to(weight.dtype))
        return seen

    def _steps(self, x: Tensor) -> Iterator[tuple[nn.Module, Tensor]]:
        """The couplings, and which elements of the checkerboard stay in each."""
        c, h, w = (torch.arange(n, device=x.device) for n in x.shape[1:])
        colour = (c[:, None, None] + h[:, None] + w) % 2 == 0
        for i, coupling in enumerate(self.couplings):
            yield coupling, colour if i % 2 else ~colour
