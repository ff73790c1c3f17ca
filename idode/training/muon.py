r"""Muon: steps of equal size in every direction of a matrix, for the kernels of hidden layers.

The momentum :math:`M` of a kernel, as a matrix of outputs by inputs, is replaced by its nearest
orthogonal one, :math:`UV^\top` of :math:`M = USV^\top`. Five steps of a quintic Newton-Schulz
iteration find it up to singular values between 0.7 and 1.2, which is enough (Jordan et al., 2024).
Its factors are polynomials of one square matrix, :math:`MM^\top`, so that they commute and are
multiplied with each other before the wide kernel is: two products have its width instead of ten.
PyTorch's own takes matrices alone, and kernels of convolutions are none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from idode.training.matrices import MatrixOptimizer

__all__ = ["Muon", "orthogonalised"]

ITERATIONS = 5
A, B, C = 3.4445, -4.7750, 2.0315  # steepest at zero among those that end near one
TINY = 1e-7


def orthogonalised(matrices: Tensor) -> Tensor:
    """The nearest orthogonal matrices of ``(n, rows, columns)``, roughly.

    In float32 or better: rounding makes the smallest eigenvalues of the square matrix negative,
    and each of four updates multiplies these by up to twelve, 20,000 in all. That leaves 1e-7 of
    float32 small, and 1e-3 of lower precisions not.
    """
    tall, dtype = matrices.shape[1] > matrices.shape[2], matrices.dtype
    x = (matrices.mT if tall else matrices).to(torch.promote_types(dtype, torch.float32))
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + TINY)
    square = x @ x.mT
    one = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)

    def factor_of(square: Tensor) -> Tensor:
        return torch.baddbmm(A * one + B * square, square, square, alpha=C)

    product = factor = factor_of(square)
    for _ in range(ITERATIONS - 1):
        square = factor @ square @ factor
        factor = factor_of(square)
        product = factor @ product
    found: Tensor = (product @ x).to(dtype)
    return found.mT if tall else found


class Muon(MatrixOptimizer):
    """Nesterov momentum, orthogonalised; decoupled weight decay.

    Its momentum exists from the start, so that a checkpoint of step 0 has the same tensors as any.

    Args:
        kernels: Parameters ``(outputs, inputs, ...)``.
        lr: Learning rate: the size of a step in every direction.
        momentum: Share of the old momentum that is kept in a step.
        weight_decay: Decoupled.
    """

    def __init__(
        self, kernels: Iterable[nn.Parameter], lr: float, momentum: float, weight_decay: float
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(kernels, defaults)
        for group in self.param_groups:
            for kernel in group["params"]:
                empty = torch.zeros_like(kernel, memory_format=torch.preserve_format)
                self.state[kernel]["momentum"] = empty

    def _move(
        self,
        kernels: list[nn.Parameter],
        gradients: list[Tensor],
        group: dict[str, Any],
        skip: Tensor | None,
    ) -> None:
        past = [self.state[kernel]["momentum"] for kernel in kernels]
        share: float | Tensor = 1.0 if skip is None else 1 - skip
        if skip is not None:  # a gradient that is not finite would stay in the momentum
            gradients = [torch.where(skip > 0, m, g) for m, g in zip(past, gradients, strict=True)]
        torch._foreach_lerp_(past, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, past, group["momentum"])
        found = orthogonalised(torch.stack([m.flatten(1) for m in ahead]))
        size = -group["lr"] * math.sqrt(max(1.0, found.shape[1] / found.shape[2]))
        for kernel, update in zip(kernels, found, strict=True):
            kernel.mul_(1 - share * group["lr"] * group["weight_decay"])
            kernel.add_(share * size * update.view(kernel.shape))
