"""A saved model of another library in the place of a run: ``diffusers:FOLDER``."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from idode.adapters.adapt import PREFIX, open_model
from idode.diffusion.model import DiffusionODE
from idode.errors import InputError
from idode.nets.config import CustomNetConfig
from idode.runs.config import Config, ModelConfig
from idode.runs.run import Run

__all__ = ["ForeignRun", "open_foreign_run"]


class ForeignRun(Run):
    """A folder of another library; it is evaluated and sampled from like a run of ours."""

    def model(
        self, device: torch.device | str = "cpu", net: nn.Module | None = None
    ) -> DiffusionODE:
        """The adapted model; there is no network to be given."""
        if net is not None:
            raise InputError(f"{self.path} has its network with it: leave net out")
        return open_model(f"{PREFIX}{self.path}").to(device)


def open_foreign_run(spec: str) -> ForeignRun:
    """The model of a specification such as ``diffusers:FOLDER``, for commands that take a run.

    Its data set is not recorded: it must be given.
    """
    model = open_model(spec)
    if model.shape is None:
        raise InputError(f"{spec} does not say the shape of its images: use idode.adapt in Python")
    config = Config(
        name=model.description,
        data=None,
        net=CustomNetConfig(model.description.partition(":")[0]),
        model=ModelConfig(
            gamma_min=model.gamma_min,
            gamma_max=model.gamma_max,
            levels=model.levels,
            shape=model.shape,
        ),
    )
    return ForeignRun(Path(spec.removeprefix(PREFIX)), config, None)
