"""One way of sampling: where its randomness comes from, and which solver moves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from idode import random
from idode.diffusion.model import DiffusionODE
from idode.errors import InputError, NumericalError, choose
from idode.likelihood.log_prob import ode_field, path_field, prior_log_prob
from idode.numerics import nats_to_bits
from idode.ode import divergence
from idode.ode.calibration import calibrate
from idode.ode.solvers import Adams, Dopri5, Solver, uniform_grid
from idode.sampling.ancestral import ancestral
from idode.sampling.multistep import DataMultistep

__all__ = ["PILOT", "SOLVERS", "Task", "latents", "steps_of"]

SOLVERS: dict[str, int | None] = {  # steps where none are asked for
    "dopri5": None,  # chooses its own
    "adams": None,  # calibrated on the first samples
    "ancestral": 500,
    "dpm": 20,
}
PILOT = 16
BITS_TOLERANCE, BIN_TOLERANCE, VALUE_TOLERANCE = 0.005, 0.05, 0.005


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


def steps_of(solver: str | Solver, steps: int | None, likelihood: bool) -> int | None:
    """The steps a solver will take, ``None`` where it chooses them; what cannot be is refused."""
    if not isinstance(solver, str):
        if steps is not None:
            raise InputError("a solver brings its own steps: leave steps out")
        return None
    usual = choose("solver", solver, SOLVERS)
    if steps is not None and steps < 1:
        raise InputError(f"sampling needs at least 1 step, got {steps}")
    if solver == "dopri5" and steps is not None:
        raise InputError(
            f"dopri5 chooses its own steps, not {steps}: leave them out, or choose adams, "
            "ancestral or dpm"
        )
    if solver == "ancestral" and likelihood:
        raise InputError(
            "ancestral sampling has no path whose density is known: for likelihoods choose "
            "dopri5, adams or dpm"
        )
    return usual if steps is None else steps


@dataclass(frozen=True)
class Task:
    """One way of sampling: turns indices into states."""

    model: DiffusionODE
    shape: tuple[int, ...]
    seed: int
    solver: str | Solver
    steps: int | None
    probes: int | None  # None: no likelihood
    dtype: torch.dtype
    device: torch.device | str

    def ready(self, pilot: int) -> Task:
        """The same with a solver in place of its name."""
        steps = steps_of(self.solver, self.steps, self.probes is not None)
        if not isinstance(self.solver, str):
            return self
        if self.solver == "ancestral":
            return replace(self, steps=steps)
        return replace(self, solver=self._ode(steps, pilot), steps=None)

    def _ode(self, steps: int | None, pilot: int) -> Solver:
        if self.solver == "dopri5":
            return Dopri5()
        if self.solver == "dpm":
            assert steps is not None
            return DataMultistep(self.model.schedule, steps)
        return self._calibrated(range(pilot)) if steps is None else Adams(uniform_grid(steps))

    def _calibrated(self, indices: Sequence[int]) -> Solver:
        """Steps for the first samples; in bits/dim with likelihoods, in pixels without."""
        model, z = self.model, self._latents(indices)
        levels, dim = model.levels, z[0].numel()

        def bits(x: Tensor, integral: Tensor) -> Tensor:
            return nats_to_bits(integral, dim)

        def pixels(x: Tensor, integral: Tensor) -> Tensor:
            return x.double().flatten(1).T

        value, tolerance = (pixels, VALUE_TOLERANCE)
        if self.probes is not None:
            value, tolerance = (bits, BITS_TOLERANCE)
        elif levels is not None:
            tolerance = BIN_TOLERANCE * 2 / levels
        # The grid follows the rates, so there must be one even where nobody asks for log p.
        field = ode_field(
            model, self._probes(z, indices, 1 if self.probes is None else self.probes)
        )
        found = calibrate(field, z, model.gamma_max, model.gamma_min, value, tolerance)
        return found.solver

    def draw(self, indices: Sequence[int]) -> tuple[Tensor, Tensor, int]:
        """States ``(B, *)``, their log-densities ``(B,)`` or nothing, evaluations."""
        model, z = self.model, self._latents(indices)
        log_p = torch.zeros(0, dtype=torch.float64)
        if isinstance(self.solver, str):
            assert self.steps is not None
            x = ancestral(model, z, self.steps, lambda i: self._noise(indices, i + 1))
            nfe = self.steps
        else:
            field = path_field(model)
            if self.probes is not None:
                field = ode_field(model, self._probes(z, indices, self.probes))
            found = self.solver(field, z, model.gamma_max, model.gamma_min)
            x, nfe = found.x, found.nfe
            if self.probes is not None:
                # The solve runs backwards, so its integral is minus the one of the formula.
                log_p = prior_log_prob(model, z) - found.integral.mean(0)
        if not bool(torch.isfinite(x).all()):
            raise NumericalError("a sample is not finite: the network's answers are not")
        return x, log_p, nfe

    def _latents(self, indices: Sequence[int]) -> Tensor:
        return latents(self.model, self.shape, indices, self.seed, self.dtype).to(self.device)

    def _noise(self, indices: Sequence[int], repeat: int) -> Tensor:
        drawn = random.per_image(
            lambda g: torch.randn(self.shape, generator=g, dtype=self.dtype),
            indices,
            seed=self.seed,
            purpose=random.NOISE,
            repeat=repeat,
        )
        return drawn.to(self.device)

    def _probes(self, z: Tensor, indices: Sequence[int], count: int) -> Tensor | None:
        if count == 0:
            return None
        one = torch.empty(self.shape, dtype=self.dtype)
        drawn = random.per_image(
            lambda g: divergence.rademacher(count, one, g),
            indices,
            seed=self.seed,
            purpose=random.PROBE,
            repeat=0,
        )
        return drawn.transpose(0, 1).to(z.device)
