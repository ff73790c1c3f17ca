r"""Log-density of continuous states by the ODE, and the way to their latents and back.

.. math:: \log p(x) = \log\mathcal N(z; 0, \sigma_{\max}^2 I)
          + \int_{\gamma_{\min}}^{\gamma_{\max}} \nabla\cdot v\,\mathrm d\gamma,

where :math:`z` is the end of the path that starts in :math:`x` (math.md: change-of-variables).
Gradients flow through the steps of the solver where they are enabled.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from idode.batches import Pixels, rows_for
from idode.diffusion.model import Condition, DiffusionODE
from idode.errors import InputError
from idode.likelihood.gradients import CheckpointedField, solve_with_adjoint
from idode.likelihood.prior import latent_moments, prior_mismatch
from idode.likelihood.states import states
from idode.numerics import clock_at, double, float32_products, nats_to_bits, per_sample
from idode.ode import divergence
from idode.ode.adams import Adams
from idode.ode.divergence import Rademacher
from idode.ode.solvers import Calibration, Field, Solver

__all__ = [
    "DensityField",
    "LogProb",
    "PathField",
    "check_repeatable",
    "log_prob",
    "prior_log_prob",
    "solve_log_prob",
]

Gammas = npt.NDArray[np.float64]

EXACT = 32  # dimensions up to which the exact divergence is the default
PILOT = 8  # states that a solver is calibrated on
NATS = 2e-4  # default error for each root of a dimension of continuous data
REPEATABLE = 1e-3  # relative difference of two calls that kernels may make, and dropout does not


@dataclass(frozen=True)
class PathField:
    """Velocity alone: the path without its log-density, at half the cost."""

    model: DiffusionODE
    condition: Condition = field(default_factory=dict)

    def speed(self, gamma: Gammas) -> Gammas:
        """Of the model's path, see :meth:`DensityField.speed`."""
        return _speed(self.model, gamma)

    def __call__(self, x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """Velocity ``(B, *)`` and no rates ``(0, B)``."""
        return self.model.velocity(x, gamma, **self.condition), x.new_zeros(0, len(x))


@dataclass(frozen=True)
class DensityField:
    """Velocity and divergence; ``probes`` are ``(n, B, *)``, or ``None`` for the exact one."""

    model: DiffusionODE
    probes: Tensor | None
    condition: Condition = field(default_factory=dict)

    def speed(self, gamma: Gammas) -> Gammas:
        """How fast a diffusion path runs: the velocity over it is the normalised one."""
        return _speed(self.model, gamma)

    def __call__(self, x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """Velocity ``(B, *)`` and divergences ``(n, B)``."""

        def velocity(y: Tensor) -> Tensor:
            return self.model.velocity(y, gamma, **self.condition)

        if self.probes is None:
            v, div = divergence.exact(velocity, x)
            return v, div[None]
        return divergence.hutchinson(velocity, x, self.probes)


def _speed(model: DiffusionODE, gamma: Gammas) -> Gammas:
    at = torch.as_tensor(gamma, dtype=torch.float64, device="cpu")  # the device need not wait
    return np.asarray(model.schedule.speed(at))


def prior_log_prob(model: DiffusionODE, z: Tensor) -> Tensor:
    r"""Log density of :math:`\mathcal N(0, \sigma(\gamma_{\max})^2 I)`, ``(B,)`` float64."""
    gamma = torch.tensor(model.gamma_max, dtype=torch.float64)
    log_sigma = float(model.schedule.log_sigma(gamma))
    square = per_sample(double(z) ** 2) * math.exp(-2 * log_sigma)
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
    prior_error: float = math.nan  # nats rms of a sample, for ending before all is noise
    latent_moments: tuple[float, float] = (math.nan, math.nan)  # mean, variance; prior 0, 1


def solve_log_prob(
    model: DiffusionODE,
    x: Tensor,
    solver: Solver,
    *,
    probes: Tensor | None = None,
    start: float | None = None,
    condition: Condition | None = None,
    error_per_gap: float = math.nan,
    checkpoint: bool = False,
    adjoint: bool = False,
) -> LogProb:
    """One solve with a given solver and given probes.

    Args:
        model: The diffusion ODE.
        x: States ``(B, *)`` at ``start``.
        solver: With its steps chosen.
        probes: For Hutchinson's estimate, ``(n, B, *)``; ``None`` is the exact divergence.
        start: Noise level of ``x``; by default ``gamma_min``.
        condition: Keyword arguments of the network, ``(B, ...)`` each.
        error_per_gap: Of the solver's calibration, in nats.
        checkpoint: Keep less for gradients, see :mod:`idode.likelihood.gradients`.
        adjoint: Keep least.
    """
    begin = model.gamma_min if start is None else start
    density: Field = DensityField(model, probes, condition or {})
    inputs = _inputs(model, condition or {})
    if adjoint and torch.is_grad_enabled():
        found = solve_with_adjoint(solver, density, x, begin, model.gamma_max, inputs)
    else:
        if checkpoint and torch.is_grad_enabled():
            density = CheckpointedField(density, inputs)
        found = solver.solve(density, x, begin, model.gamma_max)
    per_probe = prior_log_prob(model, found.x) + found.integral
    gap = found.corrector_gap
    return LogProb(
        log_p=per_probe.mean(0),
        per_probe=per_probe,
        z=found.x,
        nfe=found.nfe,
        corrector_gap=gap,
        solver_error=error_per_gap * gap,
        prior_error=math.sqrt(prior_mismatch(model, x, begin)),
        latent_moments=latent_moments(model, found.x),
    )


@float32_products()
def log_prob(
    model: DiffusionODE,
    x: Pixels,
    *,
    clean: bool = False,
    start: float | None = None,
    solver: Solver | None = None,
    n_probes: int | None = None,
    generator: torch.Generator | None = None,
    condition: Condition | None = None,
    checkpoint: bool = False,
    adjoint: bool = False,
) -> LogProb:
    r"""Log-density of states or of clean data under the ODE, with its error.

    A *state* is noised data, :math:`\alpha x_0 + \sigma\epsilon` at ``start``. Clean data is
    scaled to a state, :math:`\log p(x_0) = \log p(\alpha x_0) + d\log\alpha`: its density
    smoothed by the noise at ``gamma_min``.

    Gradients are computed where they are enabled and ``x``, a parameter of the model or the
    condition requires them; they flow through all steps of the solver.

    Args:
        model: The diffusion ODE.
        x: States ``(B, *)`` at ``start``, or clean continuous data; not pixels. A tensor or an
            array.
        clean: Whether ``x`` is clean data.
        start: Noise level of the states; by default ``gamma_min``.
        solver: By default Adams steps, calibrated on the first states to 0.005 bits/dim; for
            continuous data in few dimensions to 0.0002 nats times the root of their number.
        n_probes: Hutchinson probes of the divergence; 0 is the exact one, which takes as many
            products as dimensions. By default exact up to 32 dimensions, else one probe.
        generator: Generator of the probes; by default one with a fixed seed.
        condition: Keyword arguments of the network, ``(B, ...)`` each.
        checkpoint: For gradients, keep the states alone and evaluate the network again on the way
            back: a fraction of the memory for half as much time again.
        adjoint: For gradients, keep the end of the path alone and solve backwards: memory does
            not grow with the steps, and the gradient has an error of its own.
    """
    x = states(model, x, "log_prob")
    begin = model.gamma_min if start is None else start
    _check(model, clean=clean, both=checkpoint and adjoint)
    given, dim = rows_for(condition or {}, len(x), model.device), x[0].numel()
    log_alpha = float(model.schedule.log_alpha(torch.tensor(begin, dtype=torch.float64)))
    x = x * math.exp(log_alpha) if clean else x
    if n_probes is None:
        n_probes = 0 if dim <= EXACT else 1
    generator = generator or torch.Generator().manual_seed(0)
    probes = Rademacher().draw(n_probes, x, generator) if n_probes else None
    fine = NATS / (math.sqrt(dim) * math.log(2)) if model.levels is None else math.inf
    chosen = solver or Adams(tolerance=min(Adams.tolerance, fine))
    calibration = _calibrated(chosen, model, x.detach(), probes, begin, given)
    with torch.set_grad_enabled(_wants_gradients(model, x, given)):
        found = solve_log_prob(
            model,
            x,
            calibration.solver,
            probes=probes,
            start=begin,
            condition=given,
            error_per_gap=calibration.error_per_gap * dim * math.log(2),
            checkpoint=checkpoint,
            adjoint=adjoint,
        )
        if not clean:
            return found
        log_p, per_probe = (part + dim * log_alpha for part in (found.log_p, found.per_probe))
        return dataclasses.replace(found, log_p=log_p, per_probe=per_probe)


def _check(model: DiffusionODE, *, clean: bool, both: bool) -> None:
    """Refuse what has no log-density."""
    if clean and model.levels is not None:
        raise InputError(
            f"the model is of integer data with {model.levels} levels, which has probabilities "
            "and no density: use bits_per_dim, or log_prob of noised states"
        )
    if both:
        raise InputError("checkpoint and adjoint are two ways to save memory: choose one")


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
    check_repeatable(density, x[:PILOT], begin)
    return solver.calibrate(
        density,
        x[:PILOT],
        begin,
        model.gamma_max,
        lambda z, integral: -nats_to_bits(prior_log_prob(model, z) + integral, dim),
    )


def check_repeatable(field: DensityField, x: Tensor, gamma: float) -> None:
    """Refuse a network that says something else when it is asked again."""
    at = clock_at(gamma, x)
    path = PathField(field.model, field.condition)
    first, second = (path(x, at)[0] for _ in range(2))
    apart = float((first - second).abs().max())
    if apart > REPEATABLE * float(first.abs().max()):
        raise InputError(
            f"the network gives other values for the same input (apart by {apart:.3g}): put it "
            "into evaluation mode with net.eval(), and take randomness out of it"
        )


def _inputs(model: DiffusionODE, condition: Condition) -> list[Tensor]:
    """Tensors other than the state that gradients may be wanted for."""
    every = [*model.parameters(), *condition.values()]
    return [tensor for tensor in every if tensor.requires_grad]


def _wants_gradients(model: DiffusionODE, x: Tensor, condition: Condition) -> bool:
    asked = x.requires_grad or bool(_inputs(model, condition))
    return torch.is_grad_enabled() and asked
