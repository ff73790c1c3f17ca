r"""A dequantization that is learned: another one, whose uniform noise a flow bends first.

With the base's map :math:`x = T(v')` and the flow :math:`v' = F(v)`, the density of a draw is
:math:`-\log q = \log|T'| + \log|F'|` (math.md: learned-dequantization). A fresh flow is the
identity, so that learning starts from the base.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from idode.diffusion.model import DiffusionODE
from idode.errors import InputError
from idode.likelihood.dequantization import (
    Bins,
    Dequantization,
    Draw,
    TruncatedNormal,
    Uniform,
    centres,
    check_pixels,
)
from idode.nets.bin_flow import BinFlow

__all__ = ["BASES", "Learned"]

BASES: dict[str, type[TruncatedNormal] | type[Uniform]] = {
    "tn": TruncatedNormal,
    "uniform": Uniform,
}


@dataclass(frozen=True)
class Learned(Dequantization):
    """Noise inside the bin that a flow chose for the image.

    Args:
        base: What a fresh flow is; its start says where on the clock the flow was trained.
        flow: Bends the uniform noise.
        levels: Grey levels of the data it was trained on.
    """

    base: Dequantization
    flow: BinFlow
    levels: int
    closed_form = False

    @property
    def start(self) -> float | None:  # type: ignore[override]
        """Start of the base dequantization."""
        return self.base.start

    def to_json(self) -> dict[str, Any]:
        """Its kind and what it is for; the weights are in the run."""
        return {"kind": self.name, "base": self.base.to_json(), "levels": self.levels}

    def gamma(self, model: DiffusionODE) -> float:
        """Noise level of the base, for data of its own number of levels."""
        if model.levels != self.levels:
            raise InputError(
                f"the dequantizer is for {self.levels} levels, and the model's data has "
                f"{model.levels}: train one for these"
            )
        return self.base.gamma(model)

    def draw(self, pixels: Tensor, noise: Tensor, bins: Bins) -> Draw:
        """Bend the noise, then draw from the base; no mean is known in closed form."""
        check_pixels(pixels, self.levels)
        bent, log_slope = self.flow(noise, centres(pixels, self.levels, noise.dtype))
        drawn = self.base.draw(pixels, bent, bins)
        weight = drawn.weight + log_slope.double()
        return Draw(drawn.x, weight, weight)
