"""Settings for a training of given minutes on any data, from the measured speed of this machine.

What is known of networks for a given compute is in docs/results/networks.md and training.md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from idode.data.prepared import Dataset
from idode.nets.config import UNetConfig
from idode.runs.config import Config, fit, names_of, override
from idode.runs.distributed import World
from idode.runs.presets import PRESETS
from idode.training.acceleration import available_precisions
from idode.training.grids import COUNT, STEPS
from idode.training.speed import step_seconds

__all__ = ["Speed", "described", "scheduled", "suited"]

Speed = Callable[[Config, Dataset, World, float], list[float]]
"""Seconds of some steps of a training, measured in about as many seconds as the last number."""

# Width, depth and halvings: for tiny images, and by the least steps of the first that must fit.
TINY = (32, 2, 0)
NETWORKS = {0: (32, 3, 1), 10_000: (48, 3, 1), 30_000: (64, 3, 1)}
TINY_SIDE = 16  # of images that are never halved
BATCHES = (16, 32, 64, 128)
ENOUGH = 20_000  # steps; with more of them, larger batches
SMALLER = {4: 500, 8: 3_000}  # batches where at most so many steps of 16 images fit
KEPT = 0.6  # of the images per second, with such a batch; a GPU keeps half or less
SHORTER = 0.9  # largest share of the time of a step in float32 at which bfloat16 is taken
TRIED = 0.5  # minutes from which on one thread is tried: that takes a second or two
LOWERED = 1_000  # steps that must fit: where bfloat16 is emulated, measuring it takes some thirty
DROPOUTS = {0: 0.0, 50: 0.1, 200: 0.2, 500: 0.3}  # by passes through the training data
LINES, EVALUATIONS = 100, 5  # of metrics and held-out values in a training
MEASURING = 0.01  # of the time, for each measurement
SHARE = 0.03  # of the time for held-out values, and for grids of samples
DRAWS, BACKWARD = 8, 3  # forward passes


def measured(config: Config, data: Dataset, world: World, limit: float) -> list[float]:
    """Seconds of some steps on this machine."""
    return step_seconds(config, data, world, limit=limit)


def suited(
    data: Dataset, minutes: float, world: World, speed: Speed = measured, *, lower: bool = True
) -> Config:
    """Network, batch and precision for the shape of the data, its size, and the time.

    Args:
        data: What is trained on.
        minutes: Of training.
        world: The device.
        speed: Measures a configuration.
        lower: Whether bfloat16 may be taken; not for a network of the user's.
    """
    if len(data.shape) != 3 or data.levels is None:
        return PRESETS["vectors"]

    def sized(base: Config, size: tuple[int, int, int]) -> Config:
        names = ("net.width", "net.depth", "net.halvings")
        return override(base, [f"{name}={n}" for name, n in zip(names, size, strict=True)])

    def affords(config: Config) -> float:
        return 60 * minutes / _pace(speed, config, data, world, minutes)

    halved = min(data.shape[1:]) > TINY_SIDE and not any(n % 2 for n in data.shape[1:])
    base = fit(PRESETS["images"], data.levels, data.shape)
    chosen = sized(base, NETWORKS[0] if halved else TINY)
    chosen, pace = _threaded(chosen, data, world, minutes, speed)
    steps = 60 * minutes / pace
    if lower and steps >= LOWERED and "bf16" in available_precisions(world.device):
        lowered = override(chosen, ["train.precision=bf16"])
        more = affords(lowered)
        if steps <= SHORTER * more:
            chosen, steps = lowered, more
    least = max(n for n in NETWORKS if n <= steps)
    if least and halved:
        chosen = sized(chosen, NETWORKS[least])
        steps = affords(chosen)
    batch = next((b for b in BATCHES if steps * BATCHES[0] / b <= ENOUGH), BATCHES[-1])
    for fewer, most in SMALLER.items():
        if steps > most or fewer % world.size or not halved:
            continue
        fits = affords(override(chosen, [f"train.batch_size={fewer}"]))
        if fits * fewer >= KEPT * steps * batch:
            batch = fewer
            break
    passes = steps * BATCHES[0] / len(data.train)
    dropout = DROPOUTS[max(n for n in DROPOUTS if n <= passes)]
    # Threads are chosen once more, by `scheduled`, for what was chosen with these.
    rest = ["train.threads=none", f"train.batch_size={batch}", f"net.dropout={dropout}"]
    return override(chosen, rest)


def _threaded(
    config: Config,
    data: Dataset,
    world: World,
    minutes: float,
    speed: Speed,
    choosable: bool = True,
) -> tuple[Config, float]:
    """One thread where a step is faster with it, and the seconds of a step.

    Where other programs use the cores, the threads of a step wait for each other.
    """
    tried = [config]
    choosable &= config.train.threads is None and world.device.type == "cpu" and world.size == 1
    if choosable and minutes >= TRIED and torch.get_num_threads() > 1:
        # What the first to be measured pays for, such as memory, counts against one thread.
        tried.insert(0, override(config, ["train.threads=1"]))
    paces = [_pace(speed, each, data, world, minutes) for each in tried]
    fastest = min(paces)
    return tried[paces.index(fastest)], fastest


def _pace(speed: Speed, config: Config, data: Dataset, world: World, minutes: float) -> float:
    """Seconds of a step, from a small share of the time."""
    return statistics.median(speed(config, data, world, MEASURING * 60 * minutes))


def scheduled(
    config: Config,
    data: Dataset,
    world: World,
    speed: Speed = measured,
    *,
    began: float | None = None,
    settings: Iterable[str] = (),
) -> Config:
    """Steps that fill ``train.minutes``, decayed to zero, with everything at matching intervals.

    The threads, too; what the user set stays.

    Args:
        config: Settings, fitted to the data.
        data: What is trained on.
        world: The device.
        speed: Measures a configuration.
        began: When the minutes began, by ``time.perf_counter``; by default now.
        settings: The user's changes, ``NAME=VALUE``, which ``config`` has already.
    """
    own = names_of(settings)
    began = time.perf_counter() if began is None else began
    minutes = config.train.minutes
    assert minutes is not None
    choosable = "train.threads" not in own
    config, pace = _threaded(config, data, world, minutes, speed, choosable)
    train, left = config.train, 60 * minutes - (time.perf_counter() - began)
    steps = max(1, int(left * (1 - SHARE) / pace))
    often = max(1, steps // EVALUATIONS)
    evaluated = train.evaluate_every if "train.evaluate_every" in own else often
    # A held-out value takes DRAWS forward passes an image, a step BACKWARD of them.
    count = int(SHARE * evaluated * BACKWARD * train.batch_size / DRAWS)
    grids = int(SHARE * steps * BACKWARD * train.batch_size / (COUNT * STEPS))
    drawn = max(often, steps // grids) if grids and train.sample_every else 0
    planned: dict[str, Any] = {
        "warmup": min(train.warmup, steps // 10),
        "decay": "cosine",
        "log_every": max(1, steps // LINES),
        "evaluate_every": often,
        "evaluate_count": min(max(count, 16), train.evaluate_count),
        "checkpoint_every": often,
        "sample_every": drawn,
    }
    free = {name: value for name, value in planned.items() if f"train.{name}" not in own}
    return replace(config, train=replace(train, steps=steps, **free))


def described(config: Config) -> str:
    """What was chosen, in a line."""
    train, net = config.train, config.net
    minutes = f"{train.minutes:g} minute{'' if train.minutes == 1 else 's'}"
    parts = [f"{minutes}: {train.steps} steps of {train.batch_size}"]
    if isinstance(net, UNetConfig):
        halvings = f"{net.halvings} halving{'' if net.halvings == 1 else 's'}"
        parts.append(f"U-Net of width {net.width}, depth {net.depth}, {halvings}")
        parts.append(f"dropout {net.dropout:g}")
    parts.append(f"{train.optimizer} with {train.decay} decay")
    parts.append(train.precision)
    if train.threads is not None:
        parts.append(f"{train.threads} thread{'' if train.threads == 1 else 's'}")
    return ", ".join(parts) + "; steps are adjusted to end on time"
