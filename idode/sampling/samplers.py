r"""Ways of drawing samples: the ODE backwards by a solver, or steps of the SDE.

Log-densities come from the same path as the sample,

.. math:: \log p(x) = \log\mathcal N(\text{latent}) + \int_{\gamma_{\min}}^{\gamma_{\max}}
          \nabla\cdot v\,\mathrm d\gamma.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from idode import random
from idode.diffusion.model import Condition, DiffusionODE
from idode.errors import InputError
from idode.likelihood.log_prob import DensityField, PathField, prior_log_prob
from idode.numerics import double, nats_to_bits
from idode.ode.divergence import Rademacher
from idode.ode.solvers import Field, Solver

__all__ = ["OdeSampler", "SampleBatch", "Sampler", "States", "latents", "model_of"]

# Calibration measures data in units of ten bins: a tolerance of 0.005 is a twentieth of a bin.
BINS = 10


def latents(
    model: DiffusionODE,
    shape: Sequence[int],
    indices: Sequence[int],
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Draws of the prior ``(B, *)``, the same for an index whatever others are drawn with it."""
    z = random.per_image(
        lambda g: torch.randn(tuple(shape), generator=g, dtype=torch.float64),
        indices,
        seed=seed,
        purpose=random.NOISE,
        repeat=0,
    )
    gamma = torch.tensor(model.gamma_max, dtype=torch.float64)
    return (float(model.schedule.sigma(gamma)) * z).to(dtype)


@dataclass(frozen=True)
class SampleBatch:
    """Some samples to draw: their numbers, and the noise and the field that belong to them.

    Args:
        model: The diffusion ODE.
        shape: Shape of one sample.
        indices: Numbers of the samples, which seed their noise.
        seed: Seed of all samples.
        n_probes: Hutchinson probes of the divergence, 0 for the exact one; ``None`` leaves the
            divergence out.
        dtype: Type of states and network.
        condition: Keyword arguments of the network, one row for each of these samples.
    """

    model: DiffusionODE
    shape: tuple[int, ...]
    indices: Sequence[int]
    seed: int
    n_probes: int | None = None
    dtype: torch.dtype = torch.float32
    condition: Condition = dataclasses.field(default_factory=dict)

    def part(self, lo: int, hi: int) -> SampleBatch:
        """Samples ``lo`` to ``hi - 1`` of these."""
        condition = {name: value[lo:hi] for name, value in self.condition.items()}
        return replace(self, indices=self.indices[lo:hi], condition=condition)

    def field(self) -> Field:
        """Velocity, with the divergence where it is asked for."""
        if self.n_probes is None:
            return PathField(self.model, self.condition)
        return DensityField(self.model, self._probes(self.n_probes), self.condition)

    def latents(self) -> Tensor:
        """Where the paths begin, ``(B, *)``."""
        z = latents(self.model, self.shape, self.indices, self.seed, self.dtype)
        return z.to(self.model.device)

    def noise(self, step: int) -> Tensor:
        """Standard normal numbers ``(B, *)`` for step 0, 1, ... of a stochastic sampler."""
        drawn = random.per_image(
            lambda g: torch.randn(self.shape, generator=g, dtype=self.dtype),
            self.indices,
            seed=self.seed,
            purpose=random.NOISE,
            repeat=step + 1,
        )
        return drawn.to(self.model.device)

    def _probes(self, count: int) -> Tensor | None:
        if count == 0:
            return None
        one = torch.empty(self.shape, dtype=self.dtype)
        drawn = random.per_image(
            lambda g: Rademacher().draw(count, one, g),
            self.indices,
            seed=self.seed,
            purpose=random.PROBE,
            repeat=0,
        )
        return drawn.transpose(0, 1).to(self.model.device)


def model_of(field: Field, solver: str) -> DiffusionODE:
    """The model behind a field, for solvers that need its schedule."""
    if isinstance(field, PathField | DensityField):
        return field.model
    raise InputError(
        f"{solver} is for diffusion ODEs, whose schedule it needs: solve another field with "
        "adams, dopri5 or rk4"
    )


@dataclass(frozen=True)
class States:
    """Samples at ``gamma_min``."""

    x: Tensor  # (B, *)
    log_p: Tensor | None  # (B,) nats, float64; None where not asked for
    nfe: float  # of each, in the mean

    @classmethod
    def joined(cls, parts: Sequence[States]) -> States:
        """Several, one after the other."""
        x = torch.cat([part.x for part in parts])
        known = [part.log_p for part in parts if part.log_p is not None]
        total = sum(part.nfe * len(part.x) for part in parts)
        return cls(x, torch.cat(known) if known else None, total / len(x))


class Sampler(abc.ABC):
    """A way of drawing samples, listed with the solvers in :data:`idode.sampling.SAMPLERS`."""

    has_density = True  # whether a sample's path has a log-density

    @abc.abstractmethod
    def draw(self, batch: SampleBatch) -> States:
        """States of a batch."""

    def calibrated(self, pilot: SampleBatch) -> Sampler:
        """The sampler with its steps chosen on some samples."""
        return self


@dataclass(frozen=True)
class OdeSampler(Sampler):
    """The ODE from the prior to the data, by any solver."""

    solver: Solver

    def calibrated(self, pilot: SampleBatch) -> OdeSampler:
        """Choose the solver's steps, for the error of log p where it is asked for, else of x."""
        model, dim = pilot.model, len(pilot.latents()[0].flatten())
        scale = 1.0 if model.levels is None else model.levels / 2 / BINS

        def bits(x: Tensor, integral: Tensor) -> Tensor:
            return nats_to_bits(integral, dim)

        def values(x: Tensor, integral: Tensor) -> Tensor:
            return double(x).flatten(1).T * scale

        # The grid follows the divergence, so there must be one even where nobody asks for log p.
        probed = pilot if pilot.n_probes is not None else replace(pilot, n_probes=1)
        found = self.solver.calibrate(
            probed.field(),
            pilot.latents(),
            model.gamma_max,
            model.gamma_min,
            values if pilot.n_probes is None else bits,
        )
        return OdeSampler(found.solver)

    def draw(self, batch: SampleBatch) -> States:
        """Solve from the latents to the states."""
        model, z = batch.model, batch.latents()
        found = self.solver.solve(batch.field(), z, model.gamma_max, model.gamma_min)
        if batch.n_probes is None:
            return States(found.x, None, found.nfe)
        # The solve runs backwards, so its integral is minus the one of the formula.
        log_p = prior_log_prob(model, z) - found.integral.mean(0)
        return States(found.x, log_p, found.nfe)
