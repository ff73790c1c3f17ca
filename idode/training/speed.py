"""How long a step of training takes on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from idode.data.prepared import Dataset
from idode.numerics import cpu_threads
from idode.runs.config import Config
from idode.runs.distributed import World
from idode.runs.run import Run
from idode.training.trainer import Trainer

__all__ = ["step_seconds"]

WARM, TIMED = 2, 4  # steps before, and those that are timed one by one
WARMING = 4  # times the limit before the first that is timed


def step_seconds(
    config: Config,
    data: Dataset,
    world: World,
    *,
    clock: Callable[[], float] = time.perf_counter,
    limit: float = math.inf,
) -> list[float]:
    """Seconds of some steps of a fresh training, after a few to warm up; nothing is written.

    Args:
        config: Settings, fitted to the data.
        data: The train split is trained on.
        world: The device.
        clock: What counts the seconds, such as ``time.process_time`` on a busy machine.
        limit: Seconds after which no more are taken; one is timed at least.
    """
    # One process alone, with its share of the batch: what they exchange is left out.
    share = replace(config.train, batch_size=max(1, config.train.batch_size // world.size))
    run = Run(Path("nowhere"), replace(config, train=share), data.identity)
    trainer = Trainer(run, data, World(world.device))
    seconds: list[float] = []
    with cpu_threads(config.train.threads):
        for step in range(WARM + TIMED):
            # The first steps are slower, so that more time is given to get past them.
            if len(seconds) > 1 and sum(seconds) > (limit if step > WARM else WARMING * limit):
                break
            began = clock()
            samples = torch.from_numpy(data.train[trainer.batches.indices(step).numpy()])
            trainer.gradients(trainer.prepare(step, samples))
            trainer.state.optimiser.step()
            trainer.state.update_averages(step)
            if world.device.type == "cuda":
                torch.cuda.synchronize(world.device)
            seconds.append(clock() - began)
    return seconds[min(WARM, len(seconds) - 1) :]
