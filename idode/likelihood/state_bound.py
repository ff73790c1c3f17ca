r"""How unlikely a state is under the diffusion SDE, from one noise level: a loss for noise.

.. math:: -\log p_s(x) \le \mathbb E[-\log p_{\max}(x_{\max})] + \int_{\gamma_s}^{\gamma_{\max}}
   \mathbb E\Big[\tfrac12\|\hat\epsilon\|^2 - r\,\epsilon\cdot\hat\epsilon\Big]
   - d\,\dot{(\log\alpha)}\;\mathrm d\gamma

over the diffusion that starts at :math:`x` (math.md: state-bound). It is the first-order loss
seen from a state instead of from clean data, and its gradient reaches :math:`x`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from idode.diffusion.model import DiffusionODE
from idode.diffusion.noise_levels import NoiseLevelDistribution, Times
from idode.numerics import check_range, clock_at, double, like, per_sample

__all__ = ["Fading", "state_bound"]

NEAREST = 1e-6  # least noise added to a state, of the whole: below it float32 sees no difference


@dataclass(frozen=True)
class Fading(NoiseLevelDistribution):
    r""":math:`p \propto e^{-\gamma/2}`: as fast as noise forgets where in its bin a state was."""

    gamma_min: float
    gamma_max: float

    def __post_init__(self) -> None:
        check_range(self.gamma_min, self.gamma_max)

    @property
    def _above(self) -> float:
        """Mass of the endless exponential above the range."""
        return math.exp((self.gamma_min - self.gamma_max) / 2)

    def density(self, gamma: Tensor) -> Tensor:
        """An exponential, cut."""
        return torch.exp((self.gamma_min - gamma) / 2) / (2 * (1 - self._above))

    def sf(self, gamma: Tensor) -> Tensor:
        """Mass above ``gamma``."""
        return (torch.exp((self.gamma_min - gamma) / 2) - self._above) / (1 - self._above)

    def isf(self, mass: Tensor) -> Tensor:
        """The gamma with this mass above it."""
        return self.gamma_min - 2 * torch.log(self._above + mass * (1 - self._above))


def state_bound(model: DiffusionODE, x: Tensor, eps: Tensor, times: Times, start: float) -> Tensor:
    """One unbiased draw of the bound on ``-log p`` of each state, nats ``(B,)``.

    Both signs of the noise are used: near the start ``r`` grows without limit, and only what is
    odd in the noise cancels it.

    Args:
        model: The diffusion, fixed or not.
        x: States at ``start``, ``(B, *)``; gradients flow to them.
        eps: Standard normal noise ``(B, *)``.
        times: Noise levels above ``start``, and their density.
        start: Where on the clock the states are.
    """
    s, dim = model.schedule, x[0].numel()
    began = clock_at(start, x)
    gamma = times.gamma.to(began.device)
    fresh = -torch.expm1(began - gamma).clamp_max(-NEAREST)  # share of the noise that is new
    scale = like(torch.exp(s.log_alpha(gamma) - s.log_alpha(began)), x)
    shift = like(s.sigma(gamma) * fresh.sqrt(), x) * eps
    said = model.noise(torch.cat([scale * x + shift, scale * x - shift]), gamma.repeat(2))
    plus, minus = double(said).chunk(2)
    square = per_sample(plus**2 + minus**2) / 4
    along = per_sample((plus - minus) * double(eps)) / 2 * torch.rsqrt(fresh)
    rate = square - along - dim * s.dlog_alpha(gamma)
    return _prior(model, x, began) + rate / times.density.to(began.device)


def _prior(model: DiffusionODE, x: Tensor, began: Tensor) -> Tensor:
    """Mean of ``-log p`` at the end of the clock, in closed form, ``(B,)``."""
    s, dim = model.schedule, x[0].numel()
    end = clock_at(model.gamma_max, x)
    fresh = -torch.expm1(began - end)
    scale = torch.exp(s.log_alpha(end) - s.log_alpha(began) - s.log_sigma(end))
    square = scale**2 * per_sample(double(x) ** 2) + dim * fresh
    return square / 2 + dim * (s.log_sigma(end) + 0.5 * math.log(2 * math.pi))
