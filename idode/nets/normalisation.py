r"""Swish of a group norm, with a backward pass on CPU at half the price.

The library's is slow where a group has few channels, as the innermost loop runs over them. With
:math:`\hat x = (x - m) r` normalised by mean m and inverse deviation r of its group, scale w, and
:math:`\dot u` the gradient of the swish's input,

.. math:: \dot x = r (w \dot u - \overline{w \dot u} - \hat x\, \overline{w \dot u \hat x}),

bars being means over the group: two sums per channel, then a line in x and :math:`\dot u` with
coefficients per channel. ``benchmarks/networks.py --only norms`` measures both.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["SwishNorm"]

CHANNELS = 4  # in a group; with more the library's loops are long enough


class SwishNorm(nn.GroupNorm):
    """``silu(group_norm(x))`` of ``(B, C, H, W)``; ``quick`` where no one differentiates twice."""

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__(groups, channels, eps=1e-6)
        self.quick = False

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        if self.quick and self.pays(x):
            y: Tensor = Swished.apply(x, self.weight, self.bias, self.num_groups, self.eps)  # type: ignore[no-untyped-call]
            return y
        return F.silu(super().forward(x))

    def pays(self, x: Tensor) -> bool:
        """Whether our backward pass is faster than the library's, and may be used."""
        return (
            not torch.compiler.is_compiling()  # first: layouts of symbolic shapes are not decided
            and torch.is_grad_enabled()
            and self.num_channels <= CHANNELS * self.num_groups
            and x.device.type == "cpu"
            and x.dtype == self.weight.dtype
            and x.is_contiguous(memory_format=torch.channels_last)
            and not torch.is_autocast_enabled("cpu")
        )


class Swished(torch.autograd.Function):
    """The library's forward pass with our backward, which takes the library's where it must."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        groups: int,
        eps: float,
    ) -> Tensor:
        """Map ``(B, C, H, W)`` to the same shape."""
        batch, channels, height, width = x.shape
        y, mean, inverse = torch.native_group_norm(
            x, weight, bias, batch, channels, height * width, groups, eps
        )
        ctx.save_for_backward(x, weight, bias, y, mean, inverse)
        ctx.settings = groups, eps  # type: ignore[attr-defined]
        return F.silu(y)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Gradients of input, scale and shift from that of the output."""
        x, weight, bias, y, mean, inverse = ctx.saved_tensors  # type: ignore[attr-defined]
        groups, eps = ctx.settings  # type: ignore[attr-defined]
        if torch.is_grad_enabled():
            # It will be differentiated again: it must be made of recorded operations.
            again = F.silu(F.group_norm(x, groups, weight, bias, eps))
            by_x, by_weight, by_bias = torch.autograd.grad(
                again, (x, weight, bias), grad, create_graph=True
            )
        else:
            by_x, by_weight, by_bias = gradients(x, weight, y, mean, inverse, grad)
        return by_x, by_weight, by_bias, None, None


def gradients(
    x: Tensor, weight: Tensor, y: Tensor, mean: Tensor, inverse: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x ``(B, C, H, W)``, scale and shift ``(C,)`` from that of ``silu(y)``.

    ``y`` is the norm of x before the swish, ``mean`` and ``inverse`` deviation are ``(B, G)``.
    """
    (batch, channels, *_), groups = x.shape, mean.shape[1]
    grid, line = (batch, groups, channels // groups), (batch, 1, channels)
    pixels, flat_y, flat_grad = (z.permute(0, 2, 3, 1).flatten(1, 2) for z in (x, y, grad))
    slope = torch.ops.aten.silu_backward(flat_grad, flat_y)
    work = slope * pixels
    along, m, r = work.sum(1).view(grid), mean.unsqueeze(2), inverse.unsqueeze(2)
    shift = slope.sum(1).view(grid)
    scale = (along - m * shift) * r
    w = weight.view(grid[1:])
    level, tilt = ((w * z).mean(2, keepdim=True) / pixels.shape[1] for z in (shift, scale))
    constant, by_x, by_slope = (
        z.expand(grid).reshape(line) for z in (r * (r * m * tilt - level), -r * r * tilt, r * w)
    )
    found = torch.addcmul(constant, pixels, by_x, out=work).addcmul_(slope, by_slope)
    grad_x = found.view(x.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)
    return grad_x, scale.sum(0).flatten(), shift.sum(0).flatten()
