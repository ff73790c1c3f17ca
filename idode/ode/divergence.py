r"""The divergence :math:`\nabla\cdot v`, exact or by Hutchinson's probes.

One vector-Jacobian product gives the value and an unbiased estimate together:
:math:`\nabla\cdot v = \mathbb E[p^\top(\nabla v)p]` for any probe of unit covariance. Gradients
flow through the estimate where they are enabled, which the second-order objective needs.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from idode.errors import InputError

__all__ = ["Gaussian", "Probe", "Rademacher", "exact", "hutchinson", "products"]

Field = Callable[[Tensor], Tensor]


class Probe(abc.ABC):
    """A distribution of probes with mean 0 and covariance I (:data:`idode.ode.PROBES`)."""

    @abc.abstractmethod
    def draw(self, n: int, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """``n`` probes for each sample of ``x``, shape ``(n, B, *)``."""


@dataclass(frozen=True)
class Rademacher(Probe):
    """Signs: the smallest variance among independent probes, none at all on a diagonal."""

    def draw(self, n: int, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Each entry -1 or 1."""
        device = x.device if generator is None else generator.device
        bits = torch.randint(0, 2, (n, *x.shape), generator=generator, device=device)
        return (2 * bits - 1).to(device=x.device, dtype=x.dtype)


@dataclass(frozen=True)
class Gaussian(Probe):
    """Normal probes, as in FFJORD and ScoreSDE."""

    def draw(self, n: int, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Standard normal entries."""
        device = x.device if generator is None else generator.device
        probe = torch.randn((n, *x.shape), generator=generator, device=device, dtype=x.dtype)
        return probe.to(x.device)


def products(f: Field, x: Tensor, probes: Tensor) -> tuple[Tensor, Tensor]:
    r"""Value of ``f`` and :math:`(\nabla f)^\top p` for each probe, from one forward pass.

    A state that has a graph keeps it, so that gradients flow along the steps of a solver.

    Args:
        f: Field, ``(B, *)`` to ``(B, *)``, each sample on its own.
        x: States ``(B, *)``.
        probes: ``(n, B, *)``.

    Returns:
        ``f(x)`` of shape ``(B, *)`` and the products ``(n, B, *)``.
    """
    if probes.shape[1:] != x.shape:
        raise InputError(
            f"probes must have shape (n, {', '.join(map(str, x.shape))}) to match the state, "
            f"got {tuple(probes.shape)}"
        )
    training = torch.is_grad_enabled()
    with torch.enable_grad():
        x = x if training and x.requires_grad else x.detach().requires_grad_()
        y = f(x)
        last = len(probes) - 1
        found = [
            _vjp(y, x, p, create_graph=training, keep=training or i < last)
            for i, p in enumerate(probes)
        ]
    return (y if training else y.detach()), torch.stack(found)


def hutchinson(f: Field, x: Tensor, probes: Tensor) -> tuple[Tensor, Tensor]:
    """Value of ``f`` and one divergence estimate for each probe, as in :func:`products`.

    Returns:
        ``f(x)`` of shape ``(B, *)`` and the estimates ``(n, B)``; their mean over n is the
        estimate of the divergence.
    """
    y, found = products(f, x, probes)
    return y, (probes * found).flatten(2).sum(2)


def exact(f: Field, x: Tensor) -> tuple[Tensor, Tensor]:
    """Value of ``f`` and its exact divergence ``(B,)``, by as many products as dimensions.

    One after another: batched gradients do not know the layout of the networks' kernels.

    Args:
        f: Field, ``(B, *)`` to ``(B, *)``, each sample on its own.
        x: States ``(B, *)`` of any shape.
    """
    training = torch.is_grad_enabled()
    dim = x[0].numel()
    with torch.enable_grad():
        x = x if training and x.requires_grad else x.detach().requires_grad_()
        y = f(x)
        div = torch.zeros(len(x), dtype=y.dtype, device=y.device)
        for i in range(dim):
            basis = torch.zeros(len(x), dim, dtype=y.dtype, device=y.device)
            basis[:, i] = 1
            keep = training or i < dim - 1
            row = _vjp(y, x, basis.reshape(x.shape), create_graph=training, keep=keep)
            div = div + row.flatten(1)[:, i]
    return (y if training else y.detach()), div


def _vjp(y: Tensor, x: Tensor, cotangent: Tensor, *, create_graph: bool, keep: bool) -> Tensor:
    # A field that does not depend on x (a constant, or a fresh zero-initialised layer) has no
    # graph at all; its divergence is zero, not an error.
    if not y.requires_grad:
        return torch.zeros_like(cotangent)
    (product,) = torch.autograd.grad(
        y,
        x,
        cotangent,
        retain_graph=keep,
        create_graph=create_graph,
        materialize_grads=True,
    )
    return product
