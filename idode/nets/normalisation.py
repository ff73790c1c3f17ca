r"""Swish of a group norm on CPU, with a backward pass that does not mind small groups.

The library's innermost loop runs over the channels of a group. With :math:`\hat x = (x - m) r`
normalised by mean m and inverse deviation r of its group, scale w, and :math:`\dot u` the gradient
of the swish's input,

.. math:: \dot x = r (w \dot u - a - \hat x b) = r w \dot u - r^2 b x + r (r m b - a)

where a and b are the means of :math:`w \dot u` and :math:`w \dot u \hat x` over the group: two
sums per channel, then a line in x and :math:`\dot u`. ``benchmarks/networks.py --only norms``
measures both.

Under autocast to bfloat16 all of it is computed on bfloat16, means and sums in float32: there the
convolutions take so little time that passes over memory are most of a step. The gradient of the
scale is a difference of two sums, which loses digits where the mean of a group is many of its
deviations: on random images it errs by 0.6% at three of them and by 1.6% at ten.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

from idode.nets.fast_backward import applicable, check_first_order
from idode.numerics import autocast_dtype

__all__ = ["SwishNorm"]

# Channels of a group up to which ours is faster, by the dtypes of pixels and weights; with more
# the library's loop is long enough.
LARGEST_GROUP = {
    (torch.float32, torch.float32): 4,
    (torch.float64, torch.float64): 4,
    (torch.bfloat16, torch.float32): 12,
}


class SwishNorm(nn.GroupNorm):
    """``silu(group_norm(x))`` of ``(B, C, H, W)``; ``quick`` if no one differentiates twice."""

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__(groups, channels, eps=1e-6)
        self.quick = False

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        if self.quick and self.pays(x):
            x = x.to(autocast_dtype(x) or x.dtype)
            y: Tensor = Swished.apply(x, self.weight, self.bias, self.num_groups, self.eps)  # type: ignore[no-untyped-call]
            return y
        return F.silu(super().forward(x))

    def pays(self, x: Tensor) -> bool:
        """Whether our backward pass is faster than the library's, and may be used."""
        if not applicable(x, self.weight):
            return False
        dtypes = (autocast_dtype(x) or x.dtype, self.weight.dtype)
        return self.num_channels <= LARGEST_GROUP.get(dtypes, 0) * self.num_groups


class Swished(torch.autograd.Function):
    """The library's forward pass with our backward, for training of the first order."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
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
        ctx.save_for_backward(x, weight, y, mean, inverse)
        return F.silu(y)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Gradients of input, scale and shift from that of the output."""
        check_first_order()
        x, weight, y, mean, inverse = ctx.saved_tensors  # type: ignore[attr-defined]
        by_x, by_weight, by_bias = gradients(x, weight, y, mean, inverse, grad)
        return by_x, by_weight, by_bias, None, None


def gradients(
    x: Tensor, weight: Tensor, y: Tensor, mean: Tensor, inverse: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x ``(B, C, H, W)``, scale and shift ``(C,)`` from that of ``silu(y)``.

    ``y`` is the norm of x before the swish. ``mean`` and ``inverse`` deviation are ``(B, G)``, and
    sums have their dtype.
    """
    (batch, channels, *_), groups = x.shape, mean.shape[1]
    grid, per_channel = (batch, groups, channels // groups), (batch, 1, channels)
    grad = grad.contiguous(memory_format=torch.channels_last)
    pixels, flat_y, flat_grad = (z.permute(0, 2, 3, 1).flatten(1, 2) for z in (x, y, grad))
    slope = torch.ops.aten.silu_backward(flat_grad, flat_y)
    work = slope * pixels
    m, r, w = mean.unsqueeze(2), inverse.unsqueeze(2), weight.view(grid[1:])
    shift = slope.sum(1, dtype=m.dtype).view(grid)
    scale = (work.sum(1, dtype=m.dtype).view(grid) - m * shift) * r
    a, b = ((w * z).mean(2, keepdim=True) / pixels.shape[1] for z in (shift, scale))
    constant, by_x, by_slope = (
        z.expand(grid).reshape(per_channel).to(x.dtype)
        for z in (r * (r * m * b - a), -r * r * b, r * w)
    )
    found = torch.addcmul(constant, pixels, by_x, out=work).addcmul_(slope, by_slope)
    grad_x = found.view(x.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)
    return grad_x, scale.sum(0).flatten(), shift.sum(0).flatten()
