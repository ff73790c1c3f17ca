r"""VDM's sampler: back through the noise by draws from the posterior.

For :math:`u = x/\alpha` noising is a random walk of variance :math:`e^\gamma`, so between
:math:`\gamma_s < \gamma_t` the posterior given the data is that of a Brownian bridge,

.. math:: u_s = (1 - c)\,u_t + c\,\hat x_0 + e^{\gamma_s/2}\sqrt c\;z, \qquad
          c = 1 - e^{\gamma_s - \gamma_t},

for every schedule alike. The true data is not known: the network's guess stands for it, which is
exact in the limit of many steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from idode.diffusion.model import Condition, DiffusionODE
from idode.diffusion.predictors import DATA
from idode.errors import InputError
from idode.numerics import clock_at
from idode.sampling.samplers import SampleBatch, Sampler, States

__all__ = ["Ancestral", "ancestral"]


@dataclass(frozen=True)
class Ancestral(Sampler):
    """Sampling of the diffusion SDE, on equal steps in gamma with one evaluation each."""

    steps: int = 500
    has_density = False

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"ancestral sampling needs at least 1 step, got {self.steps}")

    def draw(self, batch: SampleBatch) -> States:
        """States without log-densities, which the SDE does not have."""
        if batch.n_probes is not None:
            raise InputError(
                "ancestral sampling has no path whose density is known: for likelihoods choose "
                "dopri5, adams or dpm"
            )
        z = batch.latents()
        x = ancestral(batch.model, z, self.steps, batch.noise, batch.condition)
        return States(x, None, self.steps)


def ancestral(
    model: DiffusionODE,
    z: Tensor,
    steps: int,
    noise: Callable[[int], Tensor],
    condition: Condition | None = None,
) -> Tensor:
    """From latents ``z`` ``(B, *)`` at ``gamma_max`` to states at ``gamma_min``.

    Args:
        model: The diffusion model.
        z: Draws of the prior.
        steps: Equal steps in gamma, one evaluation each.
        noise: Gives standard normal numbers ``(B, *)`` for step 0, 1, ...
        condition: Keyword arguments of the network.
    """
    model.path.check_one_level("ancestral sampling", "use the solver adams or dopri5")
    nodes = np.linspace(model.gamma_max, model.gamma_min, steps + 1).tolist()
    alphas: list[float] = model.schedule.alpha(torch.tensor(nodes, dtype=torch.float64)).tolist()
    u = z / alphas[0]
    for i, (here, there) in enumerate(itertools.pairwise(nodes)):
        with torch.no_grad():
            data = model.predict(alphas[i] * u, clock_at(here, u), DATA, **(condition or {}))
        c = -math.expm1(there - here)
        u = (1 - c) * u + c * data + math.exp(there / 2) * math.sqrt(c) * noise(i)
    return alphas[-1] * u
