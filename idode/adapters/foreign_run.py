"""A saved model of another library in the place of a run: ``diffusers:FOLDER``."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from idode.adapters.adapt import folder_of, open_model
from idode.diffusion.model import DiffusionODE
from idode.errors import InputError
from idode.nets.config import CustomNetConfig
from idode.runs.config import Config, ModelConfig
from idode.runs.run import Run
from idode.storage import checksum

__all__ = ["ForeignRun", "open_foreign_run"]


@dataclass(frozen=True)
class ForeignRun(Run):
    """A folder of another library; it is evaluated and sampled from like a run of ours."""

    given: str = ""
    opened: DiffusionODE | None = None

    @property
    def spec(self) -> str:
        """Its folder, with the prefix and the options that it was opened by."""
        return self.given

    def model(
        self, device: torch.device | str = "cpu", net: nn.Module | None = None
    ) -> DiffusionODE:
        """The adapted model; there is no network to be given."""
        if net is not None:
            raise InputError(f"{self.path} has its network with it: leave net out")
        assert self.opened is not None
        return copy.deepcopy(self.opened).to(device)


def open_foreign_run(spec: str) -> ForeignRun:
    """The model of a specification such as ``diffusers:FOLDER``, for commands that take a run.

    Its data set is not recorded: it must be given.
    """
    model = open_model(spec)
    if model.shape is None:
        raise InputError(f"{spec} does not say the shape of its images: use idode.adapt in Python")
    folder = Path(folder_of(spec))
    config = Config(
        name=model.description,
        data=None,
        net=CustomNetConfig(_identity(folder, model.description)),
        model=ModelConfig(
            gamma_min=model.gamma_min,
            gamma_max=model.gamma_max,
            levels=model.levels,
            shape=model.shape,
        ),
    )
    return ForeignRun(folder, config, None, given=spec, opened=model)


def _identity(folder: Path, description: str) -> str:
    """What values depend on besides the weights: stored ones of another table are not used."""
    settings = sorted(folder.glob("scheduler/*.json"))
    return " ".join([description, *(checksum(file)[:16] for file in settings)])
