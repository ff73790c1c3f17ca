r"""Gradients of log-densities in less memory than the steps of a solver take.

Backpropagation through a solve keeps what the network computed at every step. Two ways keep less:

* *checkpointing* keeps the states and evaluates the field once more, node by node, on the way
  back: the same gradient for one more evaluation of each node;
* the *adjoint* keeps the end of the path only and solves

  .. math:: \dot a = -(\nabla_x v)^\top a - (\nabla_x r)^\top g

  backwards from :math:`a = \partial L/\partial z`, where :math:`r` are the rates and :math:`g`
  the slopes of the loss in their integrals; parameters get
  :math:`\int a^\top\nabla_\theta v + g^\top\nabla_\theta r\,\mathrm d\gamma` (math.md: adjoint).
  Its gradient is exact up to the error of the backward solve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from idode.errors import InputError
from idode.ode.quadrature import Speed, quadrature
from idode.ode.solvers import Field, Solution, Solver, speed_of

__all__ = ["CheckpointedField", "solve_with_adjoint"]


@dataclass(frozen=True)
class CheckpointedField:
    """A field that keeps nothing but its input and computes the rest again for gradients.

    Args:
        field: The field.
        inputs: Parameters and conditions it depends on, for which gradients are wanted.
    """

    field: Field
    inputs: Sequence[Tensor]

    @property
    def speed(self) -> Speed | None:
        """That of the field, so that both are solved alike."""
        return speed_of(self.field)

    def __call__(self, x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """Velocity ``(B, *)`` and rates ``(n, B)``."""
        v, rates = _Recomputed.apply(self, gamma, x, *self.inputs)  # type: ignore[no-untyped-call]
        return v, rates

    def slopes(
        self, x: Tensor, gamma: Tensor, dv: Tensor, drates: Tensor
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The velocity, and gradients of ``dv·v + drates·rates`` in ``x`` and the inputs."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            v, rates = self.field(x, gamma)
            pairs = [(v, dv), (rates, drates.to(rates.dtype))]
            pairs = [(value, slope) for value, slope in pairs if value.requires_grad]
            wanted = [x, *self.inputs]
            if not pairs:
                return v.detach(), [None for _ in wanted]
            values, given = zip(*pairs, strict=True)
            found = torch.autograd.grad(values, wanted, given, allow_unused=True)
        return v.detach(), list(found)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        owner: CheckpointedField,
        gamma: Tensor,
        x: Tensor,
        *inputs: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.owner, ctx.gamma = owner, gamma
        ctx.save_for_backward(x)
        with torch.no_grad():
            v, rates = owner.field(x.detach(), gamma)
        return v, rates

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dv: Tensor, drates: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (x,) = ctx.saved_tensors
        _, found = ctx.owner.slopes(x, ctx.gamma, dv, drates)
        return (None, None, *found)


def solve_with_adjoint(
    solver: Solver, field: Field, x: Tensor, start: float, end: float, inputs: Sequence[Tensor]
) -> Solution:
    """A solve whose gradients come from the adjoint equation.

    Args:
        solver: One that knows its nodes, which are used on the way back too.
        field: Velocity and rates.
        x: States ``(B, *)`` at ``start``.
        start: Where the solve begins.
        end: Where it ends.
        inputs: Parameters and conditions for which gradients are wanted.
    """
    nodes = solver.nodes(start, end)
    if nodes is None:
        raise InputError(
            f"the adjoint is solved on the grid of Adams steps, got {type(solver).__name__}: "
            "leave the solver out, or save memory with checkpoint=True"
        )
    owner = CheckpointedField(field, inputs)
    applied = _Adjoint.apply(owner, solver, start, end, x, *inputs)  # type: ignore[no-untyped-call]
    z, integral, gap = applied
    return Solution(z, integral, len(nodes), gap)


class _Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        owner: CheckpointedField,
        solver: Solver,
        start: float,
        end: float,
        x: Tensor,
        *inputs: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            found = solver.solve(owner.field, x.detach(), start, end)
        ctx.owner, ctx.solver, ctx.ends = owner, solver, (start, end)
        ctx.save_for_backward(found.x)
        ctx.mark_non_differentiable(found.corrector_gap)
        return found.x, found.integral, found.corrector_gap

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401
        dz: Tensor,
        dintegral: Tensor,
        _: Tensor,
    ) -> tuple[Tensor | None, ...]:
        (z,) = ctx.saved_tensors
        start, end = ctx.ends
        solver = ctx.solver.reversed()
        field = _AdjointField(ctx.owner, dintegral, z.shape, solver.nodes(end, start))
        both = torch.cat([z.flatten(1), dz.flatten(1)], dim=1)
        with torch.no_grad():
            found = solver.solve(field, both, end, start)
        dx = found.x.chunk(2, dim=1)[1].reshape(z.shape)
        return (None, None, None, None, dx, *field.totals)


class _AdjointField:
    """State and adjoint side by side, ``(B, 2 D)``; adds up the inputs' gradients by the way.

    The solver evaluates each of its nodes once and in order, so the weight of an evaluation in
    the integral is known when it is made.
    """

    def __init__(
        self, owner: CheckpointedField, slopes: Tensor, shape: torch.Size, nodes: list[float]
    ) -> None:
        self.owner, self.slopes, self.shape = owner, slopes, shape
        self.weights = iter(quadrature(nodes))
        self.totals: list[Tensor | None] = [None for _ in owner.inputs]

    def __call__(self, both: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        x, a = (part.reshape(self.shape) for part in both.chunk(2, dim=1))
        v, (slope, *inputs) = self.owner.slopes(x, gamma, a, self.slopes)
        weight = -float(next(self.weights))  # the solve runs backwards
        for i, found in enumerate(inputs):
            if found is not None:
                before = self.totals[i]
                self.totals[i] = weight * found if before is None else before + weight * found
        da = torch.zeros_like(a) if slope is None else -slope
        return torch.cat([v.flatten(1), da.flatten(1)], dim=1), both.new_zeros(0, len(both))
