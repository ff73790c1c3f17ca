"""Grids of samples during training, always from the same noise so that they can be compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from idode.diffusion.model import DiffusionODE
from idode.errors import InputError, NumericalError
from idode.runs.config import Config
from idode.sampling.dpm import DPM
from idode.sampling.pictures import Picture, check_images, grid, png
from idode.sampling.samples import sample
from idode.storage import write_atomically
from idode.training.randomness import Purpose, generator

__all__ = ["draw_grid", "no_grid", "sample_grid"]

COUNT = 64
STEPS = 20  # evaluations of the fast solver, enough to judge progress by


def no_grid(config: Config) -> str:
    """Why no pictures can be drawn; nothing where they can."""
    try:
        check_images(config.model.shape, config.model.levels)
    except InputError:
        return "the data is not images of 1 or 3 colours"
    if config.path.bits:
        return "the fast solver takes one noise level for all dimensions; use `idode sample`"
    return ""


def sample_grid(model: DiffusionODE, config: Config) -> Picture:
    """Samples of the model ``(H, W, C)``; a function of the weights and the run's seed alone."""
    seed = generator(config.train.seed, Purpose.SAMPLES)
    drawn = sample(model, COUNT, seed=seed, solver=DPM(STEPS))
    assert model.levels is not None
    return grid(drawn.data, model.levels)


def draw_grid(
    path: Path,
    model: DiffusionODE,
    config: Config,
    notice: Callable[[str], None],
) -> Picture | None:
    """Draw a grid and write it to ``path``; a failure is a warning, and training continues."""
    try:
        picture = sample_grid(model, config)
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, png(picture))
    except (NumericalError, OSError) as error:
        notice(f"warning: no grid of samples {path.name} ({error})")
        return None
    return picture
