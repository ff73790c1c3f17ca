r"""Log-weights: one draw of an image's :math:`\log p(x) + c(x)` under one set of settings.

Dequantize, draw probes, solve. Bounds are means, or log-mean-exponentials, of such weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from idode import random
from idode.diffusion.model import DiffusionODE
from idode.errors import InputError, NumericalError, choose
from idode.likelihood.dequantization import (
    DEQUANTIZATIONS,
    Continuous,
    Dequantization,
    TruncatedNormal,
    Uniform,
    Variational,
)
from idode.likelihood.learned_dequantization import Learned
from idode.likelihood.log_prob import LogProb, log_prob
from idode.ode import divergence
from idode.ode.solvers import Adams, Solver

__all__ = ["LikelihoodSettings", "Task", "dequantization_for", "uniform_start"]


TOLERANCES = {"adams": 0.005, "dopri5": 1e-5}


@dataclass(frozen=True)
class LikelihoodSettings:
    """How a number was made; two numbers compare only where these agree.

    Args:
        dequantization: tn, uniform, variational, learned, or none for continuous data.
        importance: Draws K inside the logarithm.
        closed_form: For K = 1, the closed-form entropy of the noise, as in the paper, in place
            of its log-density at the draw. The mean is the same; the drawn one cancels most of
            the noise in log p, since both see the same distance from the bin's centre.
        repeats: Independent repetitions averaged outside the logarithm.
        probes: Hutchinson probes for each solve; 0 is the exact divergence.
        probe: rademacher or gaussian.
        fresh_probes: A new probe for each of the K draws. Its noise inside the logarithm
            improves the value without being a bound, so by default an image keeps its probe.
        solver: adams (a calibrated grid), or dopri5 (the paper's).
        tolerance: For adams, the root mean square error of an image in bits/dim, by default
            0.005; for dopri5, rtol and atol, by default the paper's 1e-5.
        start: Where on the clock the pixels enter; by default ``gamma_min``, and for uniform
            dequantization where the noise has the variance of a bin.
        seed: Of dequantization and probes.
        batch_size: Images solved together; it does not change the values.
    """

    dequantization: str = "tn"
    importance: int = 1
    closed_form: bool = False
    repeats: int = 1
    probes: int = 1
    probe: str = "rademacher"
    fresh_probes: bool = False
    solver: str = "adams"
    tolerance: float | None = None
    start: float | None = None
    seed: int = 0
    batch_size: int = 64

    def __post_init__(self) -> None:
        if self.dequantization not in DEQUANTIZATIONS:
            raise InputError(
                f"no dequantization called {self.dequantization!r}: choose one of "
                f"{', '.join(DEQUANTIZATIONS)}"
            )
        choose("probe", self.probe, divergence.PROBES)
        choose("solver", self.solver, TOLERANCES)
        if self.closed_form and self.importance > 1:
            raise InputError(
                "the closed-form entropy is for one draw: inside the logarithm of "
                f"{self.importance} draws each needs its own density"
            )
        if self.closed_form and self.dequantization == "learned":
            raise InputError("a learned dequantization has no closed-form entropy: leave it off")
        for name, least in (("importance", 1), ("repeats", 1), ("probes", 0), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.allowed < math.inf:
            raise InputError(f"the tolerance must be a positive number, got {self.tolerance}")
        if not -(2**63) <= self.seed < 2**63:
            raise InputError(f"the seed must fit 64 bits, got {self.seed}")

    @property
    def allowed(self) -> float:
        """The tolerance, or the solver's usual one."""
        return TOLERANCES[self.solver] if self.tolerance is None else self.tolerance


def uniform_start(levels: int) -> float:
    """Where the model's noise has the variance of a bin, (2/L)²/12."""
    return -2 * math.log(math.sqrt(3) * levels)


def dequantization_for(
    model: DiffusionODE, settings: LikelihoodSettings, learned: Learned | None = None
) -> Dequantization:
    """The chosen way from data to states, with its default start; ``learned`` if that is it."""
    name = settings.dequantization
    if name != "none" and model.levels is None:
        raise InputError(
            f"the model was trained on continuous data: choose dequantization none, not {name}"
        )
    start = model.gamma_min if settings.start is None else settings.start
    if name == "uniform" and model.levels is not None and settings.start is None:
        start = max(start, uniform_start(model.levels))
    if not model.gamma_min <= start < model.gamma_max:
        raise InputError(
            f"the start must lie on the model's clock, {model.gamma_min:.4g} to "
            f"{model.gamma_max:.4g}, got {start:.4g}"
        )
    if name == "none" or model.levels is None:
        return Continuous(start)
    if name == "learned":
        return _fitting(learned, model.levels, settings.start)
    if name == "uniform":
        return Uniform(start, model.levels)
    kind = {"tn": TruncatedNormal, "variational": Variational}[name]
    return kind(model.schedule, start, model.levels)


def _fitting(learned: Learned | None, levels: int, start: float | None) -> Learned:
    """The dequantizer, if there is one for this data and this start."""
    if learned is None:
        raise InputError("a learned dequantization must be given: train one, or choose tn")
    if learned.levels != levels or start not in (None, learned.gamma):
        raise InputError(
            f"the dequantizer is for {learned.levels} levels from {learned.gamma:.4g} on, got "
            f"{levels} levels and start {start}: train one for these"
        )
    return learned


@dataclass(frozen=True)
class Task:
    """One model under one set of settings: turns images into log-weights."""

    model: DiffusionODE
    settings: LikelihoodSettings
    bridge: Dequantization
    dtype: torch.dtype

    @torch.no_grad()
    def state(self, pixels: Tensor, indices: Sequence[int], repeat: int) -> tuple[Tensor, Tensor]:
        """States ``(B, *)`` and the weights ``(B,)`` that make bounds of their log-densities."""
        shape = pixels.shape[1:]
        noise = random.per_image(
            lambda g: random.uniform(shape, g),
            indices,
            seed=self.settings.seed,
            purpose=random.NOISE,
            repeat=repeat,
        ).to(pixels.device)
        drawn = self.bridge.draw(pixels, noise)
        weight = drawn.mean_weight if self.settings.closed_form else drawn.weight
        return drawn.x.to(self.dtype), weight

    def probes(self, x: Tensor, indices: Sequence[int], repeat: int, count: int) -> Tensor | None:
        """Probes ``(count, B, *)``, or ``None`` for the exact divergence."""
        if count == 0:
            return None
        probe = divergence.PROBES[self.settings.probe]
        one = torch.empty(x.shape[1:], dtype=x.dtype)
        drawn = random.per_image(
            lambda g: probe(count, one, g),
            indices,
            seed=self.settings.seed,
            purpose=random.PROBE,
            repeat=repeat,
        )
        return drawn.transpose(0, 1).to(x.device)

    def solve(
        self, x: Tensor, probes: Tensor | None, solver: Solver, largest_gap: float
    ) -> LogProb:
        """Log-density; samples much rougher than the pilot are solved again on finer grids."""
        found = log_prob(self.model, x, start=self.bridge.gamma, solver=solver, probes=probes)
        if not isinstance(solver, Adams) or len(solver.grid) > 2048:
            return found
        rough = found.corrector_gap > 1.5 * largest_gap
        if not bool(rough.any()):
            return found
        some = None if probes is None else probes[:, rough]
        try:
            again = self.solve(x[rough], some, solver.refined(), largest_gap)
        except NumericalError as error:
            which = None if error.sample is None else int(rough.nonzero()[error.sample, 0])
            raise NumericalError(str(error), sample=which) from error
        per_probe, z, corrector_gap = (
            found.per_probe.clone(),
            found.z.clone(),
            found.corrector_gap.clone(),
        )
        per_probe[:, rough], z[rough], corrector_gap[rough] = (
            again.per_probe,
            again.z,
            again.corrector_gap,
        )
        nfe = found.nfe + again.nfe * float(rough.double().mean())
        return LogProb(per_probe.mean(0), per_probe, z, nfe, corrector_gap)
