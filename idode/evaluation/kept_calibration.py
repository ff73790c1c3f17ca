"""Solver calibrations that outlive an evaluation: in the run's folder, or in the cache.

``calibration.json`` of a run maps a hash of the model, the data and the settings to the steps that
were found for them. Models that come with the package have theirs beside the weights. Before one
is used, a few images are solved on its steps: where their corrector gaps predict a larger error
than was asked for, the steps are found anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from idode.batches import Batch
from idode.data.identity import Identity
from idode.data.loading import default_root
from idode.diffusion.model import DiffusionODE
from idode.errors import InputError
from idode.evaluation.run_store import model_hash
from idode.evaluation.runner import fingerprint
from idode.likelihood.calibration import SolverCalibration, calibrate_solver
from idode.likelihood.estimator import LogWeightEstimator, image_named
from idode.likelihood.learned_dequantization import Learned
from idode.likelihood.log_prob import PathField
from idode.runs import pretrained
from idode.runs.run import Run
from idode.storage import read_json, write_atomically

__all__ = ["FILE", "KeptCalibrations", "calibrations_of"]

FILE = "calibration.json"
FORMAT = 1
CHECKED = 4  # images that kept steps are checked on
FAR = 1.5  # times the error asked for, at which kept steps are given up


@dataclass(frozen=True)
class KeptCalibrations:
    """Calibrations for one model on one data set.

    Args:
        read: Files to look in, the first that has it wins.
        write: File that new ones go to.
        depends: What they depend on besides the settings: model, data and split.
    """

    read: tuple[Path, ...]
    write: Path
    depends: Mapping[str, Any]

    def checked_or_found(
        self,
        estimator: LogWeightEstimator,
        pilot: Batch,
        tick: Callable[[int], None] | None = None,
    ) -> SolverCalibration:
        """The kept calibration where it still holds, else a new one, which is kept.

        Args:
            estimator: The model and how it is solved.
            pilot: Some images.
            tick: Called with the number of evaluations of the network just done.
        """
        kept = self.find(estimator, len(pilot.indices))
        if kept is not None:
            error, spent = _likely_error(estimator, pilot, kept)
            if tick is not None:
                tick(spent)
            allowed = max(kept.solver_rms, getattr(estimator.settings.solver, "tolerance", 0.0))
            if error <= FAR * allowed:
                share = min(CHECKED, len(pilot.indices)) / len(pilot.indices)
                return dataclasses.replace(kept, nfe=math.ceil(spent * share))
        found = calibrate_solver(estimator, pilot, tick)
        if math.isfinite(found.solver_rms):
            self.keep(estimator, len(pilot.indices), found)
        return found

    def find(self, estimator: LogWeightEstimator, images: int) -> SolverCalibration | None:
        """The calibration for these settings and so many pilot images, if there is one."""
        key = self._key(estimator, images)
        for file in self.read:
            with contextlib.suppress(InputError, KeyError, TypeError, AttributeError):
                return SolverCalibration.from_json(_entries(file)[key]["calibration"])
        return None

    def keep(self, estimator: LogWeightEstimator, images: int, found: SolverCalibration) -> None:
        """Write a calibration; where that cannot be done, the next evaluation finds it again."""
        entry = {"settings": _settings(estimator), "calibration": found.to_json()}
        entries = {**_entries(self.write), self._key(estimator, images): entry}
        value = {"format": FORMAT, "calibrations": entries}
        with contextlib.suppress(OSError):
            self.write.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.write, json.dumps(value, indent=1) + "\n")

    def _key(self, estimator: LogWeightEstimator, images: int) -> str:
        return fingerprint({**self.depends, "images": images, **_settings(estimator)})


def calibrations_of(
    run: Run,
    model: DiffusionODE,
    identity: Identity,
    split: str,
    learned: Learned | None = None,
) -> KeptCalibrations:
    """Those of a run on a split of a data set.

    Args:
        run: The run.
        model: Its model, as loaded.
        identity: Of the data.
        split: Split of the data.
        learned: Its dequantizer, where the numbers depend on one.
    """
    name = model_hash(run, model, learned)
    own = run.path / FILE
    cache = default_root() / "calibrations" / f"{name[:16]}.json"
    writable = run.path not in pretrained().values() and os.access(run.path, os.W_OK)
    depends = {"model": name, "data": identity.sha256, "split": split}
    return KeptCalibrations((own, cache), own if writable else cache, depends)


def _settings(estimator: LogWeightEstimator) -> dict[str, Any]:
    """What a calibration depends on: noise and probes of the pilot, and the error asked for."""
    values = estimator.settings.to_json()
    names = ("dequantization", "closed_form", "n_probes", "probe", "solver", "seed")
    return {**{name: values[name] for name in names}, "dtype": str(estimator.dtype)}


def _entries(file: Path) -> dict[str, Any]:
    """What a file keeps; nothing where it is missing, damaged or of another format."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        value = read_json(file)
        entries = value.get("calibrations")
        if value.get("format") == FORMAT and isinstance(entries, dict):
            return entries
    return {}


@torch.no_grad()
def _likely_error(
    estimator: LogWeightEstimator, pilot: Batch, kept: SolverCalibration
) -> tuple[float, int]:
    """Root mean square error that the corrector gaps of a few images predict; evaluations.

    The gaps are those of the path, so the divergence is left out.
    """
    few = pilot.part(0, CHECKED)
    x, _ = estimator.states(few.values, few.indices, 0)
    condition, _ = estimator.code(few, estimator.clean(few.values), 0)
    field = PathField(estimator.model, condition)
    start = estimator.dequantization.gamma(estimator.model)
    with image_named(few.indices):
        found = kept.solver.solve(field, x, start, estimator.model.gamma_max)
    gap = float(found.corrector_gap.square().mean().sqrt())
    return kept.error_per_gap * gap, found.nfe
