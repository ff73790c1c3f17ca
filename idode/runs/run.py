"""A run folder: what was trained, on what, and the model that came of it.

::

    RUN/config.json         configuration, identity of the data, version
    RUN/metrics.jsonl       one line for each interval of training
    RUN/model.safetensors   averaged weights: all that evaluation needs besides config.json
    RUN/checkpoints/        all that training needs to go on
    RUN/samples/            grids of samples, drawn while training

Nothing in it is pickled.
"""

from __future__ import annotations

import copy
import json
import shlex
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from idode import __version__
from idode.data.identity import Identity
from idode.data.memory import MEMORY, Data, as_dataset
from idode.data.prepared import Dataset
from idode.diffusion.clocks import ScaledGamma
from idode.diffusion.learned_path import ONE_LEVEL, LearnedPath, NoisePath, PathNet
from idode.diffusion.model import DiffusionODE
from idode.diffusion.predictors import named
from idode.diffusion.quantization import QUANTIZATIONS
from idode.diffusion.schedules import SCHEDULES, start_gamma
from idode.errors import InputError, choose
from idode.nets.config import CustomNetConfig, UNetConfig
from idode.nets.layers import arranged
from idode.nets.mlp import MLP
from idode.nets.unet import UNet
from idode.runs import FOREIGN, SHIPPED, pretrained
from idode.runs.config import Config, ModelConfig, from_json, to_json
from idode.runs.distributed import best_device
from idode.runs.tensor_file import save_tensors
from idode.storage import check_regular, checksum, read_json, write_atomically

__all__ = [
    "Parent",
    "Run",
    "build_net",
    "diffusion_ode",
    "holds_run",
    "load",
    "open_run",
    "save_model",
    "shell_command",
]

FORMAT = 1
CONFIG, METRICS, MODEL = "config.json", "metrics.jsonl", "model.safetensors"
CHECKPOINTS, SAMPLES, EVALUATIONS = "checkpoints", "samples", "evaluations"
SNAPSHOTS = "snapshots"
REPORT = "report"
CHECKPOINT = "step-"  # begins the name of each


def build_net(
    config: Config, generator: torch.Generator | None = None, net: nn.Module | None = None
) -> nn.Module:
    """A fresh network of the configuration, or a copy of the user's own; with its noise path."""
    built, wanted = _denoiser(config, generator, net), config.path
    if not wanted.bits:
        return built
    ends = _least_noise(config.model), config.model.gamma_max
    path = LearnedPath(config.model.shape, *ends, wanted.bits, wanted.width, generator)
    return PathNet(built, path)


def _denoiser(
    config: Config, generator: torch.Generator | None, net: nn.Module | None
) -> nn.Module:
    if isinstance(config.net, CustomNetConfig):
        if net is None:
            raise InputError(
                f"the run has a network of your own, {config.net.name}: pass an instance of it as "
                "net"
            )
        return copy.deepcopy(net)
    if net is not None:
        raise InputError(
            "the run has a network of idode's, built from its configuration: leave net out"
        )
    if isinstance(config.net, UNetConfig):
        return UNet(config.net, generator, config.path.bits)
    return MLP(config.net, generator, config.path.bits)


def _least_noise(model: ModelConfig) -> float:
    if model.gamma_min is not None:
        return model.gamma_min
    if model.levels is None:
        raise InputError(
            "continuous data has no bins to derive gamma_min from: set the least noise, such "
            "as --set model.gamma_min=-8"
        )
    return start_gamma(model.levels)


def diffusion_ode(net: nn.Module, config: Config) -> DiffusionODE:
    """The network read as the configuration says."""
    model = config.model
    path: NoisePath = ONE_LEVEL
    if config.path.bits:
        if not isinstance(net, PathNet):
            raise InputError(
                f"path.bits={config.path.bits} learns noise levels with the network, and this "
                f"{type(net).__name__} has none: give what build_net(config) builds, or set "
                "path.bits=0"
            )
        path = net.path
    found = DiffusionODE(
        net=net,
        schedule=choose("schedule", model.schedule, SCHEDULES),
        gamma_min=_least_noise(model),
        gamma_max=model.gamma_max,
        predictor=named(model.predictor),
        clock=None if model.clock is None else ScaledGamma(*model.clock),
        levels=model.levels,
        shape=model.shape,
        path=path,
        quantization=choose("quantization", model.quantization, QUANTIZATIONS)(model.levels),
    )
    found.uniform_start = model.uniform_start
    return found


@dataclass(frozen=True)
class Parent:
    """The model a fine-tuned run started from, or the run whose weights one averages."""

    run: str  # its folder, or pretrained:NAME
    step: int | None  # after which step; None where no checkpoint tells, as for imported models
    sha256: str  # of its model.safetensors
    width: float | None = None  # of the average; None for a fine-tuned run

    def __str__(self) -> str:
        after = "" if self.step is None else f" after step {self.step}"
        return f"{self.run}{after} ({self.sha256[:12]})"

    @property
    def relation(self) -> str:
        """What a run with this parent is to it."""
        return "fine-tuned from" if self.width is None else f"average of width {self.width:g} of"

    @property
    def valid(self) -> bool:
        """Whether each value is of its type, as a file may hold any."""
        known = type(self.step) in (int, types.NoneType)
        width = type(self.width) in (float, int, types.NoneType)
        return isinstance(self.run, str) and isinstance(self.sha256, str) and known and width

    def to_json(self) -> dict[str, str | int | float | None]:
        """Without a width where there is none, so that 0.2 reads what it could write."""
        value = asdict(self)
        return {name: value[name] for name in value if name != "width" or self.width is not None}

    def has(self, run: Run) -> bool:
        """Whether the model of a run is this one."""
        return checksum(run.path / MODEL) == self.sha256

    def command(self, out: Path) -> str:
        """What makes, or goes on with, the run in the folder ``out`` from this model."""
        if self.width is not None:
            width = str(self.width)
            return shell_command("average", self.run, "--width", width, "--force", "--out", out)
        return shell_command("finetune", self.run, "--resume", "--out", out)


@dataclass(frozen=True)
class Run:
    """A run folder that has a configuration.

    ``identity`` is that of the training data, ``None`` for an imported model; ``parent`` is what
    the run was fine-tuned from or is an average of, ``None`` where training began with fresh
    weights.
    """

    path: Path
    config: Config
    identity: Identity | None
    parent: Parent | None = None

    @property
    def spec(self) -> str:
        """What a command takes to open it again."""
        return str(self.path)

    @property
    def metrics(self) -> Path:
        """One JSON object a line."""
        return self.path / METRICS

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / CHECKPOINTS

    def sample_grid(self, step: int) -> Path:
        """The picture of samples drawn after a step."""
        return self.path / SAMPLES / f"step-{step:09d}.png"

    def weights(self) -> dict[str, Tensor]:
        """The averaged weights by name, on the CPU."""
        file = self.path / MODEL
        if not file.exists():
            raise InputError(f"{self.path} has no {MODEL}: {self._without_model()}")
        try:
            check_regular(file)
            return load_file(file)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{file} cannot be read ({error}): get or train it again") from None

    def _without_model(self) -> str:
        """Why there is none, and the command that makes it."""
        resume = shell_command("train", "--resume", "--out", self.path)
        if any(self.checkpoints.glob(f"{CHECKPOINT}*")):
            return f"write it again from the last checkpoint by {resume}"
        if self.parent is not None and self.parent.width is not None:
            return f"it was lost; make it again by {self.parent.command(self.path)}"
        if self.parent is not None:  # first: one that was imported goes on by its name
            resume = self.parent.command(self.path)
        elif self.config.name.startswith("import:"):
            return "it was lost; import it again with --force"
        return f"training stopped before its first checkpoint; go on by {resume}"

    def net(self, net: nn.Module | None = None) -> nn.Module:
        """The trained network on the CPU, in evaluation mode.

        Args:
            net: An instance of the user's own network, where the run has one.
        """
        weights = self.weights()
        with torch.device("meta"):  # shapes alone: a damaged configuration may ask for any size
            state = build_net(self.config, net=net).state_dict()
        wrong = [n for n in state.keys() | weights.keys() if not _fits(state, weights, n)]
        if wrong:
            raise InputError(
                f"{self.path / MODEL} does not fit its {CONFIG}: {len(wrong)} arrays differ, such "
                f"as {min(wrong)}; get both from the same run"
            )
        built = build_net(self.config, net=net)
        built.load_state_dict(weights)
        return built.eval().requires_grad_(False)

    def load_data(self, data: Data | None = None) -> Dataset:
        """The data the run was trained on, or other data of the same kind.

        Args:
            data: A spec, a data set, or a pair of arrays; ``None`` is the run's own.
        """
        chosen = self.config.data if data is None else data
        if chosen is None:
            raise InputError(f"{self.path} does not record its data set: give the data")
        if chosen == MEMORY:
            raise InputError(
                f"{self.path} was trained on arrays in memory, which are not stored: give the data"
            )
        found = as_dataset(chosen)
        found.expect(self.config.model.shape, self.config.model.levels, self.spec)
        return found

    def model(
        self, device: torch.device | str = "cpu", net: nn.Module | None = None
    ) -> DiffusionODE:
        """The trained diffusion ODE; ``net`` is needed where the network is not one of ours."""
        return diffusion_ode(arranged(self.net(net).to(device)), self.config)

    def write_config(self) -> None:
        """Create the folder, if need be, and its ``config.json``."""
        value = {
            "format": FORMAT,
            "idode": __version__,
            "config": to_json(self.config),
            "data": None if self.identity is None else self.identity.to_json(),
            "parent": None if self.parent is None else self.parent.to_json(),
        }
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path / CONFIG, json.dumps(value, indent=1) + "\n")
        except OSError as error:
            raise InputError(
                f"cannot write to {self.path} ({error.strerror}): give a folder you may write to"
            ) from None


def shell_command(*words: str | Path) -> str:
    """A command of idode as a user types it, for a message.

    >>> shell_command("train", "--resume", "--out", "my runs/a")
    "`idode train --resume --out 'my runs/a'`"
    """
    return f"`{shlex.join(['idode', *map(str, words)])}`"


def holds_run(path: Path) -> bool:
    """Whether a folder has the configuration of a run; many programs have a ``config.json``."""
    try:
        value = read_json(path / CONFIG)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path / CONFIG} cannot be read ({error}): give another folder"
        ) from None
    return isinstance(value, dict) and {"format", "idode"} <= value.keys()


def load(
    run: Run | Path | str,
    *,
    net: nn.Module | None = None,
    device: torch.device | str | None = None,
) -> DiffusionODE:
    """A trained model in evaluation mode, ready to use.

    Its parameters are frozen, so that log-densities keep nothing for gradients; train further
    with ``model.requires_grad_().train()``.

    Args:
        run: A run folder, a :class:`Run`, ``pretrained:NAME``, or ``diffusers:FOLDER``.
        net: An instance of the user's own network, for a run that was trained with one.
        device: Where to put it; by default the best one there is.
    """
    return open_run(run).model(best_device(device), net)


def open_run(path: Run | Path | str) -> Run:
    """The run of a folder, of the package (``pretrained:digits``), or of ``diffusers:FOLDER``."""
    if isinstance(path, Run):
        return path
    kind, colon, _ = str(path).partition(":")
    if colon and kind in FOREIGN:
        return FOREIGN[kind](str(path))
    name = str(path).removeprefix(SHIPPED)
    if name != str(path):
        path = choose("pretrained model", name, pretrained())
    path = Path(path)
    if path.is_file():
        raise InputError(f"{path} is a file: give the folder of a run")
    if not path.is_dir():
        shipped = " or ".join(SHIPPED + name for name in pretrained())
        raise InputError(f"there is no run folder {path}: check the path, or give {shipped}")
    try:
        value = read_json(path / CONFIG)
        if not isinstance(value, dict):
            raise TypeError("it is no table of names")
        found = value["format"]
        config, data = value["config"], value["data"]
        if not isinstance(config, dict) or not isinstance(data, dict | None):
            raise TypeError("it holds other values than idode writes")
        parent = value.get("parent")  # which earlier versions did not write
        origin = None if parent is None else Parent(**parent)
        if origin is not None and not origin.valid:
            raise TypeError("its parent is no run")
    except FileNotFoundError:
        raise InputError(f"{path} has no {CONFIG}: it is not the folder of a run") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else error
        raise InputError(f"{path / CONFIG} is damaged ({why}): give another run") from None
    if found != FORMAT:
        raise InputError(f"{path} has format {found}, this version reads {FORMAT}: update idode")
    try:
        identity = None if data is None else Identity.from_json(data)
        return Run(path, from_json(config), identity, origin)
    except InputError as error:
        raise InputError(f"{path / CONFIG}: {error}") from None


def save_model(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write ``model.safetensors`` of the run at ``path`` in one atomic step."""
    save_tensors(path / MODEL, weights)


def _fits(a: Mapping[str, Tensor], b: Mapping[str, Tensor], name: str) -> bool:
    return name in a and name in b and a[name].shape == b[name].shape
