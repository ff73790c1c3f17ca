"""The bound on held-out data, always with the same samples, noise and noise levels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from idode.data.prepared import Split
from idode.diffusion.model import DiffusionODE
from idode.diffusion.noise_levels import Designed
from idode.evaluation.likelihood import sde_bound
from idode.numerics import double, float32_products, nats_to_bits
from idode.runs.config import Config, ObjectiveConfig
from idode.runs.distributed import World
from idode.training.objective import Objective
from idode.training.randomness import Purpose, generator

__all__ = ["held_out_bits"]

DRAWS = 8  # noise levels for each image


@float32_products()
def held_out_bits(model: DiffusionODE, split: Split, config: Config, world: World) -> float:
    """Mean of the SDE bound in bits/dim over the first ``evaluate_count`` samples of a split.

    An image's noise depends on its index alone: curves are smooth, values of different runs
    compare, and any number of processes gives the same one. For continuous data, which that
    bound is not for, it is the diffusion term alone.
    """
    count = min(config.train.evaluate_count, len(split))
    rows = slice(world.rank * count // world.size, (world.rank + 1) * count // world.size)
    total = torch.zeros(1, dtype=torch.float64)
    if rows.start < rows.stop and model.levels is not None:
        bound = sde_bound(model, split[rows], draws=DRAWS, first_index=rows.start)
        total += bound.per_image.sum()
    elif rows.start < rows.stop:
        samples = torch.from_numpy(split[:count].copy())
        total += _diffusion_bits(model, samples, rows, config.path.bits, world).sum()
    return float(world.sum(total)) / count


@torch.no_grad()
def _diffusion_bits(
    model: DiffusionODE, samples: Tensor, rows: slice, bits: int, world: World
) -> Tensor:
    density = Designed(model.schedule, model.gamma_min, model.gamma_max)
    objective = Objective(ObjectiveConfig(), density, bits=bits)
    drawn = objective.draw(samples, None, generator(0, Purpose.HELD_OUT))
    batch = drawn.part(rows, world.device)
    nats = double(objective.losses(model, batch).first) / batch.times.density
    return nats_to_bits(nats, math.prod(samples.shape[1:])).cpu()
