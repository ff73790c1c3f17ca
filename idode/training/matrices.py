"""Optimisers of matrices, and several optimisers as one."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from idode.numerics import float32_products, full_precision

__all__ = ["Combined", "MatrixOptimizer"]


class MatrixOptimizer(torch.optim.Optimizer, abc.ABC):
    """Moves parameters ``(outputs, inputs, ...)`` as matrices.

    Those of a shape are moved together, since launching a call costs more than its arithmetic.
    Products are those of float32, whatever the process or autocast allow: bases and iterations
    amplify rounding.
    """

    @torch.no_grad()
    @float32_products()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move all kernels that have a gradient."""
        skip = getattr(self, "found_inf", None)  # set where the host does not look at the loss
        for group in self.param_groups:
            alike: dict[torch.Size, tuple[list[nn.Parameter], list[Tensor]]] = {}
            for kernel in group["params"]:
                if kernel.grad is not None:
                    kernels, gradients = alike.setdefault(kernel.shape, ([], []))
                    kernels.append(kernel)
                    gradients.append(kernel.grad)
            for kernels, gradients in alike.values():
                with full_precision(kernels[0]):
                    self._move(kernels, gradients, group, skip)

    @abc.abstractmethod
    def _move(
        self,
        kernels: list[nn.Parameter],
        gradients: list[Tensor],
        group: dict[str, Any],
        skip: Tensor | None,
    ) -> None:
        """Move kernels of one shape; nothing where ``skip`` is one."""


class Combined:
    """Optimisers of different parameters as one.

    Args:
        parts: The optimisers.
    """

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all."""
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> dict[Tensor, dict[str, Tensor]]:
        """The tensors of all, by parameter."""
        return {key: value for part in self.parts for key, value in part.state.items()}

    @property
    def found_inf(self) -> Tensor | None:
        """Whether a step is left out, as fused optimisers have it."""
        return getattr(self.parts[0], "found_inf", None)

    @found_inf.setter
    def found_inf(self, value: Tensor) -> None:
        for part in self.parts:
            part.found_inf = value  # type: ignore[attr-defined]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        """One step of all."""
        for part in self.parts:
            part.step()
