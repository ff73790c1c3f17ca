r"""An orthonormal basis in which the errors of a denoiser are less correlated than in pixels.

Gaussian noise is isotropic, so the forward process is diagonal in any orthonormal basis. A
colour rotation times a small discrete cosine transform (DCT) gives each coefficient an error
variance of its own, which a diagonal reverse step can match (docs/codec.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

__all__ = ["Basis", "patch_sides"]

LARGEST_PATCH = 8
LUMA_CHROMA = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (1.0, -2.0, 1.0))  # rows of squares 3, 2, 6


def patch_sides(height: int, width: int) -> list[int]:
    """Sides the DCT may have: divisors of both sides up to 8, the largest first.

    >>> patch_sides(32, 32), patch_sides(28, 28), patch_sides(31, 37)
    ([8, 4, 2, 1], [7, 4, 2, 1], [1])
    """
    both = math.gcd(height, width)
    return [n for n in range(LARGEST_PATCH, 0, -1) if both % n == 0]


@dataclass(frozen=True)
class Basis:
    """Images ``(B, C, H, W)`` to coefficients ``(B, P, K)`` of P patches, and back.

    ``K`` is C times the square of the patch's side. Both directions are float64 products with
    one orthogonal matrix.
    """

    shape: tuple[int, int, int]
    side: int

    @property
    def size(self) -> int:
        """Coefficients of a patch, K."""
        return self.shape[0] * self.side**2

    @property
    def patches(self) -> int:
        """Patches of an image, P."""
        return self.shape[1] * self.shape[2] // self.side**2

    @cached_property
    def matrix(self) -> Tensor:
        """Orthogonal ``(K, K)``; row 0 is the mean of a patch."""
        dct = _cosines(self.side)
        return torch.kron(_colours(self.shape[0]), torch.kron(dct, dct))

    def to_coefficients(self, x: Tensor) -> Tensor:
        """Float64 ``(B, C, H, W)`` to ``(B, P, K)``."""
        channels, height, width = self.shape
        n = self.side
        grid = x.reshape(-1, channels, height // n, n, width // n, n).permute(0, 2, 4, 1, 3, 5)
        rows = grid.reshape(-1, self.size) @ self.matrix.T
        return rows.reshape(len(x), self.patches, self.size)

    def to_pixels(self, c: Tensor) -> Tensor:
        """The inverse of :meth:`to_coefficients`."""
        channels, height, width = self.shape
        n = self.side
        rows = c.reshape(-1, self.size) @ self.matrix
        grid = rows.reshape(len(c), height // n, width // n, channels, n, n)
        return grid.permute(0, 3, 1, 4, 2, 5).reshape(len(c), *self.shape)


def _cosines(n: int) -> Tensor:
    """The orthonormal DCT-II ``(n, n)``."""
    k = torch.arange(n, dtype=torch.float64)
    rows = torch.cos(math.pi / n * (k[None] + 0.5) * k[:, None]) * math.sqrt(2 / n)
    rows[0] /= math.sqrt(2)
    return rows


def _colours(channels: int) -> Tensor:
    """Luma and two chroma for three channels, otherwise the channels themselves."""
    if channels != 3:
        return torch.eye(channels, dtype=torch.float64)
    rows = torch.tensor(LUMA_CHROMA, dtype=torch.float64)
    unit: Tensor = rows / rows.norm(dim=1, keepdim=True)
    return unit
