"""Checkpoints that survive a kill at any moment.

::

    checkpoints/step-000001200/state.safetensors   every tensor of the training state
    checkpoints/step-000001200/manifest.json       step, held-out value, SHA-256 of the tensors

A checkpoint is written under another name, forced to disk and then renamed as a whole, so a
folder called ``step-...`` is complete; the checksum catches what the disk does afterwards.
"""

from __future__ import annotations

import json
import re
import shutil
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from idode.errors import InputError
from idode.runs.run import CHECKPOINT
from idode.runs.tensor_file import write_tensors
from idode.storage import (
    checksum,
    read_json,
    remove,
    replacing,
    sync_folder,
    write_atomically,
)

__all__ = ["Manifest", "load_latest", "save", "steps"]

STATE, MANIFEST = "state.safetensors", "manifest.json"
NUMBER = "[0-9]{9,18}"
UNFINISHED, REPLACED = ".new-", ".old-"


@dataclass(frozen=True)
class Manifest:
    """The contents of ``manifest.json``."""

    step: int
    held_out: float | None  # bits/dim, where it was measured at this very step
    sha256: str
    bytes: int


def save(
    folder: Path, step: int, tensors: Mapping[str, Tensor], held_out: float | None, keep: int
) -> Path:
    """Write a checkpoint, then remove all but the last ``keep`` and the best one."""
    final = folder / f"{CHECKPOINT}{step:09d}"
    unfinished = folder / f"{UNFINISHED}{final.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        unfinished.mkdir()
        with replacing(unfinished / STATE) as file:
            write_tensors(file, tensors)
        size = (unfinished / STATE).stat().st_size
        manifest = Manifest(step, held_out, checksum(unfinished / STATE), size)
        write_atomically(unfinished / MANIFEST, json.dumps(asdict(manifest)) + "\n")
        if final.exists():  # damaged, or left by a run that was resumed before it
            final.rename(folder / f"{REPLACED}{final.name}")
        unfinished.rename(final)
        sync_folder(folder)
        prune(folder, keep)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        last = max(steps(folder), default=None)
        kept = "there is no earlier one" if last is None else f"that of step {last} is intact"
        raise InputError(
            f"cannot write the checkpoint of step {step} to {folder} ({error}); {kept}: make "
            "room, then continue with --resume"
        ) from None
    return final


def load_latest(
    folder: Path, notice: Callable[[str], None]
) -> tuple[Manifest, dict[str, Tensor]] | None:
    """The newest undamaged checkpoint; ``notice`` is called for each damaged one."""
    for step in sorted(steps(folder), reverse=True):
        path = folder / f"{CHECKPOINT}{step:09d}"
        try:
            manifest = read_manifest(path)
            if checksum(path / STATE) != manifest.sha256:
                raise ValueError("its checksum is wrong")
            return manifest, load_file(path / STATE)
        except (OSError, ValueError, TypeError, SafetensorError) as error:
            notice(f"warning: the checkpoint of step {step} is damaged ({error}); going back")
    return None


def steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder, damaged or not."""
    if not folder.is_dir():
        return []
    numbers = (p.name.removeprefix(CHECKPOINT) for p in folder.glob(f"{CHECKPOINT}*"))
    return sorted(int(n) for n in numbers if re.fullmatch(NUMBER, n))


def read_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint at ``path``."""
    found = Manifest(**read_json(path / MANIFEST))
    known = type(found.held_out) in (int, float, types.NoneType)
    if type(found.step) is not int or not known or not isinstance(found.sha256, str):
        raise ValueError("its manifest holds values of other kinds")
    return found


def sweep(folder: Path) -> None:
    """Remove what a killed process left half written or half removed."""
    for prefix in (UNFINISHED, REPLACED):
        for path in folder.glob(f"{prefix}*"):
            remove(path)


def prune(folder: Path, keep: int) -> None:
    """Keep the last ``keep`` checkpoints and the one with the lowest held-out value."""
    found = steps(folder)
    values = {step: _held_out(folder / f"{CHECKPOINT}{step:09d}") for step in found}
    measured = {step: value for step, value in values.items() if value is not None}
    kept = {*found[-keep:], *sorted(measured, key=measured.__getitem__)[:1]}
    for step in set(found) - kept:
        name = f"{CHECKPOINT}{step:09d}"
        (folder / name).rename(folder / f"{REPLACED}{name}")
    sweep(folder)


def _held_out(path: Path) -> float | None:
    try:
        return read_manifest(path).held_out
    except (OSError, ValueError, TypeError):
        return None
