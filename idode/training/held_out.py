"""The loss on held-out data, always on the same samples, noise and times."""

from __future__ import annotations

import math

import torch

from idode.config import Config, ObjectiveConfig
from idode.data import Split
from idode.model import DiffusionODE
from idode.time_sampling import Designed
from idode.training.distributed import World
from idode.training.objective import Objective
from idode.training.randomness import Purpose, generator

__all__ = ["held_out_bits"]

PIECE = 256


@torch.no_grad()
def held_out_bits(model: DiffusionODE, split: Split, config: Config, world: World) -> float:
    """Diffusion term of the variational bound in bits/dim, on the first ``evaluate_count``.

    The same noise every time and the designed density whatever training uses: curves are smooth,
    and values of different runs can be compared.
    """
    density = Designed(model.schedule, model.gamma_min, model.gamma_max)
    objective = Objective(ObjectiveConfig(), density)
    count = min(config.train.evaluate_count, len(split))
    total = torch.zeros(1, dtype=torch.float64)
    for number, start in enumerate(range(0, count, PIECE)):
        # Each process draws for the whole piece and takes every size-th row: no row is lost or
        # counted twice, whatever the number of processes.
        rows = torch.from_numpy(split[start : min(start + PIECE, count)].copy())
        drawn = objective.draw(rows, model.levels, generator(0, Purpose.HELD_OUT, number))
        batch = drawn.part(slice(world.rank, None, world.size), world.device)
        if len(batch.x0):
            loss = objective.losses(model, batch).first / batch.times.density
            total += loss.double().sum().cpu()
    return float(world.sum(total)) / count / (math.prod(config.model.shape) * math.log(2))
