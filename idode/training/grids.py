"""Pictures of samples while a network trains: always from the same noise, so that they compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from idode.diffusion.model import DiffusionODE
from idode.errors import InputError, NumericalError
from idode.runs.config import Config
from idode.sampling import sample
from idode.sampling.pictures import Picture, check_images, grid, png
from idode.storage import write_atomically
from idode.training.randomness import Purpose, generator

__all__ = ["draw_grid", "drawable", "sample_grid"]

COUNT = 64
STEPS = 20  # evaluations of the fast solver, enough to judge progress by


def drawable(config: Config) -> bool:
    """Whether there are pictures to draw: 1 or 3 colours and grey levels."""
    try:
        check_images(config.model.shape, config.model.levels)
    except InputError:
        return False
    return True


def sample_grid(model: DiffusionODE, config: Config, device: torch.device) -> Picture:
    """Samples of the model ``(H, W, C)``; a function of the weights and the run's seed alone."""
    drawn = sample(
        model,
        COUNT,
        config.model.shape,
        generator(config.train.seed, Purpose.SAMPLES),
        solver="dpm",
        steps=STEPS,
        device=device,
    )
    assert model.levels is not None
    return grid(drawn.data, model.levels)


def draw_grid(
    path: Path,
    model: DiffusionODE,
    config: Config,
    device: torch.device,
    notice: Callable[[str], None],
) -> Picture | None:
    """A grid written to ``path``; a warning, and training goes on, where that is impossible."""
    try:
        picture = sample_grid(model, config, device)
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, png(picture))
    except (NumericalError, OSError) as error:
        notice(f"warning: no grid of samples {path.name} ({error})")
        return None
    return picture
