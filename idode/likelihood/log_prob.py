r"""Log-density of continuous states by the ODE, and the way to their latents and back.

.. math:: \log p(x) = \log\mathcal N(z; 0, \sigma_{\max}^2 I)
          + \int_{\gamma_{\min}}^{\gamma_{\max}} \nabla\cdot v\,\mathrm d\gamma,

where :math:`z` is the end of the path that starts in :math:`x` (math.md: change-of-variables).
Gradients flow through the steps of the solver where they are enabled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from idode.diffusion.model import Condition, DiffusionODE
from idode.errors import InputError
from idode.numerics import nats_to_bits, per_sample
from idode.ode import divergence
from idode.ode.adams import Adams
from idode.ode.divergence import Rademacher
from idode.ode.solvers import Calibration, Solution, Solver

__all__ = [
    "DensityField",
    "LogProb",
    "PathField",
    "decode",
    "encode",
    "log_prob",
    "prior_log_prob",
    "solve_log_prob",
]

PILOT = 8  # states that a solver is calibrated on


@dataclass(frozen=True)
class PathField:
    """Velocity alone: the path without its log-density, at half the cost."""

    model: DiffusionODE
    condition: Condition = field(default_factory=dict)

    def __call__(self, x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """Velocity ``(B, *)`` and no rates ``(0, B)``."""
        return self.model.velocity(x, gamma, **self.condition), x.new_zeros(0, len(x))


@dataclass(frozen=True)
class DensityField:
    """Velocity and divergence; ``probes`` are ``(n, B, *)``, or ``None`` for the exact one."""

    model: DiffusionODE
    probes: Tensor | None
    condition: Condition = field(default_factory=dict)

    def __call__(self, x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """Velocity ``(B, *)`` and divergences ``(n, B)``."""

        def velocity(y: Tensor) -> Tensor:
            return self.model.velocity(y, gamma, **self.condition)

        if self.probes is None:
            v, div = divergence.exact(velocity, x)
            return v, div[None]
        return divergence.hutchinson(velocity, x, self.probes)


def prior_log_prob(model: DiffusionODE, z: Tensor) -> Tensor:
    r"""Log density of :math:`\mathcal N(0, \sigma(\gamma_{\max})^2 I)`, ``(B,)`` float64."""
    gamma = torch.tensor(model.gamma_max, dtype=torch.float64)
    log_sigma = float(model.schedule.log_sigma(gamma))
    square = per_sample(z.double() ** 2) * math.exp(-2 * log_sigma)
    return -0.5 * square - z[0].numel() * (log_sigma + 0.5 * math.log(2 * math.pi))


@dataclass(frozen=True)
class LogProb:
    """Log-density of continuous states, their latents, and how far the values can be trusted."""

    log_p: Tensor  # (B,) nats, float64, the mean over probes
    per_probe: Tensor  # (n, B)
    z: Tensor  # (B, *), the latents
    nfe: float  # mean over the batch, where some are solved again
    corrector_gap: Tensor  # (B,), see Solution
    solver_error: Tensor  # (B,) nats, likely size of the solver's error; NaN where unknown


def solve_log_prob(
    model: DiffusionODE,
    x: Tensor,
    solver: Solver,
    *,
    probes: Tensor | None = None,
    start: float | None = None,
    condition: Condition | None = None,
    error_per_gap: float = math.nan,
) -> LogProb:
    """One solve with a given solver and given probes.

    Args:
        model: The diffusion ODE.
        x: States ``(B, *)`` at ``start``.
        solver: With its steps chosen.
        probes: For Hutchinson's estimate, ``(n, B, *)``; ``None`` is the exact divergence.
        start: Where on the clock ``x`` lives; by default ``gamma_min``.
        condition: Keyword arguments of the network, ``(B, ...)`` each.
        error_per_gap: Of the solver's calibration, in nats.
    """
    begin = model.gamma_min if start is None else start
    density = DensityField(model, probes, condition or {})
    found = solver.solve(density, x, begin, model.gamma_max)
    per_probe = prior_log_prob(model, found.x) + found.integral
    gap = found.corrector_gap
    return LogProb(per_probe.mean(0), per_probe, found.x, found.nfe, gap, error_per_gap * gap)


def log_prob(
    model: DiffusionODE,
    x: Tensor,
    *,
    start: float | None = None,
    solver: Solver | None = None,
    n_probes: int = 0,
    generator: torch.Generator | None = None,
    condition: Condition | None = None,
) -> LogProb:
    """Log-density of states ``x`` under the ODE, with its error.

    Gradients are computed where they are enabled and ``x``, a parameter of the model or the
    condition requires them; they flow through all steps of the solver.

    Args:
        model: The diffusion ODE.
        x: States ``(B, *)`` at ``start``: noised data, not pixels.
        start: Where on the clock ``x`` lives; by default ``gamma_min``.
        solver: By default Adams steps, calibrated on the first states to 0.005 bits/dim.
        n_probes: Hutchinson probes of the divergence; 0 is the exact one, which takes as many
            products as dimensions.
        generator: Of the probes.
        condition: Keyword arguments of the network, ``(B, ...)`` each.
    """
    if not x.is_floating_point():
        raise InputError(
            f"log_prob is for states, which are floating point, got {x.dtype}: for pixels use "
            "bits_per_dim"
        )
    if len(x) == 0:
        raise InputError("there are no states: pass at least one")
    given = condition or {}
    probes = Rademacher().draw(n_probes, x, generator) if n_probes else None
    chosen = solver or Adams()
    begin = model.gamma_min if start is None else start
    calibration = _calibrated(chosen, model, x.detach(), probes, begin, given)
    with torch.set_grad_enabled(_wants_gradients(model, x, given)):
        return solve_log_prob(
            model,
            x,
            calibration.solver,
            probes=probes,
            start=begin,
            condition=given,
            error_per_gap=calibration.error_per_gap * x[0].numel() * math.log(2),
        )


@torch.no_grad()
def _calibrated(
    solver: Solver,
    model: DiffusionODE,
    x: Tensor,
    probes: Tensor | None,
    begin: float,
    condition: Condition,
) -> Calibration:
    """The solver with its steps chosen for the error in bits/dim on the first states."""
    few = {name: value[:PILOT] for name, value in condition.items()}
    density = DensityField(model, None if probes is None else probes[:, :PILOT], few)
    dim = x[0].numel()
    return solver.calibrate(
        density,
        x[:PILOT],
        begin,
        model.gamma_max,
        lambda z, integral: -nats_to_bits(prior_log_prob(model, z) + integral, dim),
    )


def _wants_gradients(model: DiffusionODE, x: Tensor, condition: Mapping[str, Tensor]) -> bool:
    inputs = [x, *condition.values(), *model.parameters()]
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)


def encode(
    model: DiffusionODE,
    x: Tensor,
    solver: Solver | None = None,
    condition: Condition | None = None,
) -> Solution:
    """The latent of each state: the path from ``gamma_min`` to ``gamma_max``."""
    field = PathField(model, condition or {})
    with torch.set_grad_enabled(_wants_gradients(model, x, condition or {})):
        return (solver or Adams()).solve(field, x, model.gamma_min, model.gamma_max)


def decode(
    model: DiffusionODE,
    z: Tensor,
    solver: Solver | None = None,
    condition: Condition | None = None,
) -> Solution:
    """The state of each latent: the same path backwards."""
    field = PathField(model, condition or {})
    with torch.set_grad_enabled(_wants_gradients(model, z, condition or {})):
        return (solver or Adams()).solve(field, z, model.gamma_max, model.gamma_min)
