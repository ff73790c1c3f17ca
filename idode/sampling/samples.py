r"""Draw latents, bring them to the data's end of the clock, decode.

A latent is :math:`\sigma(\gamma_{\max})\,z` with a normal :math:`z`, the prior that the
likelihood uses. A state at :math:`\gamma_{\min}` becomes the most likely pixels: the level whose
centre is nearest to :math:`x/\alpha`. Log-densities come from the same path as the sample,

.. math:: \log p(x) = \log\mathcal N(\text{latent}) + \int_{\gamma_{\min}}^{\gamma_{\max}}
          \nabla\cdot v\,\mathrm d\gamma.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from idode import random
from idode.batches import FittingSize, rows_for
from idode.diffusion.model import Condition, DiffusionODE, check_is_model
from idode.errors import InputError, NumericalError, checked_seed, whole
from idode.likelihood.dequantization import centres
from idode.likelihood.states import state_dtype
from idode.numerics import float32_products, nats_to_bits, per_sample
from idode.ode.dormand_prince import Dopri5
from idode.ode.solvers import Solver
from idode.sampling.samplers import OdeSampler, SampleBatch, Sampler, States

__all__ = ["Parts", "Samples", "nearest_level", "sample"]

PILOT = 16  # samples that a solver is calibrated on
NOT_SHARED = "the processes do not see the same folder: write the samples to one that all share"


@dataclass(frozen=True)
class Samples:
    """What was drawn and what it cost."""

    data: Tensor  # (N, *) levels for discrete data, x/alpha for continuous
    x: Tensor  # (N, *) states at gamma_min
    log_p: Tensor | None  # (N,) nats, float64: density of x; None where not asked for
    bits_per_dim: Tensor | None  # (N,) of the data, to compare with those of a test set
    nfe: float  # evaluations of the network for each sample
    seconds: float
    complete: bool  # False when interrupted: what is here are the first samples of all
    precision: str  # of the network's products, such as "float32"


class Parts(Protocol):
    """Finished batches of a sampling, and which ones this process draws."""

    @property
    def alone(self) -> bool:
        """Whether this process draws all of them."""

    def get(self, lo: int, hi: int) -> States | None:
        """Samples ``lo`` to ``hi - 1``, where they were drawn before or by another process."""

    def put(self, lo: int, hi: int, states: States) -> None:
        """Keep them."""

    def mine(self, number: int) -> bool:
        """Whether this process draws the batch of this number."""

    def wait(self) -> None:
        """Return when all processes are here."""


class AllHere:
    """One process that draws everything and keeps nothing."""

    alone = True

    def get(self, lo: int, hi: int) -> States | None:
        """``None``: nothing was kept."""
        return None

    def put(self, lo: int, hi: int, states: States) -> None:
        """Keep nothing."""

    def mine(self, number: int) -> bool:
        """All are."""
        return True

    def wait(self) -> None:
        """There is nobody to wait for."""


def nearest_level(model: DiffusionODE, x: Tensor) -> Tensor:
    """The most likely pixels of states at ``gamma_min``; uint8, int32 above 256 levels."""
    if model.levels is None:
        raise InputError("the model is of continuous data: its states have no levels")
    gamma = torch.tensor(model.gamma_min, dtype=torch.float64)
    position = (x.double() / float(model.schedule.alpha(gamma)) + 1) * model.levels / 2 - 0.5
    small = torch.uint8 if model.levels <= 256 else torch.int32
    return position.round().clamp(0, model.levels - 1).to(small)


@float32_products()
def sample(
    model: DiffusionODE,
    count: int,
    *,
    seed: int | torch.Generator = 0,
    solver: Solver | Sampler | None = None,
    log_prob: bool = False,
    n_probes: int = 1,
    batch_size: int = 64,
    dtype: torch.dtype | None = None,
    condition: Condition | None = None,
    progress: Callable[[int], None] | None = None,
    parts: Parts | None = None,
) -> Samples:
    """Draw from the model.

    Args:
        model: The diffusion ODE.
        count: Number of samples.
        seed: A number, or a generator that gives one. Every sample has its own stream: it does
            not depend on its batch.
        solver: By default the paper's Dormand-Prince at 1e-5; any solver or sampler.
        log_prob: Also integrate the divergence along each path.
        n_probes: Hutchinson probes of the divergence; 0 is exact, at one product a dimension.
        batch_size: Samples solved together.
        dtype: Type of the states, by default that of the model.
        condition: Keyword arguments of the network, one row for each sample.
        progress: Called with the number of samples just done.
        parts: Keeps finished batches for a restart, and shares them between processes.

    Returns:
        The samples and their cost. ``Ctrl-C`` returns the batches that are done.
    """
    began = time.perf_counter()
    check_is_model(model)
    count, batch_size, n_probes = _checked(model, count, batch_size, n_probes)
    if not isinstance(seed, torch.Generator):
        seed = torch.Generator().manual_seed(checked_seed(seed, 2**64))
    if log_prob and model.path.bits:
        raise InputError(
            "a sample of this model has a density given its code only (path.bits): leave log_prob "
            "out, or evaluate the samples with bits_per_dim"
        )
    assert model.shape is not None
    stream = int(torch.randint(2**62, (1,), generator=seed, device=seed.device))
    # Few samples get the steps that many would, but there are no conditions beyond theirs.
    known = range(count if condition else max(count, min(PILOT, batch_size)))
    code = model.path.prior(random.uniforms(known, seed=stream, purpose=random.CODE, repeat=0))
    everything = SampleBatch(
        model, model.shape, known, stream, n_probes if log_prob else None,
        state_dtype(model, dtype) if log_prob else dtype or model.dtype,
        rows_for({**code, **(condition or {})}, len(known), model.device),
    )  # fmt: skip
    chosen = solver if isinstance(solver, Sampler) else OdeSampler(solver or Dopri5())
    kept = parts or AllHere()
    cuts = [(lo, min(count, lo + batch_size)) for lo in range(0, count, batch_size)]
    done: dict[int, States] = {}
    fitting = FittingSize(batch_size)
    with torch.no_grad():
        sampler = chosen.calibrated(everything.part(0, PILOT))
        try:
            for number, (lo, hi) in enumerate(cuts):
                states = kept.get(lo, hi)
                if states is None and kept.mine(number):
                    batch = everything.part(lo, hi)
                    drawn = fitting.each(hi - lo, lambda a, b: sampler.draw(batch.part(a, b)))  # noqa: B023
                    states = States.joined([_finite(some) for some in drawn])
                    kept.put(lo, hi, states)
                if states is not None:
                    done[number] = states
                    if progress is not None:
                        progress(hi - lo)
            kept.wait()
            for number, (lo, hi) in enumerate(cuts):
                states = done.get(number) or kept.get(lo, hi)
                if states is None:
                    raise InputError(NOT_SHARED)
                done[number] = states
            kept.wait()  # or the first process deletes what others are about to read
        except KeyboardInterrupt:
            if not done or not kept.alone:
                raise
    # By number: batches of other processes may arrive after later ones of this process.
    ordered = [done[number] for number in sorted(done)]
    return _samples(model, ordered, count, time.perf_counter() - began)


def _checked(
    model: DiffusionODE, count: int, batch_size: int, n_probes: int
) -> tuple[int, int, int]:
    """The numbers as they are; refuse what cannot be drawn."""
    if model.shape is None:
        raise InputError(
            "the model does not know the shape of a sample: pass shape=(channels, height, width) "
            "when it is made"
        )
    return (
        whole("count", count, 1),
        whole("batch_size", batch_size, 1),
        whole("n_probes", n_probes, 0),
    )


def _finite(states: States) -> States:
    """The states on the CPU; refused where the network's predictions were not finite."""
    if not bool(torch.isfinite(states.x).all()):
        raise NumericalError("a sample is not finite: the network's predictions are not")
    log_p = None if states.log_p is None else states.log_p.cpu()
    return States(states.x.cpu(), log_p, states.nfe)


def _samples(model: DiffusionODE, done: list[States], count: int, seconds: float) -> Samples:
    x = torch.cat([states.x for states in done])
    data = _clean(model, x) if model.levels is None else nearest_level(model, x)
    known = [states.log_p for states in done if states.log_p is not None]
    density = torch.cat(known) if known else None
    return Samples(
        data=data,
        x=x,
        log_p=density,
        bits_per_dim=None if density is None else _bits(model, x, data, density),
        nfe=sum(states.nfe * len(states.x) for states in done) / len(x),
        seconds=seconds,
        complete=len(x) == count,
        precision=str(x.dtype).removeprefix("torch."),
    )


def _clean(model: DiffusionODE, x: Tensor) -> Tensor:
    gamma = torch.tensor(model.gamma_min, dtype=torch.float64)
    return x / float(model.schedule.alpha(gamma))


def _bits(model: DiffusionODE, x: Tensor, data: Tensor, log_p: Tensor) -> Tensor:
    r"""The samples' code lengths: :math:`\log p(x) - \log q(x|\text{pixels})`.

    The weight that a test image gets, with the path's own state as the draw; of the uncut normal,
    since a state may lie outside the outermost bins.
    """
    dim, gamma = x[0].numel(), torch.tensor(model.gamma_min, dtype=torch.float64)
    if model.levels is None:  # of the data, which are the states over alpha
        return -nats_to_bits(log_p + dim * float(model.schedule.log_alpha(gamma)), dim)
    alpha, sigma = float(model.schedule.alpha(gamma)), float(model.schedule.sigma(gamma))
    away = (x.double() - alpha * centres(data, model.levels, torch.float64)) / sigma
    log_q = -per_sample(0.5 * away**2) - dim * math.log(sigma * math.sqrt(2 * math.pi))
    return -nats_to_bits(log_p - log_q, dim)
