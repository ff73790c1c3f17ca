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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from idode.diffusion.model import DiffusionODE
from idode.errors import InputError
from idode.likelihood.dequantization import centres
from idode.numerics import nats_to_bits, per_sample
from idode.ode.solvers import Solver
from idode.sampling.sampler import PILOT, Task

__all__ = ["Samples", "nearest_level", "sample"]


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


def nearest_level(model: DiffusionODE, x: Tensor) -> Tensor:
    """The most likely pixels of states at ``gamma_min``; uint8, int32 above 256 levels."""
    if model.levels is None:
        raise InputError("the model is of continuous data: its states have no levels")
    gamma = torch.tensor(model.gamma_min, dtype=torch.float64)
    position = (x.double() / float(model.schedule.alpha(gamma)) + 1) * model.levels / 2 - 0.5
    small = torch.uint8 if model.levels <= 256 else torch.int32
    return position.round().clamp(0, model.levels - 1).to(small)


def sample(
    model: DiffusionODE,
    count: int,
    shape: Sequence[int],
    generator: torch.Generator,
    *,
    solver: str | Solver = "dopri5",
    steps: int | None = None,
    likelihood: bool = False,
    probes: int = 1,
    batch_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Samples:
    """Draw from the model.

    Args:
        model: The diffusion ODE.
        count: Number of samples.
        shape: Of one sample.
        generator: Seeds every sample's own stream: a sample does not depend on its batch.
        solver: dopri5 (the paper's, at 1e-5), adams, ancestral, dpm; or a solver.
        steps: Of adams (by default a calibrated grid), ancestral and dpm.
        likelihood: Also integrate the divergence along each path.
        probes: Hutchinson probes of the divergence; 0 is exact, at one product a dimension.
        batch_size: Samples solved together.
        dtype: Of states and network.
        device: Where the network is.
        progress: Called with the number of samples just done.

    Returns:
        The samples and their cost. ``Ctrl-C`` returns the batches that are done.
    """
    began = time.perf_counter()
    for name, value, least in (
        ("count", count, 1),
        ("batch_size", batch_size, 1),
        ("probes", probes, 0),
    ):
        if value < least:
            raise InputError(f"{name} must be at least {least}, got {value}")
    seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    task = Task(
        model, tuple(shape), seed, solver, steps, probes if likelihood else None, dtype, device
    ).ready(min(count, PILOT))
    done: list[tuple[Tensor, Tensor, int]] = []
    try:
        for lo in range(0, count, batch_size):
            indices = range(lo, min(count, lo + batch_size))
            x, log_p, nfe = task.draw(indices)
            done.append((x.cpu(), log_p.cpu(), nfe * len(indices)))
            if progress is not None:
                progress(len(indices))
    except KeyboardInterrupt:
        if not done:
            raise
    states, known, evaluations = zip(*done, strict=True)
    x = torch.cat(states)
    data = _clean(model, x) if model.levels is None else nearest_level(model, x)
    density = torch.cat(known) if likelihood else None
    return Samples(
        data=data,
        x=x,
        log_p=density,
        bits_per_dim=None if density is None else _bits(model, x, data, density),
        nfe=sum(evaluations) / len(x),
        seconds=time.perf_counter() - began,
        complete=len(x) == count,
    )


def _clean(model: DiffusionODE, x: Tensor) -> Tensor:
    gamma = torch.tensor(model.gamma_min, dtype=torch.float64)
    return x / float(model.schedule.alpha(gamma))


def _bits(model: DiffusionODE, x: Tensor, data: Tensor, log_p: Tensor) -> Tensor:
    r"""The samples' code lengths: :math:`\log p(x) - \log q(x|\text{pixels})`.

    The weight that a test image gets, with the path's own state as the draw; of the uncut normal,
    since a state may lie outside the outermost bins.
    """
    dim = x[0].numel()
    if model.levels is None:
        return -nats_to_bits(log_p, dim)
    gamma = torch.tensor(model.gamma_min, dtype=torch.float64)
    alpha, sigma = float(model.schedule.alpha(gamma)), float(model.schedule.sigma(gamma))
    away = (x.double() - alpha * centres(data, model.levels, torch.float64)) / sigma
    log_q = -per_sample(0.5 * away**2) - dim * math.log(sigma * math.sqrt(2 * math.pi))
    return -nats_to_bits(log_p - log_q, dim)
