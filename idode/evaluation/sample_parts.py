"""Samples drawn by several processes, and again after a kill: finished batches on disk.

Batches are numbered; a process takes every so many of them, so that the samples are those of one
process, one by one. They are kept beside the output in a hidden folder whose name says what they
depend on, and removed with it when the samples are written.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idode.data.arrays import npz_arrays
from idode.errors import InputError
from idode.evaluation.runner import fingerprint
from idode.runs.distributed import World
from idode.sampling.samplers import States
from idode.storage import write_atomically

__all__ = ["StoredParts"]


class StoredParts:
    """Finished batches of the samples that ``depends`` describes.

    Args:
        out: Where the samples will be written.
        depends: Plain values: model, seed, solver and all else the samples depend on.
        world: This process's place among all.
    """

    def __init__(self, out: Path, depends: Mapping[str, Any], world: World) -> None:
        self.folder = out.parent / f".{out.name}.{fingerprint(depends)}.parts"
        self._world = world

    @property
    def alone(self) -> bool:
        """Whether this process draws all of them."""
        return self._world.size == 1

    def mine(self, number: int) -> bool:
        """Every process takes its turn."""
        return number % self._world.size == self._world.rank

    def get(self, lo: int, hi: int) -> States | None:
        """A batch that is on disk; a damaged one is drawn again."""
        try:
            found = npz_arrays(self._file(lo, hi), "x", "log_p", "nfe")
            x, nfe, log_p = found["x"], found["nfe"], found.get("log_p")
        except (InputError, KeyError):
            return None
        known = None if log_p is None else torch.from_numpy(log_p)
        fits = x.shape[:1] == (hi - lo,) and nfe.shape == ()
        fits &= known is None or known.shape == (hi - lo,)
        return States(torch.from_numpy(x), known, float(nfe)) if fits else None

    def put(self, lo: int, hi: int, states: States) -> None:
        """Write a batch; when this returns it survives a kill."""
        arrays = {"x": states.x.numpy(), "nfe": np.array(float(states.nfe))}
        if states.log_p is not None:
            arrays["log_p"] = states.log_p.numpy()
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        try:
            self.folder.mkdir(exist_ok=True)
            write_atomically(self._file(lo, hi), buffer.getvalue(), sync=False)
        except OSError as error:
            raise InputError(
                f"cannot write {self.folder} ({error.strerror}): make room and give the same "
                "command again; what was drawn is kept"
            ) from None

    def wait(self) -> None:
        """Return when all processes are here."""
        self._world.barrier()

    def remove(self) -> None:
        """Delete the batches, after the samples were written."""
        if self._world.writes:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, lo: int, hi: int) -> Path:
        return self.folder / f"{lo:07d}-{hi:07d}.npz"
