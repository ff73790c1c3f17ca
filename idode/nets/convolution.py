r"""3x3 convolution on CPU with a weight gradient at less than half the price.

The weight gradient of oneDNN takes 1.4 to 1.7 forward passes of the same convolution. Winograd's
minimal filtering F(2x2, 3x3) needs 16 products where a 2x2 tile of outputs has 36. With d the 4x4
input tile under it, :math:`\dot y` the gradient of its outputs, and the small matrices A, B, G of
that algorithm,

.. math:: \dot w = G^T \Big[\sum_{tiles} (A \dot y A^T) \odot (B^T d B)\Big] G ,

a product of matrices for each of the 16 places, summed over tiles in fewer terms, so that it is
also more exact. ``benchmarks/networks.py --only gradients`` measures both.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

__all__ = ["convolve", "pays", "weight_gradient"]

CHANNELS = 64  # with fewer, the transforms of the tiles cost more than they save
# Of input and output in a piece of one thread, times channels: at 128 four times the piece fits
# its cache; at 64 a product is so quick that fewer calls count for more.
ENTRIES = 2**25


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether :func:`convolve` trains faster than the library's convolution, and may be used."""
    return (
        weight.requires_grad
        and torch.is_grad_enabled()
        and weight.shape[2:] == (3, 3)
        and min(weight.shape[:2]) >= CHANNELS
        and x.device.type == "cpu"
        and x.dtype == weight.dtype
        and x.shape[2] % 2 == x.shape[3] % 2 == 0
        and x.is_contiguous(memory_format=torch.channels_last)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``conv2d(x, weight, bias, padding=1)`` of ``(B, C, H, W)`` with even H and W."""
    y: Tensor = Convolution.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return y


class Convolution(torch.autograd.Function):
    """The library's convolution with our weight gradient, which it takes where it must."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        """Map ``(B, C, H, W)`` to ``(B, O, H, W)``."""
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, bias, padding=1)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of input, weight and bias from that of the output."""
        x, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad  # type: ignore[attr-defined]
        grad_x = grad_weight = None
        if needs_x:
            grad_x = conv2d_input(x.shape, weight, grad, padding=1)  # type: ignore[no-untyped-call]
        if needs_weight and torch.is_grad_enabled():
            # It will be differentiated again: it must be made of recorded operations.
            grad_weight = conv2d_weight(x, weight.shape, grad, padding=1)  # type: ignore[no-untyped-call]
        elif needs_weight:
            grad_weight = weight_gradient(x, grad)
        return grad_x, grad_weight, grad.sum((0, 2, 3)) if needs_bias else None


def weight_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """Gradient ``(O, C, 3, 3)`` from inputs ``(B, C, H, W)`` and ``grad`` ``(B, O, H, W)``.

    In pieces of a few images: a transformed tile must still be in the cache when it is used.
    """
    batch, inputs, height, width = x.shape
    outputs = grad.shape[1]
    room = ENTRIES // min(inputs, outputs) * torch.get_num_threads()
    wanted = max(1, room // (height * width * (inputs + outputs)))
    size = max(n for n in range(1, min(wanted, batch) + 1) if batch % n == 0)
    padded = _padded(x.permute(0, 2, 3, 1))
    images = grad.permute(0, 2, 3, 1)
    grid = (size, height // 2, width // 2)
    rows = x.new_empty(4, size, height // 2, width + 2, inputs)
    tiles = x.new_empty(4, 4, *grid, inputs)
    sums = x.new_empty(2, size, height // 2, width, outputs)
    spread = x.new_empty(4, 4, *grid, outputs)
    total = x.new_zeros(16, outputs, inputs)
    for start in range(0, batch, size):
        _input_tiles(padded[start : start + size], rows, tiles)
        _output_tiles(images[start : start + size], sums, spread)
        total.baddbmm_(spread.view(16, -1, outputs).mT, tiles.view(16, -1, inputs))
    # The last row of A is -1 where `spread` has +1.
    g = x.new_tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, -1]])
    found = torch.kron(g, g).mT @ total.view(16, -1)
    return found.view(3, 3, outputs, inputs).permute(2, 3, 0, 1)


def _padded(images: Tensor) -> Tensor:
    """``(n, H, W, C)`` with a border of zeros; the library's padding writes the inside twice."""
    n, height, width, channels = images.shape
    padded = images.new_empty(n, height + 2, width + 2, channels)
    padded[:, :: height + 1].zero_()
    padded[:, :, :: width + 1].zero_()
    padded[:, 1:-1, 1:-1] = images
    return padded


def _input_tiles(padded: Tensor, rows: Tensor, tiles: Tensor) -> None:
    """``B^T d B`` of all tiles of ``(n, H + 2, W + 2, C)``, into ``(4, 4, n, H/2, W/2, C)``."""
    height, width = padded.shape[1] - 2, padded.shape[2] - 2
    _differences([padded[:, k : k + height - 1 : 2] for k in range(4)], list(rows))
    columns = [rows[:, :, :, k : k + width - 1 : 2] for k in range(4)]
    _differences(columns, [tiles[:, k] for k in range(4)])


def _differences(d: list[Tensor], out: list[Tensor]) -> None:
    """``B^T d`` along one axis."""
    torch.sub(d[0], d[2], out=out[0])
    torch.add(d[1], d[2], out=out[1])
    torch.sub(d[2], d[1], out=out[2])
    torch.sub(d[1], d[3], out=out[3])


def _output_tiles(images: Tensor, sums: Tensor, spread: Tensor) -> None:
    """``A y A^T`` but for signs, of ``(n, H, W, O)``, into ``(4, 4, n, H/2, W/2, O)``."""
    n, height, width, outputs = images.shape
    rows = images.view(n, height // 2, 2, width, outputs).movedim(2, 0)  # even and odd ones
    torch.add(rows[0], rows[1], out=sums[0])
    torch.sub(rows[0], rows[1], out=sums[1])
    for source, target in ((rows, spread[0::3]), (sums, spread[1:3])):
        left, right = source[:, :, :, 0::2], source[:, :, :, 1::2]
        target[:, 0] = left
        torch.add(left, right, out=target[:, 1])
        torch.sub(left, right, out=target[:, 2])
        target[:, 3] = right
