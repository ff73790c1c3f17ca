r"""The fast solver: exact in everything but the network's guess of the data.

For :math:`u = x/\alpha` the ODE loses its schedule,

.. math:: \frac{\mathrm du}{\mathrm d\gamma} = \tfrac12\,(u - \hat x_0), \qquad
          u(\gamma + h) = e^{h/2}u - \tfrac12\int_0^h e^{(h-w)/2}\,\hat x_0(\gamma + w)\,
          \mathrm dw,

and :math:`\hat x_0` is a slow function of :math:`\gamma` where :math:`u` is not. A line through
its last two values integrates in closed form: the second order of DPM-Solver++(2M), with one
evaluation a step.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from idode.diffusion.predictors import DATA, VELOCITY, convert
from idode.errors import InputError
from idode.numerics import clock_at, double
from idode.ode.quadrature import quadrature
from idode.ode.solvers import Field, Solution, Solver
from idode.sampling.samplers import model_of

__all__ = ["DPM"]


@dataclass(frozen=True)
class DPM(Solver):
    r"""A second-order multistep solver of the diffusion ODE, in either direction.

    Args:
        steps: Equal in :math:`\gamma`, one evaluation each; one more where a divergence is
            integrated too.
    """

    steps: int = 20

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"dpm needs at least 1 step, got {self.steps}")

    def nodes(self, start: float, end: float) -> list[float]:
        """Where the field is evaluated, and the end."""
        inner = np.linspace(start, end, self.steps + 1)[1:-1]
        return [start, *(float(gamma) for gamma in inner), end]

    def solve(self, field: Field, x: Tensor, start: float, end: float) -> Solution:
        """Move ``x`` from ``start`` to ``end``."""
        model = model_of(field, "dpm")
        model.path.check_one_level("the solver dpm", "use adams or dopri5")
        schedule = model.schedule
        nodes = self.nodes(start, end)
        alphas = schedule.alpha(torch.tensor(nodes, dtype=torch.float64)).tolist()
        u, collected = x / alphas[0], []
        past: tuple[float, Tensor] | None = None
        for i, (here, there) in enumerate(itertools.pairwise(nodes)):
            x, clock = alphas[i] * u, clock_at(here, x)
            v, rates = field(x, clock)
            collected.append(rates)
            data = convert(v, x, clock, schedule, VELOCITY, DATA)
            h = there - here
            u = math.exp(h / 2) * u - math.expm1(h / 2) * data
            if past is not None:
                slope = (data - past[1]) / (here - past[0])
                u = u + (h - 2 * math.expm1(h / 2)) * slope
            past = (here, data)
        x = alphas[-1] * u
        if len(collected[0]):
            collected.append(field(x, clock_at(end, x))[1])
        rates = double(torch.stack(collected))
        weights = torch.as_tensor(quadrature(nodes[: len(collected)])).to(rates)
        integral = torch.einsum("g,gnb->nb", weights, rates)
        unknown = torch.zeros(len(x), dtype=torch.float64, device=rates.device)
        return Solution(x, integral, len(collected), unknown)
