"""The dequantizer of a run on disk: ``RUN/dequantizer.safetensors``, weights and settings in one.

One file, so that it is there whole or not at all. It names the model it was trained for: for any
other it would still give a bound, and a worse one than its owner thinks.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from idode.storage import checksum
from idode.errors import InputError
from idode.likelihood.learned_dequantization import Learned, base
from idode.diffusion.model import DiffusionODE
from idode.nets.bin_flow import BinFlow, BinFlowConfig
from idode.runs.run import MODEL, Run, save_tensors, typed

__all__ = [
    "DEQUANTIZER",
    "Stored",
    "digest_of",
    "has_dequantizer",
    "load_dequantizer",
    "save_dequantizer",
]

DEQUANTIZER = "dequantizer.safetensors"


@dataclass(frozen=True)
class Stored:
    """What a file says of its dequantizer."""

    base: str
    gamma: float  # where on the clock it draws
    levels: int
    model: str  # digest of the weights it was trained for
    steps: int


def has_dequantizer(run: Run) -> bool:
    """Whether the run has one."""
    return (run.path / DEQUANTIZER).exists()


def save_dequantizer(path: Path, learned: Learned, name: str, steps: int) -> None:
    """Write the file of the run in the folder ``path`` in one atomic step.

    Args:
        path: Folder with the model.
        learned: The dequantizer.
        name: Of its base.
        steps: It was trained for.
    """
    stored = Stored(name, learned.gamma, learned.levels, digest_of(path), steps)
    described = {
        "flow": json.dumps(dataclasses.asdict(learned.flow.config)),
        "dequantizer": json.dumps(dataclasses.asdict(stored)),
    }
    save_tensors(path / DEQUANTIZER, learned.flow.state_dict(), described)


def load_dequantizer(run: Run, model: DiffusionODE, device: torch.device | str = "cpu") -> Learned:
    """The run's dequantizer; refused if it belongs to other weights."""
    file = run.path / DEQUANTIZER
    if not has_dequantizer(run):
        raise InputError(
            f"{run.path} has no learned dequantization: train one by "
            f"{typed('dequantize', run.path)}"
        )
    try:
        with safe_open(file, "pt") as opened:
            described = opened.metadata()
            weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        stored = Stored(**json.loads(described["dequantizer"]))
        flow = BinFlow(BinFlowConfig(**json.loads(described["flow"])))
        flow.load_state_dict(weights)
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
        text = " ".join(str(error).split())[:100]
        raise InputError(
            f"{file} cannot be read ({text}): train it again with idode dequantize --force"
        ) from None
    if stored.model != digest_of(run.path):
        raise InputError(
            f"{file} was trained for other weights than {run.path / MODEL} has: train it again "
            "with idode dequantize --force"
        )
    start = base(stored.base, model.schedule, stored.gamma, stored.levels)
    return Learned(start, flow.to(device).eval().requires_grad_(False), stored.levels)


def digest_of(path: Path) -> str:
    """Of the weights of the run in a folder."""
    try:
        return checksum(path / MODEL)
    except OSError as error:
        raise InputError(f"{path / MODEL} cannot be read ({error.strerror}): train it") from None
