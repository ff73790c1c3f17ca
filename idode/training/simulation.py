r"""Maximum likelihood through the solver, as FFJORD trains: no diffusion to match.

.. math:: -\log p(x) = -\log\mathcal N(z; 0, \sigma_{\max}^2I)
          - \int\nabla\cdot f\,\mathrm dt, \qquad \frac{\mathrm dx}{\mathrm dt} = f

Gradients are those of the numbers the solver computed, by backpropagation through its steps
(math.md: simulation). The time :math:`t` is the mass of a time density, so that the solver
steps evenly through what the density calls even.
"""

from __future__ import annotations

import torch
from torch import Tensor

from idode.diffusion.model import Condition, DiffusionODE
from idode.diffusion.noise_levels import NoiseLevelDistribution
from idode.likelihood.log_prob import prior_log_prob
from idode.numerics import like, per_sample
from idode.ode.divergence import products
from idode.ode.solvers import RK4, Field
from idode.runs.objective_config import SimulationConfig

__all__ = ["simulated"]


def simulated(
    model: DiffusionODE,
    x: Tensor,
    probes: Tensor,
    density: NoiseLevelDistribution,
    config: SimulationConfig,
    *,
    start: float | None = None,
    condition: Condition | None = None,
) -> Tensor:
    r"""Minus the log-density of states under the ODE, in nats ``(B,)``, with its gradient.

    Regularised as by RNODE: plus :math:`\lambda_K\int\|f\|^2\mathrm dt + \lambda_J\int
    \|(\nabla f)^\top p\|^2\mathrm dt`.

    Args:
        model: Network, predictor and schedule; any parameterisation of a velocity.
        x: States ``(B, *)`` at ``start``.
        probes: Hutchinson's, ``(n, B, *)``, kept along the path.
        density: Its mass is the solver's time, from 0 to 1 on the whole clock.
        config: Steps and regularisation.
        start: Noise level of ``x``; by default ``gamma_min``.
        condition: Keyword arguments of the network.
    """
    begin = 0.0
    if start is not None:
        begin = float(density.cdf(torch.tensor(start, dtype=torch.float64)))
    field = _timed_field(model, probes, density, condition or {})
    found = RK4(config.steps).solve(field, x, begin, 1.0)
    divergence, kinetic, jacobian = found.integral
    nats: Tensor = -prior_log_prob(model, found.x) - divergence
    return nats.add(kinetic, alpha=config.kinetic).add(jacobian, alpha=config.jacobian)


def _timed_field(
    model: DiffusionODE, probes: Tensor, density: NoiseLevelDistribution, condition: Condition
) -> Field:
    """Drift on the density's time; divergence, kinetic energy and Jacobian as rates (3, B)."""

    def field(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        times = density.at(t)

        def drift(y: Tensor) -> Tensor:
            return model.velocity(y, times.gamma, **condition) / like(times.density, y)

        v, found = products(drift, x, probes)
        divergence = (probes * found).flatten(2).sum(2).mean(0)
        jacobian = (found**2).flatten(2).sum(2).mean(0)
        return v, torch.stack([divergence, per_sample(v**2), jacobian])

    return field
