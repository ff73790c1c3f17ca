r"""SOAP: Adam in the eigenbases of Shampoo, for the kernels of hidden layers.

A kernel as a matrix :math:`G` of outputs by inputs has moving averages of :math:`GG^\top` and
:math:`G^\top G`. In their eigenbases :math:`Q_L, Q_R` the entries of :math:`Q_L^\top G Q_R` are
nearly uncorrelated, so that Adam's division by each entry's own size is the right one there
(Vyas et al., 2024). One step of orthogonal iteration now and then lets the bases follow.

Directions that the first gradient does not have get a basis that depends on its rounding, so that
other numbers of threads or processes give other weights of the same quality.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from idode.numerics import double
from idode.training.matrices import MatrixOptimizer

__all__ = ["Soap"]

SHAMPOO_BETA = 0.95  # of both covariances
REFRESH = 10  # steps between bases, which cost more than all else
LARGEST = 1024  # of a side that has a basis; longer ones keep their entries, as Adam has them
BASES = {"left": "left_basis", "right": "right_basis"}  # by covariance


class Soap(MatrixOptimizer):
    """Adam in bases that follow the gradients; decoupled weight decay.

    Everything exists from the start, so that a checkpoint of step 0 has the same tensors as any.

    Args:
        kernels: Parameters ``(outputs, inputs, ...)``.
        lr: Learning rate.
        betas: Decay rates of Adam's two moments.
        eps: Term that keeps Adam's denominator from zero.
        weight_decay: Decoupled.
    """

    def __init__(
        self,
        kernels: Iterable[nn.Parameter],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(kernels, defaults)
        self._begun: set[Tensor] = set()  # kernels known to have bases
        for group in self.param_groups:
            for kernel in group["params"]:
                matrix = kernel.detach().flatten(1)
                sides = (n if n <= LARGEST else 0 for n in matrix.shape)
                rows, columns = (torch.eye(n).to(matrix) for n in sides)
                self.state[kernel] = {
                    "step": torch.zeros((), dtype=torch.float32),
                    "exp_avg": torch.zeros_like(matrix),
                    "exp_avg_sq": torch.zeros_like(matrix),  # in the bases
                    "left": torch.zeros_like(rows),
                    "right": torch.zeros_like(columns),
                    "left_basis": rows,
                    "right_basis": columns,
                }

    def _move(
        self,
        kernels: list[nn.Parameter],
        gradients: list[Tensor],
        group: dict[str, Any],
        skip: Tensor | None,
    ) -> None:
        if skip is not None and bool(skip > 0):  # a wait for the device, as its bases are
            return
        matrices = [g.flatten(1) for g in gradients]
        pairs = zip(kernels, matrices, strict=True)
        moving = [(kernel, g) for kernel, g in pairs if self._follow(kernel, g)]
        if not moving:
            return
        kernels, gradient = [kernel for kernel, _ in moving], torch.stack([g for _, g in moving])
        states = [self.state[kernel] for kernel in kernels]
        counts = [float(state["step"]) for state in states]  # kernels begin at different times
        first, second = group["betas"]
        filled_first, filled_second = (  # shares of the averages that are gradients
            gradient.new_tensor([1 - beta**n for n in counts]).reshape(-1, 1, 1)
            for beta in (first, second)
        )
        averages = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        left, right = (torch.stack([state[basis] for state in states]) for basis in BASES.values())
        torch._foreach_lerp_(averages, list(gradient), 1 - first)
        turned = _turned(gradient, left.mT, right)
        torch._foreach_lerp_(squares, list(turned.square()), 1 - second)
        ahead = _turned(torch.stack(averages), left.mT, right) / filled_first
        scale = (torch.stack(squares) / filled_second).sqrt() + group["eps"]
        found = _turned(ahead / scale, left, right.mT)
        for kernel, update in zip(kernels, found, strict=True):
            kernel.mul_(1 - group["lr"] * group["weight_decay"])
            kernel.add_(-group["lr"] * update.view(kernel.shape))

    def _follow(self, kernel: nn.Parameter, gradient: Tensor) -> bool:
        """Take a gradient into the covariances, and now and then turn the bases after them.

        The first gradient that is not zero gives the bases; those of hidden layers are zero at
        first behind an output layer of zeros. In bases of its own most entries of that gradient
        are rounding, which Adam would scale up to whole steps, so a kernel moves from the next
        one on.

        Returns:
            Whether there were bases before it, and the kernel moves.
        """
        state = self.state[kernel]
        pairs = enumerate(BASES.items())
        sides = [(axis, *pair) for axis, pair in pairs if state[pair[1]].numel()]
        # Covariances tell it too, but a GPU's are waited for.
        begun = kernel in self._begun or not sides or _any(state)
        if state["left"].numel():
            state["left"].lerp_(gradient @ gradient.mT, 1 - SHAMPOO_BETA)
        if state["right"].numel():
            state["right"].lerp_(gradient.mT @ gradient, 1 - SHAMPOO_BETA)
        if begun:
            state["step"] += 1  # of the gradients in Adam's averages
            for side in sides if float(state["step"]) % REFRESH == 0 else ():
                _refresh(state, *side)
        elif _any(state):
            for _, covariance, basis in sides:
                _, vectors = torch.linalg.eigh(double(state[covariance]))
                state[basis].copy_(vectors.flip(-1))
        else:
            return False
        self._begun.add(kernel)
        return begun


def _turned(matrices: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """``left @ matrices @ right``; an empty side stays as it is."""
    x = left @ matrices if left.numel() else matrices
    return x @ right if right.numel() else x


def _any(state: dict[str, Tensor]) -> bool:
    """Whether a covariance has seen anything."""
    return any(bool(state[covariance].any()) for covariance in BASES)


def _refresh(state: dict[str, Tensor], axis: int, covariance: str, basis: str) -> None:
    """One step of orthogonal iteration; decompositions are those of the host where none else is.

    Columns stand by falling eigenvalue, which is where the iteration leads them: in any other
    order they would change places over the next refreshes, without their second moments.
    """
    known, old = state[covariance], state[basis]
    order = (old * (known @ old)).sum(0).argsort(descending=True)
    state["exp_avg_sq"].copy_(state["exp_avg_sq"].index_select(axis, order))
    found, _ = torch.linalg.qr(double(known @ old[:, order]))
    state[basis].copy_(found)
