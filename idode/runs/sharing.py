"""A model as a folder, in the manner of Hugging Face: ``config.json`` and ``model.safetensors``.

The folder is that of a run, so every command reads it, and it can be uploaded to a hub as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from idode.diffusion.clocks import ScaledGamma
from idode.diffusion.model import DiffusionODE
from idode.diffusion.predictors import PREDICTORS, named
from idode.diffusion.quantization import QUANTIZATIONS
from idode.diffusion.schedules import SCHEDULES
from idode.errors import InputError
from idode.nets.mlp import MLP
from idode.nets.unet import UNet
from idode.runs.config import Config, ModelConfig
from idode.runs.folder import claim, writing_run
from idode.runs.run import Run, save_model

__all__ = ["save_pretrained", "write_pretrained"]


def save_pretrained(
    model: DiffusionODE, folder: Path | str, *, data: str | None = None, force: bool = False
) -> Run:
    """Write a model of idode's own networks as a run; ``idode.load`` reads it back.

    Args:
        model: A diffusion ODE whose network is a ``UNet`` or an ``MLP`` of this package.
        folder: Where; it must not hold a run yet.
        data: The data it was trained on, as of ``idode train --data``; evaluation then needs no
            other.
        force: Replace the run in that folder.
    """
    config, out = _config(model, Path(folder), data), Path(folder)
    claim(out, force=force)
    with writing_run(out, force=force):
        return _written(model, out, config)


def write_pretrained(model: DiffusionODE, folder: Path) -> Run:
    """The same into a folder that somebody else has made ready."""
    return _written(model, folder, _config(model, folder, None))


def _written(model: DiffusionODE, out: Path, config: Config) -> Run:
    run = Run(out, config, None)
    run.write_config()
    assert isinstance(model.net, UNet | MLP)
    save_model(out, model.net.state_dict())
    return run


def _config(model: DiffusionODE, out: Path, data: str | None) -> Config:
    """The configuration that rebuilds a model; refused where none does."""
    net, clock = model.net, model.clock
    if model.path.bits:
        raise InputError(
            "the model has learned noise levels (path.bits): copy the run folder instead"
        )
    if not isinstance(net, UNet | MLP):
        raise InputError(
            f"a {type(net).__name__} cannot be rebuilt from a configuration: networks of other "
            "libraries are saved by those, your own by torch.save(net.state_dict(), ...)"
        )
    if not isinstance(clock, ScaledGamma) or model.shape is None:
        raise InputError(
            "only models on this library's own clock that know the shape of a sample are saved"
        )
    return Config(
        name=out.name,
        data=data,
        net=net.config,
        model=ModelConfig(
            schedule=_name_of(model.schedule, SCHEDULES),
            predictor=_predictor_name(model),
            gamma_min=model.gamma_min,
            gamma_max=model.gamma_max,
            clock=(clock.gamma_min, clock.gamma_max),
            levels=model.levels,
            shape=model.shape,
            uniform_start=model.uniform_start,
            quantization=_quantization_name(model),
        ),
    )


def _name_of(member: object, table: Mapping[str, object]) -> str:
    for name, value in table.items():
        if type(value) is type(member):
            return name
    raise InputError(
        f"a {type(member).__name__} has no name in a configuration: one of {', '.join(table)}"
    )


def _predictor_name(model: DiffusionODE) -> str:
    for name in PREDICTORS:
        if named(name) == model.predictor:
            return name
    raise InputError(f"{model.predictor} has no name in a configuration")


def _quantization_name(model: DiffusionODE) -> str:
    return next(n for n, make in QUANTIZATIONS.items() if make(model.levels) == model.quantization)
