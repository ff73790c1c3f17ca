"""A fitted density of standardised rows: closed form where it is a mixture, else by the ODE."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from idode.diffusion import exact
from idode.diffusion.schedules import VariancePreserving
from idode.likelihood.log_prob import DensityField, prior_log_prob, solve_log_prob
from idode.nets.mlp import MLP
from idode.numerics import nats_to_bits
from idode.ode.adams import Adams
from idode.ode.divergence import Rademacher
from idode.ode.solvers import Solver
from idode.sklearn.columns import Matrix
from idode.sklearn.residual import GAMMA_MAX, GAMMA_MIN, diffusion_of

__all__ = ["Corrected", "Plain", "corrected"]

BATCH = 1024  # rows solved together
PILOT = 32  # rows that the steps are chosen on
EXACT, PROBES = 64, 8  # columns up to which the divergence is exact, and probes above
TOLERANCE = 0.002  # bits a column, of a log-density
VP = VariancePreserving()


@dataclass(frozen=True)
class Plain:
    """A mixture, smoothed by the least noise of its diffusion."""

    mixture: exact.Mixture

    def log_prob(self, z: Matrix) -> Matrix:
        """Log-density of rows ``(n, d)`` in nats, ``(n,)``."""
        x, log_alpha = _states(z)
        at = torch.tensor(GAMMA_MIN, dtype=torch.float64)
        parts = [self.mixture.log_prob(part, at, VP) for part in torch.split(x, BATCH)]
        return torch.cat(parts).numpy() + log_alpha

    def sample(self, count: int, seed: int) -> Matrix:
        """Rows ``(count, d)``."""
        drawn = self.mixture.sample(count, torch.Generator().manual_seed(seed))
        return np.asarray(drawn.numpy())


@dataclass(frozen=True)
class Corrected:
    """The diffusion of a mixture with a network's correction, and the steps it is solved by."""

    mixture: exact.Mixture
    net: MLP  # float64: a row's value must not depend on the rows beside it
    solver: Solver

    def log_prob(self, z: Matrix) -> Matrix:
        """Log-density of rows ``(n, d)`` in nats, ``(n,)``."""
        model = diffusion_of(self.mixture, self.net)
        x, log_alpha = _states(z)
        with torch.no_grad():
            parts = [
                solve_log_prob(model, part, self.solver, probes=_probes(part)).log_p
                for part in torch.split(x, BATCH)
            ]
        return torch.cat(parts).numpy() + log_alpha

    def sample(self, count: int, seed: int) -> Matrix:
        """Rows ``(count, d)``."""
        drawn = diffusion_of(self.mixture, self.net).sample(count, seed=seed)
        return np.asarray(drawn.double().numpy())


@torch.no_grad()
def corrected(mixture: exact.Mixture, net: MLP, rows: Matrix) -> Corrected:
    """Choose the steps of the solver on some rows ``(n, d)``, once for all that follow."""
    net = net.double()
    model = diffusion_of(mixture, net)
    x, _ = _states(rows[:PILOT])
    found = Adams(tolerance=TOLERANCE).calibrate(
        DensityField(model, _probes(x)),
        x,
        GAMMA_MIN,
        GAMMA_MAX,
        lambda z, integral: -nats_to_bits(prior_log_prob(model, z) + integral, x.shape[1]),
    )
    return Corrected(mixture, net, found.solver)


def _states(z: Matrix) -> tuple[Tensor, float]:
    """Clean rows at the least noise, and the logarithm of how much that shrinks them."""
    log_alpha = float(VP.log_alpha(torch.tensor(GAMMA_MIN, dtype=torch.float64)))
    return torch.from_numpy(z * np.exp(log_alpha)), z.shape[1] * log_alpha


def _probes(x: Tensor) -> Tensor | None:
    """The same probes for every row, so that rows compare; none where the exact one is cheap."""
    if x.shape[1] <= EXACT:
        return None
    one = Rademacher().draw(PROBES, x[:1], torch.Generator().manual_seed(0))
    return one.expand(PROBES, *x.shape)
