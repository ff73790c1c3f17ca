"""Averages of the weights as files: ``snapshots/step-000000100.safetensors`` of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from idode.errors import InputError
from idode.runs.run import SNAPSHOTS
from idode.runs.tensor_file import save_tensors
from idode.training.power_average import WIDTHS, Combination, combination

__all__ = ["check_snapshots", "combined", "forget_after", "snapshot_steps", "write_snapshot"]

NAME = re.compile("step-([0-9]{9,18})[.]safetensors")


def _file(run: Path, step: int) -> Path:
    return run / SNAPSHOTS / f"step-{step:09d}.safetensors"


def snapshot_steps(run: Path) -> list[int]:
    """Steps of which there are snapshots."""
    folder = run / SNAPSHOTS
    files = folder.iterdir() if folder.is_dir() else ()
    return sorted(int(found[1]) for f in files if (found := NAME.fullmatch(f.name)))


def write_snapshot(run: Path, step: int, averages: Mapping[float, Mapping[str, Tensor]]) -> None:
    """Store averages by width, as weights by name."""
    (run / SNAPSHOTS).mkdir(exist_ok=True)
    tensors = {
        f"{w:g}/{name}": x for w, weights in averages.items() for name, x in weights.items()
    }
    save_tensors(_file(run, step), tensors)


def forget_after(run: Path, step: int) -> None:
    """Remove snapshots of steps that a resumed run has yet to take."""
    for later in snapshot_steps(run):
        if later > step:
            _file(run, later).unlink()


def check_snapshots(run: Path) -> list[int]:
    """Steps of the snapshots, refused where there are none."""
    steps = snapshot_steps(run)
    if not steps:
        raise InputError(f"{run} has no snapshots: train with --set train.snapshot_every=N")
    return steps


def combined(run: Path, width: float) -> tuple[dict[str, Tensor], Combination]:
    """The weights averaged with a width up to the last snapshot, and how they were found."""
    steps = check_snapshots(run)
    keys = [(kept, step) for step in steps for kept in WIDTHS]
    found = combination(keys, width, steps[-1])
    total: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for (kept, step), factor in zip(keys, found.factors, strict=True):
        for name, x in _read(_file(run, step), f"{kept:g}/").items():
            dtypes[name] = x.dtype
            if x.is_floating_point():
                total[name] = total.get(name, torch.zeros(())) + factor * x.to(torch.float64)
            else:
                total[name] = x  # a count, as of a network of the user's: the last
    return {name: x.to(dtypes[name]) for name, x in total.items()}, found


def _read(file: Path, prefix: str) -> dict[str, Tensor]:
    try:
        with safe_open(file, "pt") as tensors:
            names = [name for name in tensors.keys() if name.startswith(prefix)]  # noqa: SIM118
            return {name.removeprefix(prefix): tensors.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file} cannot be read ({error}): remove it, or train again") from None
