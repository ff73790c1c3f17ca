r"""Log-density of continuous states by the ODE, and the way to their latents and back.

.. math:: \log p(x) = \log\mathcal N(z; 0, \sigma_{\max}^2 I)
          + \int_{\gamma_{\min}}^{\gamma_{\max}} \nabla\cdot v\,\mathrm d\gamma,

where :math:`z` is the end of the path that starts in :math:`x` (math.md: change-of-variables).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from idode.diffusion.model import DiffusionODE
from idode.numerics import per_sample
from idode.ode import divergence
from idode.ode.solvers import Adams, Field, Solution, Solver

__all__ = ["LogProb", "decode", "encode", "log_prob", "ode_field", "path_field", "prior_log_prob"]


def ode_field(model: DiffusionODE, probes: Tensor | None) -> Field:
    """Velocity and divergence of a model; ``probes`` ``(n, B, *)``, or ``None`` for exact."""

    def field(x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            if probes is None:
                v, div = divergence.exact(lambda y: model.velocity(y, gamma), x)
                return v, div[None]
            return divergence.hutchinson(lambda y: model.velocity(y, gamma), x, probes)

    return field


def path_field(model: DiffusionODE) -> Field:
    """Velocity alone: the path without its log-density, at half the cost."""

    def field(x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return model.velocity(x, gamma), torch.zeros(0, len(x), device=x.device)

    return field


def prior_log_prob(model: DiffusionODE, z: Tensor) -> Tensor:
    r"""Log density of :math:`\mathcal N(0, \sigma(\gamma_{\max})^2 I)`, ``(B,)`` float64."""
    gamma = torch.tensor(model.gamma_max, dtype=torch.float64)
    log_sigma = float(model.schedule.log_sigma(gamma))
    square = per_sample(z.double() ** 2) * math.exp(-2 * log_sigma)
    return -0.5 * square - z[0].numel() * (log_sigma + 0.5 * math.log(2 * math.pi))


@dataclass(frozen=True)
class LogProb:
    """Log-density of continuous states, and their latents."""

    log_p: Tensor  # (B,) nats, float64, the mean over probes
    per_probe: Tensor  # (n, B)
    z: Tensor  # (B, *), the latents
    nfe: float  # mean over the batch, where some are solved again
    corrector_gap: Tensor  # (B,), see Solution


def log_prob(
    model: DiffusionODE,
    x: Tensor,
    *,
    start: float | None = None,
    solver: Solver | None = None,
    probes: Tensor | None = None,
) -> LogProb:
    """Log-density of states ``x`` under the ODE.

    Args:
        model: The diffusion ODE.
        x: States ``(B, *)`` at ``start``.
        start: Where on the clock ``x`` lives; by default ``gamma_min``.
        solver: By default 128 equal Adams steps; :func:`bits_per_dim` tunes one.
        probes: For Hutchinson's estimate, ``(n, B, *)``; ``None`` is the exact divergence.
    """
    begin = model.gamma_min if start is None else start
    found = (solver or Adams())(ode_field(model, probes), x, begin, model.gamma_max)
    per_probe = prior_log_prob(model, found.x) + found.integral
    return LogProb(per_probe.mean(0), per_probe, found.x, found.nfe, found.corrector_gap)


def encode(model: DiffusionODE, x: Tensor, solver: Solver | None = None) -> Solution:
    """The latent of each state: the path from ``gamma_min`` to ``gamma_max``."""
    return (solver or Adams())(path_field(model), x, model.gamma_min, model.gamma_max)


def decode(model: DiffusionODE, z: Tensor, solver: Solver | None = None) -> Solution:
    """The state of each latent: the same path backwards."""
    return (solver or Adams())(path_field(model), z, model.gamma_max, model.gamma_min)
