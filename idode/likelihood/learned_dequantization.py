r"""A dequantization that is learned: another one, whose uniform noise a flow bends first.

With the base's map :math:`x = T(v')` and the flow :math:`v' = F(v)`, the density of a draw is
:math:`-\log q = \log|T'| + \log|F'|` (math.md: learned-dequantization). A fresh flow is the
identity, so that learning starts from the base.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from idode.diffusion.schedules import Schedule
from idode.errors import choose
from idode.likelihood.dequantization import (
    Dequantization,
    Draw,
    TruncatedNormal,
    Uniform,
    centres,
    check_pixels,
)
from idode.nets.bin_flow import BinFlow

__all__ = ["BASES", "Learned", "base"]

BASES: dict[str, Callable[[Schedule, float, int], Dequantization]] = {
    "tn": TruncatedNormal,
    "uniform": lambda schedule, gamma, levels: Uniform(gamma, levels),
}


def base(name: str, schedule: Schedule, gamma: float, levels: int) -> Dequantization:
    """What a fresh flow is, by name."""
    return choose("base", name, BASES)(schedule, gamma, levels)


@dataclass(frozen=True)
class Learned(Dequantization):
    """Noise inside the bin that a flow chose for the image."""

    base: Dequantization
    flow: BinFlow
    levels: int
    gamma: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", self.base.gamma)

    def draw(self, pixels: Tensor, noise: Tensor) -> Draw:
        """Bend the noise, then draw from the base; no mean is known in closed form."""
        check_pixels(pixels, self.levels)
        bent, log_slope = self.flow(noise, centres(pixels, self.levels, noise.dtype))
        drawn = self.base.draw(pixels, bent)
        weight = drawn.weight + log_slope.double()
        return Draw(drawn.x, weight, weight)
