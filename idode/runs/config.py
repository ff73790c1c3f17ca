"""The configuration of a run: frozen values, overridden by name, saved as JSON.

A configuration names the independent parts of a system (schedule, predictor, weighting,
distribution of noise levels, objective) and holds plain values only; the parts themselves are
looked up where they are used. Presets are in :mod:`idode.runs.presets`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from idode.dataclass_io import at_least, field_types, new_field, parse, table
from idode.errors import InputError, choose
from idode.nets.config import NO_PATH, CustomNetConfig, MLPConfig, PathConfig, UNetConfig
from idode.runs.objective_config import (
    LEARNED,
    NO_REGULARISATION,
    ObjectiveConfig,
    SimulationConfig,
)

__all__ = [
    "Config",
    "FinetuneConfig",
    "ModelConfig",
    "NetConfig",
    "ObjectiveConfig",
    "TrainConfig",
    "check_not_of_data",
    "fit",
    "from_json",
    "names_of",
    "override",
    "to_json",
]

T = TypeVar("T")
NetConfig: TypeAlias = UNetConfig | MLPConfig | CustomNetConfig
PRECISIONS = ("float32", "tf32", "bf16")
RENAMED = {"bfloat16": "bf16"}  # precisions of earlier versions
NETS: dict[str, type[NetConfig]] = {
    "unet": UNetConfig,
    "mlp": MLPConfig,
    "custom": CustomNetConfig,
}


@dataclass(frozen=True)
class ModelConfig:
    """The diffusion between data and noise, and what the network predicts of it.

    Args:
        schedule: A name in :data:`idode.diffusion.schedules.SCHEDULES`.
        predictor: A name in :data:`idode.diffusion.predictors.PREDICTORS`, or ``velocity:CLOCK``.
        gamma_min: Lowest noise level; ``None`` for the three-sigma rule of the grey levels.
        gamma_max: Highest noise level.
        clock: The two gammas that are times 0 and 1 of the network; ``None`` for both ends.
        uniform_start: Noise level at which uniformly dequantized data is evaluated; ``None`` for
            that of the variance of a bin.
        levels: Grey levels of the data, ``None`` for continuous data; taken from the data.
        shape: Shape of one sample, without the batch; taken from the data.
        quantization: ``learned`` by the network, as in the paper; or in ``closed-form``, added to
            what the network predicts.
    """

    schedule: str = "vp"
    predictor: str = "normalized-velocity"
    gamma_min: float | None = None
    gamma_max: float = 5.0
    clock: tuple[float, ...] | None = None
    levels: int | None = 256
    shape: tuple[int, ...] = (3, 32, 32)
    uniform_start: float | None = new_field(None)
    quantization: str = new_field("learned")

    def __post_init__(self) -> None:
        if self.clock is not None and len(self.clock) != 2:
            raise InputError(f"clock={self.clock}: give two gammas, or none")


@dataclass(frozen=True)
class TrainConfig:
    """Optimisation, logging and checkpoints; the defaults are the paper's.

    Args:
        steps: Optimiser steps.
        batch_size: Samples in a step, over all processes and pieces.
        accumulate: Pieces the batch of a process is cut into, to save memory.
        lr: Learning rate after warm-up.
        warmup: Steps of linear warm-up.
        decay: ``constant``, ``linear`` or ``cosine``, the last two down to zero at ``steps``.
        betas: Decay rates of Adam's two moments.
        eps: Term that keeps Adam's denominator from zero, in units of the gradient: the loss is in
            nats, ``dim * log(2)`` times one in bits/dim.
        weight_decay: Decoupled, on everything but biases.
        clip: Largest norm of the gradient; ``None`` for no clipping.
        ema: Rate of the moving average of the weights, which is what evaluation uses.
        ema_warmup: Average over a tenth of the steps so far at most, for short runs.
        density_lr: Learning rate of the adaptive distribution of noise levels.
        seed: Seed of everything random.
        log_every: Steps between lines of ``metrics.jsonl``.
        evaluate_every: Steps between held-out values.
        evaluate_count: Held-out samples they are taken on.
        checkpoint_every: Steps between checkpoints.
        keep: Checkpoints kept, beside the best one.
        sample_every: Steps between grids of samples; 0 draws none.
        precision: ``float32``, true on every device; ``tf32``, whose products keep 10 bits; or
            ``bf16`` inside the network. The loss is float32 always.
        compile: Pass the network through torch.compile; not for the second order.
        optimizer: ``adamw``, the paper's; ``muon`` or ``soap`` for the kernels of hidden layers.
        matrix_lr: Learning rate of Muon after warm-up; everything else has ``lr``.
        momentum: Of Muon.
        minutes: Wall-clock time after which training ends: ``steps`` is then an estimate that
            follows the speed of the machine. ``None`` for exactly ``steps``.
        snapshot_every: Steps between averages that are kept for ``idode average``; 0 keeps none.
        hold_out: Training samples, the last ones, that are left out, to choose by.
        threads: Of PyTorch on a CPU; ``None`` for as many as the process has.
    """

    steps: int = 6_000_000
    batch_size: int = 128
    accumulate: int = 1
    lr: float = 2e-4
    warmup: int = 100
    decay: str = "constant"
    betas: tuple[float, ...] = (0.9, 0.99)
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip: float | None = None
    ema: float = 0.9999
    ema_warmup: bool = False
    density_lr: float = 1e-3
    seed: int = 0
    log_every: int = 1000
    evaluate_every: int = 10_000
    evaluate_count: int = 1024
    checkpoint_every: int = 10_000
    keep: int = 3
    sample_every: int = new_field(0)
    precision: str = new_field("float32")
    compile: bool = new_field(False)
    optimizer: str = new_field("adamw")
    matrix_lr: float = new_field(0.02)
    momentum: float = new_field(0.95)
    minutes: float | None = new_field(None)
    snapshot_every: int = new_field(0)
    hold_out: int = new_field(0)
    threads: int | None = new_field(None)

    def __post_init__(self) -> None:
        ones = ("steps", "batch_size", "accumulate", "log_every", "evaluate_every")
        at_least(self, **dict.fromkeys((*ones, "evaluate_count", "checkpoint_every", "keep"), 1))
        at_least(self, **dict.fromkeys(("lr", "warmup", "eps", "weight_decay", "clip", "seed"), 0))
        at_least(self, density_lr=0, sample_every=0, matrix_lr=0)
        at_least(self, minutes=0, snapshot_every=0, hold_out=0, threads=1)
        choose("precision", self.precision, dict.fromkeys(PRECISIONS))
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in (*self.betas, self.ema)):
            raise InputError(
                f"betas={self.betas}, ema={self.ema}: two betas and one rate, from 0 to below 1"
            )
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum={self.momentum}: must be at least 0 and less than 1")
        if self.batch_size % self.accumulate:
            raise InputError(
                f"batch_size={self.batch_size}: must be a multiple of accumulate={self.accumulate}"
            )


@dataclass(frozen=True)
class FinetuneConfig:
    """What fine-tuning changes besides the objective.

    Args:
        steps: Optimiser steps.
        accumulate: Pieces the batch of a process is cut into, at least.
        lr: Learning rate; ``None`` keeps that of the training.
        continues: Go on with the weights, their average and Adam's moments, as the authors do;
            else start from the average with a fresh optimiser and its warm-up.
    """

    steps: int = 200_000
    accumulate: int = 1
    lr: float | None = None
    continues: bool = new_field(False)

    def __post_init__(self) -> None:
        at_least(self, steps=1, accumulate=1, lr=0)


@dataclass(frozen=True)
class Config:
    """All settings of a run.

    ``name`` is the preset it came from; ``data`` its data spec, ``memory`` for given arrays.
    """

    name: str = "cifar10-vp"
    data: str | None = "cifar10"
    model: ModelConfig = field(default_factory=ModelConfig)
    net: NetConfig = field(default_factory=UNetConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    simulation: SimulationConfig = new_field(NO_REGULARISATION)  # noqa: RUF009  it is a field
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    path: PathConfig = new_field(NO_PATH)  # noqa: RUF009  it is a field

    def __post_init__(self) -> None:
        if self.path.bits and self.objective.density in LEARNED:
            raise InputError(
                f"path.bits={self.path.bits} needs a fixed objective.density: what the codes cost "
                f"is in the losses that {self.objective.density} follows"
            )
        if self.path.bits and not self.objective.is_bound:
            raise InputError(
                f"path.bits={self.path.bits} learns the noise levels from the variational bound: "
                "it needs objective.order=1, weighting=likelihood, method=matching and "
                "truncation=none"
            )
        if self.model.quantization != "learned" and self.objective.data == "uniform":
            raise InputError(
                f"model.quantization={self.model.quantization} is for data at the centres of its "
                "bins, and objective.data=uniform fills them: choose model.quantization=learned"
            )
        if self.objective.augment and not self.net.flag:
            raise InputError(
                "augment=true needs net.flag=true: without the flag the network would learn the "
                "density of the augmented mixture"
            )


FROM_DATA = {"model.levels", "model.shape", "net.channels", "net.features"}


def fit(config: Config, levels: int | None, shape: tuple[int, ...]) -> Config:
    """The configuration for data with this number of levels (``None``: continuous) and shape."""
    net = config.net
    quantization = "learned" if levels is None else config.model.quantization  # there is none
    model = replace(config.model, levels=levels, shape=shape, quantization=quantization)
    if isinstance(net, CustomNetConfig):  # whoever wrote it knows which data it takes
        return replace(config, model=model)
    if isinstance(net, UNetConfig) and (len(shape) != 3 or levels is None):
        raise InputError(
            f"{config.name} has a U-Net, for images (channels, height, width), and the data is "
            f"of shape {shape}: use the preset `vectors`"
        )
    if isinstance(net, UNetConfig):
        net = replace(net, channels=shape[0], levels=levels or net.levels)
    elif len(shape) != 1:
        raise InputError(
            f"{config.name} has a network for vectors, and the data is of shape {shape}: use an "
            "image preset, such as `digits`"
        )
    else:
        net = replace(net, features=shape[0], levels=levels or net.levels)
    return replace(config, net=net, model=model)


def to_json(config: Config) -> dict[str, Any]:
    """Plain JSON values; ``net`` says its kind. The inverse of :func:`from_json`."""
    kind = next(kind for kind, cls in NETS.items() if isinstance(config.net, cls))
    fields = dataclasses.asdict(config)
    fields["net"] = {"kind": kind, **fields["net"]}
    plain: dict[str, Any] = json.loads(json.dumps(fields))  # tuples become lists
    return plain


def from_json(fields: Mapping[str, Any]) -> Config:
    """A configuration from JSON; a field that is unknown or of the wrong type is refused."""
    values = dict(fields)
    net = values.get("net")
    if not isinstance(net, dict):
        raise InputError("the configuration has no table `net`: it was not written by idode")
    train = values.get("train")
    if isinstance(train, dict) and str(train.get("precision")) in RENAMED:
        values["train"] = {**train, "precision": RENAMED[train["precision"]]}
    kind = choose("network", str(net.get("kind")), NETS)
    values["net"] = table(kind, {k: v for k, v in net.items() if k != "kind"}, "net.")
    config: Config = table(Config, values, "")
    return config


def names_of(settings: Iterable[str]) -> set[str]:
    """The names in ``NAME=VALUE``."""
    return {each.partition("=")[0].strip() for each in settings}


def check_not_of_data(settings: Iterable[str]) -> None:
    """Refuse settings that :func:`fit` takes from the data."""
    if followed := sorted(names_of(settings) & FROM_DATA):
        raise InputError(f"{followed[0]} follows from the data: leave it out, or give other data")


def override(config: Config, settings: Iterable[str]) -> Config:
    """Change single fields by ``NAME=VALUE``.

    >>> from idode.runs.presets import PRESETS
    >>> override(PRESETS["digits"], ["train.lr=1e-3", "train.clip=none"]).train.lr
    0.001
    """
    changes: dict[str, dict[str, Any]] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        group, dot, leaf = name.strip().rpartition(".")
        if not equals:
            raise InputError(
                f"the setting {setting!r} has no value: write NAME=VALUE, such as train.lr=1e-3"
            )
        owner: Any = config if not dot else getattr(config, group, None)
        hints = field_types(type(owner)) if dataclasses.is_dataclass(owner) else {}
        if leaf not in hints or dataclasses.is_dataclass(getattr(owner, leaf)):
            near = difflib.get_close_matches(name, _names(config), n=3, cutoff=0.4)
            meant = f"perhaps {' or '.join(near)}; " if near else ""
            raise InputError(
                f"there is no setting {name!r}: {meant}`idode train {config.name} --dry-run` "
                "lists them all"
            )
        changes.setdefault(group, {})[leaf] = parse(text.strip(), hints[leaf], name)
    top = changes.pop("", {})
    nested = {
        group: _changed(group, getattr(config, group), new) for group, new in changes.items()
    }
    return replace(config, **top, **nested)


def _changed(group: str, part: T, new: Mapping[str, Any]) -> T:
    """A part of the configuration with new values; errors name a setting in full."""
    try:
        return replace(part, **new)  # type: ignore[type-var]
    except InputError as error:
        field = re.split("[:=]", str(error))[0]
        raise InputError(f"{group}.{error}" if field in new else str(error)) from None


def _names(config: Config) -> list[str]:
    names = []
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            names += [f"{f.name}.{g.name}" for g in dataclasses.fields(value)]
        else:
            names.append(f.name)
    return names
