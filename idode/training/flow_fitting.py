r"""The training loop of a learned dequantization, for a model that is not changed.

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
from idode.data.batches import Batches, Loader, for_device
from idode.data.prepared import Split
from idode.diffusion.model import DiffusionODE
from idode.errors import InputError, NumericalError, choose
from idode.likelihood.learned_dequantization import BASES, Learned
from idode.likelihood.state_bound import Fading, state_bound
from idode.nets.bin_flow import BinFlow, BinFlowConfig
from idode.numerics import home_of_float64, moved, nats_to_bits
from idode.training.interruption import Interruption
from idode.training.settings import DequantizerSettings

__all__ = ["FittedFlow", "fit_flow", "untrained_dequantizer"]

HELD_OUT = 256  # images on which the gain is measured
DRAWS = 4  # of noise and noise level, for each of them


@dataclass(frozen=True)
class FittedFlow:
    """A trained dequantizer and what it gains."""

    learned: Learned
    step: int
    interrupted: bool
    gain: float  # held-out bits/dim below the base, by the training objective; NaN if interrupted
    gain_error: float  # its standard error


def untrained_dequantizer(
    model: DiffusionODE, shape: tuple[int, ...], base: str, seed: int = 0
) -> Learned:
    """A dequantizer whose flow is the identity: it draws as its base does.

    Args:
        model: A diffusion ODE of integer data.
        shape: Shape of one sample.
        base: A name in :data:`~idode.likelihood.learned_dequantization.BASES`.
        seed: Seed of the weights.
    """
    if model.levels is None:
        raise InputError("a dequantizer is for integer data; this model has continuous data")
    config = BinFlowConfig(shape[0] if len(shape) == 3 else 1)
    flow = BinFlow(config, torch.Generator().manual_seed(seed))
    return Learned(choose("base", base, BASES)(model.gamma_min), flow, model.levels)


def fit_flow(
    model: DiffusionODE,
    start: Learned,
    train: Split,
    held_out: Split,
    settings: DequantizerSettings,
    *,
    progress: Callable[[int, float], None] | None = None,
) -> FittedFlow:
    """Train the flow on the device of the model, whose network gets no gradient.

    Args:
        model: The diffusion ODE.
        start: Where training starts; it is not changed.
        train: Integers ``(N, *)`` to train on.
        held_out: Others, on which the gain is measured.
        settings: How long and how fast; the base is that of ``start``.
        progress: Called with the step, from 1, and its loss in bits/dim.
    """
    flow = copy.deepcopy(start.flow).to(model.device).train()
    learned = Learned(start.base, flow, start.levels)
    optimiser = torch.optim.Adam(flow.parameters(), lr=settings.lr)
    decay = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: (1 + math.cos(math.pi * step / settings.steps)) / 2
    )
    batches = Batches(settings.seed, settings.batch_size, len(train))
    generator = torch.Generator().manual_seed(settings.seed)
    dim, step = math.prod(train.shape[1:]), 0
    with (
        Interruption() as interruption,
        Loader(train, batches.indices, prepare=for_device(model.device)) as loader,
    ):
        while step < settings.steps and not interruption.requested:
            pixels = moved(next(loader), model.device)
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
    if interruption.requested:  # the gain takes as long as many steps
        return FittedFlow(learned, step, True, math.nan, math.nan)
    gain, error = _gain(model, start, learned, held_out, settings.batch_size)
    return FittedFlow(learned, step, False, gain, error)


def objective(
    model: DiffusionODE, learned: Learned, pixels: Tensor, generator: torch.Generator
) -> Tensor:
    """One draw of the bound on ``-log P`` of each image, nats ``(B,)``."""
    noise = random.uniform(pixels.shape, generator)
    eps = torch.randn(pixels.shape, generator=generator)
    gamma = learned.gamma(model)
    times = Fading(gamma, model.gamma_max).draw(len(pixels), generator)
    drawn = learned.states(model, pixels, noise.to(pixels.device))
    x = drawn.x.float()
    return state_bound(model, x, eps.to(x.device), times, gamma) - drawn.weight


@torch.no_grad()
def _gain(
    model: DiffusionODE, start: Learned, learned: Learned, held_out: Split, batch_size: int
) -> tuple[float, float]:
    """Bits/dim of the base minus those of the flow, and the error of that, from equal noise."""
    images = np.asarray(held_out[:HELD_OUT])
    before = Learned(start.base, copy.deepcopy(start.flow).to(model.device), start.levels)
    differences = []
    for lo in range(0, len(images), batch_size):
        part = torch.from_numpy(images[lo : lo + batch_size].astype(np.int32)).to(model.device)
        total = torch.zeros(len(part), dtype=torch.float64, device=home_of_float64(model.device))
        for draw in range(DRAWS):
            old, new = (
                objective(model, one, part, torch.Generator().manual_seed(lo * DRAWS + draw))
                for one in (before, learned)
            )
            total += (old - new) / DRAWS
        differences.append(nats_to_bits(total, images[0].size).cpu())
    gains = torch.cat(differences)
    error = float(gains.std()) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
    return float(gains.mean()), error
