"""The learned dequantization of a run: ``RUN/dequantizer.safetensors``, weights and settings.

One file, so that it is complete or absent. It records which weights it was trained for: with any
others it would still give a bound, but a worse one than expected.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from idode.errors import InputError, choose
from idode.likelihood.learned_dequantization import BASES, Learned
from idode.nets.bin_flow import BinFlow, BinFlowConfig
from idode.runs.run import MODEL, Run, shell_command
from idode.runs.tensor_file import save_tensors
from idode.storage import check_regular, checksum, parse_json

__all__ = [
    "DEQUANTIZER",
    "has_dequantizer",
    "load_dequantizer",
    "save_dequantizer",
    "weights_hash",
]

DEQUANTIZER = "dequantizer.safetensors"


@dataclass(frozen=True)
class Settings:
    """What a file records besides the weights of the flow."""

    base: str
    gamma: float  # where on the clock it draws
    levels: int
    model: str  # SHA-256 of the model's weights it was trained for
    steps: int


def has_dequantizer(run: Run) -> bool:
    """Whether the run has a learned dequantization."""
    return (run.path / DEQUANTIZER).exists()


def save_dequantizer(path: Path, learned: Learned, steps: int) -> None:
    """Write the dequantizer of the run in the folder ``path`` in one atomic step.

    Args:
        path: Folder of the run.
        learned: The dequantizer; its base has a start.
        steps: Steps it was trained for.
    """
    assert learned.start is not None
    base = learned.base.name
    stored = Settings(base, learned.start, learned.levels, weights_hash(path), steps)
    described = {
        "flow": json.dumps(dataclasses.asdict(learned.flow.config)),
        "dequantizer": json.dumps(dataclasses.asdict(stored)),
    }
    save_tensors(path / DEQUANTIZER, learned.flow.state_dict(), described)


def load_dequantizer(run: Run, device: torch.device | str = "cpu") -> Learned:
    """The run's dequantizer; refused if it was trained for other weights."""
    file = run.path / DEQUANTIZER
    if not has_dequantizer(run):
        raise InputError(
            f"{run.path} has no learned dequantization: train one by "
            f"{shell_command('dequantize', run.path)}"
        )
    try:
        check_regular(file)
        with safe_open(file, "pt") as opened:
            described = opened.metadata()
            weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        stored = Settings(**parse_json(described["dequantizer"]))
        config = BinFlowConfig(**parse_json(described["flow"]))
        with torch.device("meta"):  # shapes alone: a damaged file may ask for any size
            wanted = {name: value.shape for name, value in BinFlow(config).state_dict().items()}
        if wanted != {name: value.shape for name, value in weights.items()}:
            raise ValueError("its weights do not fit its settings")
        flow = BinFlow(config)
        flow.load_state_dict(weights)
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
        text = " ".join(str(error).split())[:100]
        raise InputError(
            f"{file} cannot be read ({text}): train it again by `idode dequantize --force`"
        ) from None
    if stored.model != weights_hash(run.path):
        raise InputError(
            f"{file} was trained for other weights than {run.path / MODEL} has: train it again "
            "by `idode dequantize --force`"
        )
    base = choose("base", stored.base, BASES)(stored.gamma)
    return Learned(base, flow.to(device).eval().requires_grad_(False), stored.levels)


def weights_hash(path: Path) -> str:
    """SHA-256 of the weights of the run in a folder."""
    try:
        return checksum(path / MODEL)
    except OSError as error:
        raise InputError(f"{path / MODEL} cannot be read ({error.strerror}): train it") from None
