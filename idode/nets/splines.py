r"""Increasing maps of the unit interval onto itself, with slope and inverse in closed form.

Between the knots :math:`(x_k, y_k)` with slopes :math:`d_k` stands the monotone quotient of two
parabolas (Gregory and Delbourgo 1982), with :math:`\xi = (x - x_k)/w_k`, :math:`s = h_k/w_k`,
:math:`D = s + (d_{k+1} + d_k - 2s)\,\xi(1 - \xi)`:

.. math:: y = y_k + h_k\frac{s\xi^2 + d_k\xi(1 - \xi)}{D}, \qquad \frac{\mathrm dy}{\mathrm dx}
   = s^2\,\frac{d_{k+1}\xi^2 + 2s\,\xi(1 - \xi) + d_k(1 - \xi)^2}{D^2}
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Spline", "spline"]

# Least width and height of a piece, in shares of an equal one, and least slope at a knot: they
# keep log-slopes bounded, whatever a network says.
LEAST = 1e-3
UNIT = math.log(math.e - 1)  # softplus is 1 here


@dataclass(frozen=True)
class Spline:
    """One map for each element of ``(*)``, from 0 to 1."""

    x: Tensor  # (*, K+1) knots
    y: Tensor  # (*, K+1)
    slope: Tensor  # (*, K+1)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Value and log-slope at ``x``, both ``(*)``."""
        x0, w, y0, h, left, right = self._piece(self.x, x)
        s, xi = h / w, ((x - x0) / w).clamp(0, 1)
        y = y0 + h * (s * xi**2 + left * xi * (1 - xi)) / self._bottom(s, left, right, xi)
        return y, self._log_slope(s, left, right, xi)

    def inverse(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The ``x`` with this value, and the log-slope of the map there, both ``(*)``."""
        x0, w, y0, h, left, right = self._piece(self.y, y)
        s, rise = h / w, (y - y0).clamp_min(0)
        bend = rise * (right + left - 2 * s)
        a, b, c = h * (s - left) + bend, h * left - bend, -s * rise
        # The root that stays finite where the parabola is a line, written without cancellation.
        xi = (2 * c / (-b - (b**2 - 4 * a * c).clamp_min(0).sqrt())).clamp(0, 1)
        return x0 + w * xi, self._log_slope(s, left, right, xi)

    def _piece(self, knots: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        """Left ends, sizes and slopes at both ends of the pieces in which ``at`` lies."""
        k = (at[..., None] >= knots[..., 1:-1]).sum(-1, keepdim=True)

        def pick(values: Tensor, i: Tensor) -> Tensor:
            return values.gather(-1, i)[..., 0]

        x0, y0 = pick(self.x, k), pick(self.y, k)
        w, h = pick(self.x, k + 1) - x0, pick(self.y, k + 1) - y0
        return x0, w, y0, h, pick(self.slope, k), pick(self.slope, k + 1)

    @staticmethod
    def _bottom(s: Tensor, left: Tensor, right: Tensor, xi: Tensor) -> Tensor:
        return s + (right + left - 2 * s) * xi * (1 - xi)

    def _log_slope(self, s: Tensor, left: Tensor, right: Tensor, xi: Tensor) -> Tensor:
        top = right * xi**2 + 2 * s * xi * (1 - xi) + left * (1 - xi) ** 2
        return 2 * s.log() + top.log() - 2 * self._bottom(s, left, right, xi).log()


def spline(raw: Tensor) -> Spline:
    """A map from any ``3 K + 1`` real numbers, ``(*, 3 K + 1)``; noughts give the identity."""
    k = raw.shape[-1] // 3
    widths, heights, slopes = raw[..., :k], raw[..., k : 2 * k], raw[..., 2 * k :]
    slope = LEAST + (1 - LEAST) * F.softplus(slopes + UNIT)
    return Spline(_knots(widths), _knots(heights), slope)


def _knots(raw: Tensor) -> Tensor:
    shares = LEAST / raw.shape[-1] + (1 - LEAST) * torch.softmax(raw, dim=-1)
    inner = shares.cumsum(-1)[..., :-1]
    ends = torch.zeros_like(raw[..., :1])
    return torch.cat([ends, inner, ends + 1], dim=-1)
