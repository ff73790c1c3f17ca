r"""Training a dequantizer for a model that stays as it is.

It minimises :math:`\mathbb E_q[\log q(x|\text{pixels}) - \log p_s(x)]` with the SDE's bound in
place of :math:`-\log p_s` (math.md: learned-dequantization), one noise level for each image.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from idode import random
from idode.data import Batches, Loader, Split
from idode.diffusion.model import DiffusionODE
from idode.errors import InputError, NumericalError
from idode.likelihood.learned_dequantization import Learned, base
from idode.likelihood.state_bound import Fading, state_bound
from idode.nets.bin_flow import BinFlow, BinFlowConfig
from idode.numerics import nats_to_bits
from idode.training.interruption import Interruption

__all__ = ["Fitting", "Trained", "fit_dequantizer", "fresh_dequantizer"]

HELD_OUT = 256  # images by which the gain is measured
DRAWS = 4  # of noise and noise level, for each of them


@dataclass(frozen=True)
class Fitting:
    """How a dequantizer is trained.

    Args:
        steps: Of Adam, with a learning rate that falls to nothing.
        batch_size: Images in a step.
        lr: Learning rate at the start.
        seed: Of everything random.
    """

    steps: int = 2000
    batch_size: int = 64
    lr: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch_size", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise InputError(f"lr must be positive, got {self.lr}")


@dataclass(frozen=True)
class Trained:
    """A dequantizer and what it gained."""

    learned: Learned
    step: int
    interrupted: bool
    gain: float  # held-out bits/dim below the base, by the training objective
    gain_error: float  # its standard error


def fresh_dequantizer(
    model: DiffusionODE, shape: tuple[int, ...], start: str, seed: int = 0
) -> Learned:
    """An untrained dequantizer, which is its base.

    Args:
        model: The diffusion of integer data.
        shape: Of one sample.
        start: Name of the base.
        seed: Of the weights.
    """
    if model.levels is None:
        raise InputError("a dequantizer is for integer data; this model has continuous data")
    config = BinFlowConfig(shape[0] if len(shape) == 3 else 1)
    flow = BinFlow(config, torch.Generator().manual_seed(seed))
    return Learned(base(start, model.schedule, model.gamma_min, model.levels), flow, model.levels)


def fit_dequantizer(
    model: DiffusionODE,
    fresh: Learned,
    train: Split,
    held_out: Split,
    fitting: Fitting,
    *,
    device: torch.device | str = "cpu",
    progress: Callable[[int, float], None] | None = None,
) -> Trained:
    """Train the flow; the network of ``model`` is used as it is, and gets no gradient.

    Args:
        model: The diffusion, on ``device``.
        fresh: Where to start; left as it is.
        train: Integers ``(N, *)`` to train on.
        held_out: Others, to measure the gain on.
        fitting: How.
        device: Where to compute.
        progress: Called with the step, from 1, and its loss in bits/dim.
    """
    flow = copy.deepcopy(fresh.flow).to(device).train()
    learned = Learned(fresh.base, flow, fresh.levels)
    optimiser = torch.optim.Adam(flow.parameters(), lr=fitting.lr)
    decay = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: (1 + math.cos(math.pi * step / fitting.steps)) / 2
    )
    batches = Batches(fitting.seed, fitting.batch_size, len(train))
    generator = torch.Generator().manual_seed(fitting.seed)
    dim, step = math.prod(train.shape[1:]), 0
    with Interruption() as interruption, Loader(train, batches.indices) as loader:
        while step < fitting.steps and not interruption.requested:
            pixels = next(loader).to(device)
            loss = nats_to_bits(objective(model, learned, pixels, generator).mean(), dim)
            if not bool(torch.isfinite(loss)):
                raise NumericalError(
                    f"the loss of the dequantizer became {loss.item()} at step {step}"
                )
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
            optimiser.step()
            decay.step()
            step += 1
            if progress is not None:
                progress(step, loss.item())
    flow.eval().requires_grad_(False)
    gain, error = _gain(model, fresh, learned, held_out, fitting, device)
    return Trained(learned, step, interruption.requested, gain, error)


def objective(
    model: DiffusionODE, learned: Learned, pixels: Tensor, generator: torch.Generator
) -> Tensor:
    """One draw of the bound on ``-log P`` of each image, nats ``(B,)``."""
    noise = random.uniform(pixels.shape, generator)
    eps = torch.randn(pixels.shape, generator=generator)
    times = Fading(learned.gamma, model.gamma_max).draw(len(pixels), generator)
    drawn = learned.draw(pixels, noise.to(pixels.device))
    x = drawn.x.float()
    return state_bound(model, x, eps.to(x.device), times, learned.gamma) - drawn.weight


@torch.no_grad()
def _gain(
    model: DiffusionODE,
    fresh: Learned,
    learned: Learned,
    held_out: Split,
    fitting: Fitting,
    device: torch.device | str,
) -> tuple[float, float]:
    """Bits/dim of the base less those of the flow, and the error of that, from equal noise."""
    rows = np.asarray(held_out[:HELD_OUT])
    start = Learned(fresh.base, copy.deepcopy(fresh.flow).to(device), fresh.levels)
    differences = []
    for lo in range(0, len(rows), fitting.batch_size):
        pixels = torch.from_numpy(rows[lo : lo + fitting.batch_size].astype(np.int32)).to(device)
        total = torch.zeros(len(pixels), dtype=torch.float64, device=device)
        for draw in range(DRAWS):
            before, after = (
                objective(model, one, pixels, torch.Generator().manual_seed(lo * DRAWS + draw))
                for one in (start, learned)
            )
            total += (before - after) / DRAWS
        differences.append(nats_to_bits(total, rows[0].size).cpu())
    gains = torch.cat(differences)
    error = float(gains.std()) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
    return float(gains.mean()), error
