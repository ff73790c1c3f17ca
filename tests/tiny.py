"""A training run small enough for a test: 48 images of 4x4 pixels and four levels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from idode.data.memory import from_arrays
from idode.data.prepared import Dataset
from idode.runs.config import Config, fit, override
from idode.runs.distributed import World
from idode.runs.presets import PRESETS
from idode.runs.run import Run
from idode.training.reporter import Reporter
from idode.training.trainer import Trainer

SETTINGS = [
    "net.width=8",
    "net.depth=1",
    "net.groups=2",
    "net.dropout=0",
    "train.optimizer=adamw",  # Muon's steps have the same size in directions of rounding alone
    "train.batch_size=8",
    "train.log_every=5",
    "train.evaluate_every=10",
    "train.checkpoint_every=10",
    "train.steps=20",
    "train.warmup=5",
]
FLAGS = [word for setting in SETTINGS for word in ("--set", setting)]
CPU = World(torch.device("cpu"))


def images() -> np.ndarray:
    """A step of grey at a random height, so that there is something to learn and to turn."""
    start = np.random.default_rng(0).integers(0, 4, (48, 1, 1, 1))
    steps = np.arange(4)[:, None] // 2 + np.zeros((1, 4), int)
    return ((start + steps) % 4).astype(np.uint8)


def dataset(train: np.ndarray | None = None, levels: int | None = 4) -> Dataset:
    values = images() if train is None else train
    return from_arrays(values[:-8], values[-8:], levels)


def config(*settings: str) -> Config:
    return fit(override(PRESETS["digits"], [*SETTINGS, *settings]), 4, (1, 4, 4))


def new_run(path: Path, *settings: str) -> Run:
    """A run folder with a configuration and nothing else."""
    run = Run(path, config(*settings), dataset().identity)
    run.write_config()
    return run


def train(path: Path, *settings: str, reporter: Reporter | None = None) -> Trainer:
    """Train, or go on with, a run; the trainer, for tests that look inside."""
    run = Run(path, config(*settings), dataset().identity)
    trainer = Trainer(run, dataset(), CPU, reporter)
    trainer.train()
    return trainer
