r"""3x3 convolution on CPU with a weight gradient at half to a third of the price.

The weight gradient of oneDNN takes about two forward passes of the same convolution. Winograd's
minimal filtering F(3x3, 4x4) needs 36 products where a 4x4 tile of outputs has 144. With d the 6x6
input tile under it and :math:`\dot y` the gradient of its outputs,

.. math:: \dot w = A \Big[\sum_{tiles} (G \dot y G^T) \odot (B d B^T)\Big] A^T ,

a product of matrices for each of the 36 places. Its relative error in float32 is about 1e-6, as
the library's is on a batch of 32x32 images; on a few pixels the library errs less.
``benchmarks/networks.py --only gradients`` measures both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F
from torch.nn.grad import conv2d_input

from idode.nets.fast_backward import applicable, check_first_order
from idode.numerics import autocast_dtype

__all__ = ["convolve", "pays", "weight_gradient"]

LEAST_CHANNELS = 64  # with fewer, the transforms of the tiles cost more than they save
EXACT = (torch.float32, torch.float64)  # the transforms lose digits, which others lack
ENTRIES = 2**18  # of input and output in a piece: a transformed tile is used from the cache
TILE, KERNEL, PLACES = 4, 3, 6
POINTS = (0.0, 1.0, -1.0, 0.5, -2.0)  # where polynomials are multiplied; 2 and -2 err more


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether :func:`convolve` trains faster than the library's convolution, and may be used."""
    return (
        applicable(x, weight)
        and x.dtype == weight.dtype in EXACT
        and autocast_dtype(x) is None  # the library's convolution would be of fewer digits
        and weight.shape[2:] == (KERNEL, KERNEL)
        and min(weight.shape[:2]) >= LEAST_CHANNELS
        and x.shape[2] % TILE == x.shape[3] % TILE == 0  # padding would cost more than it saves
        and x.numel() > 0
    )


def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``conv2d(x, weight, bias, padding=1)`` of ``(B, C, H, W)``, H and W multiples of 4."""
    y: Tensor = Convolution.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return y


class Convolution(torch.autograd.Function):
    """The library's convolution with our weight gradient, for training of the first order."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` to ``(B, O, H, W)``."""
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, bias, padding=1)

    @staticmethod
    def backward(
        ctx: FunctionCtx, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of input, weight and bias from that of the output."""
        check_first_order()
        x, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad  # type: ignore[attr-defined]
        grad_x = grad_weight = None
        if needs_x:
            grad_x = conv2d_input(x.shape, weight, grad, padding=1)  # type: ignore[no-untyped-call]
        if needs_weight:
            grad_weight = weight_gradient(x, grad)
        return grad_x, grad_weight, grad.sum((0, 2, 3)) if needs_bias else None


def weight_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """Gradient ``(O, C, 3, 3)`` from inputs ``(B, C, H, W)`` and ``grad`` ``(B, O, H, W)``."""
    (batch, inputs, height, width), outputs = x.shape, grad.shape[1]
    rows, columns = height // TILE, width // TILE
    wanted = max(1, ENTRIES // (height * width * (inputs + outputs)))
    size = max(n for n in range(1, min(wanted, batch) + 1) if batch % n == 0)
    grid = (size, rows, columns)
    images, gradients = x.permute(0, 2, 3, 1), grad.permute(0, 2, 3, 1)
    padded = x.new_zeros(size, height + 2, width + 2, inputs)
    patches, half_way, tiles = (x.new_empty(PLACES, PLACES, *grid, inputs) for _ in range(3))
    blocks, half_spread, spread = (
        x.new_empty(*places, *grid, outputs)
        for places in ((TILE, TILE), (PLACES, TILE), (PLACES, PLACES))
    )
    total = x.new_zeros(PLACES**2, outputs, inputs)
    a, b, g = (m.to(x.dtype) for m in _transforms())
    for start in range(0, batch, size):
        piece = slice(start, start + size)
        padded[:, 1:-1, 1:-1] = images[piece]
        _transform(b, patches.copy_(_overlapping(padded)), half_way, tiles)
        split = gradients[piece].view(size, rows, TILE, columns, TILE, outputs)
        _transform(g, blocks.copy_(split.permute(2, 4, 0, 1, 3, 5)), half_spread, spread)
        total.baddbmm_(spread.flatten(0, 1).flatten(1, 3).mT, tiles.flatten(0, 1).flatten(1, 3))
    found = torch.kron(a, a) @ total.flatten(1)
    return found.view(KERNEL, KERNEL, outputs, inputs).permute(2, 3, 0, 1)


def _transform(m: Tensor, patches: Tensor, half_way: Tensor, out: Tensor) -> None:
    """``m d m^T`` of the first two axes of ``(p, p, ...)``, into ``(q, q, ...)``."""
    q, p = m.shape
    torch.mm(m, patches.view(p, -1), out=half_way.view(q, -1))
    torch.bmm(m.expand(q, q, p), half_way.view(q, p, -1), out=out.view(q, q, -1))


def _overlapping(padded: Tensor) -> Tensor:
    """The 6x6 tiles of ``(n, H + 2, W + 2, C)`` every 4 pixels, ``(6, 6, n, H/4, W/4, C)``."""
    n, height, width, channels = padded.shape
    image, row, pixel, one = padded.stride()
    shape = (PLACES, PLACES, n, height // TILE, width // TILE, channels)
    return padded.as_strided(shape, (row, pixel, image, TILE * row, TILE * pixel, one))


@cache
def _transforms() -> tuple[Tensor, Tensor, Tensor]:
    r"""A, B and G of Cook and Toom, ``(3, 6)``, ``(6, 6)`` and ``(6, 4)``, in float64.

    Of one axis: :math:`w_i = \sum_k y_k d_{k+i}` is the transpose of a product of polynomials of
    degrees 2 and 3, which six values determine: those at the points, and the leading coefficient.
    """
    a: list[list[float]] = []
    g: list[list[float]] = []
    b: list[list[float]] = []
    for p in POINTS:
        others = [q for q in POINTS if q != p]
        a.append([p**k for k in range(KERNEL)])
        g.append([p**k / math.prod(p - q for q in others) for k in range(TILE)])
        b.append([*_with_roots(others), 0.0])
    a.append([0.0] * (KERNEL - 1) + [1.0])
    g.append([0.0] * (TILE - 1) + [1.0])
    b.append(_with_roots(POINTS))
    transposed, of_input, of_gradient = (
        torch.tensor(m, dtype=torch.float64, device="cpu") for m in (a, b, g)
    )
    return transposed.mT, of_input, of_gradient


def _with_roots(roots: Iterable[float]) -> list[float]:
    """Coefficients of the product of all (x - root), constant first."""
    found = [1.0]
    for r in roots:
        found = [low - r * high for low, high in zip([0.0, *found], [*found, 0.0], strict=True)]
    return found
