"""The runs of a comparison: train and measure each, and store every part when it is done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from idode.data.memory import Data
from idode.data.prepared import Dataset
from idode.diffusion.model import DiffusionODE
from idode.errors import NumericalError
from idode.evaluation.likelihood import bits_per_dim, sde_bound
from idode.likelihood.dequantization import TruncatedNormal, Uniform
from idode.likelihood.estimator import LikelihoodSettings
from idode.ode.adams import Adams
from idode.ode.dormand_prince import Dopri5
from idode.runs.run import Run, holds_run, open_run
from idode.sampling.features import features_for, pixel_features
from idode.sampling.fid import FIDReference
from idode.sampling.samples import sample
from idode.studies.comparison.plan import Entry, Plan
from idode.studies.comparison.results import Result, read_result, write_result
from idode.training.train import finetune, train
from idode.training.watch import Diverged

__all__ = ["Experiment"]

Values = tuple[Mapping[str, float], tuple[str, ...]]  # by metric, and notes


@dataclass(frozen=True)
class Experiment:
    """A plan with its folder, data and device, which are the same for all runs.

    Args:
        out: Folder of the comparison.
        plan: What is compared.
        given: The data as the user gave it, which each run records.
        data: The same data, loaded.
        device: Where to compute.
        progress: Whether trainings show a progress bar.
    """

    out: Path
    plan: Plan
    given: Data
    data: Dataset
    device: torch.device
    progress: bool = False

    def result(self, entry: Entry) -> Result:
        """What is stored about a run so far."""
        return read_result(entry.folder(self.out), entry, self.plan.measurement)

    def carry_out(self, entry: Entry, begin: Callable[[str], None] | None = None) -> Result:
        """Train and measure a run from wherever it stopped.

        A loss or a solve that is not finite is a result of its system and is stored as a failure.
        ``Ctrl-C`` raises :class:`KeyboardInterrupt` with all finished parts stored.

        Args:
            entry: The run; a second stage after its first.
            begin: Called with the name of each part when it begins.
        """
        result = self.result(entry)
        for part in result.missing:
            if "training" in result.failures:
                break
            if begin is not None:
                begin(part)
            began = time.perf_counter()
            try:
                values, notes = self._part(part, entry)
                wrong = [name for name, value in values.items() if not math.isfinite(value)]
                if wrong:
                    raise NumericalError(f"{', '.join(wrong)} is not finite")
                result = result.done(part, time.perf_counter() - began, values, notes)
            except (Diverged, NumericalError) as error:
                result = result.failed(part, str(error))
            write_result(entry.folder(self.out), result)
        return result

    def _part(self, part: str, entry: Entry) -> Values:
        if part == "training":
            self._train(entry)
            return {}, ()
        model = open_run(entry.folder(self.out)).model(self.device)
        return {"sde": self._sde, "ode": self._ode, "sampling": self._sample}[part](model)

    def _train(self, entry: Entry) -> None:
        folder, device = entry.folder(self.out), str(self.device)
        resume = holds_run(folder)
        if not entry.stage:
            config = self.plan.config(entry, self.data.identity)
            train(
                config, out=folder, data=self.given, resume=resume, device=device,
                progress=self.progress,
            )  # fmt: skip
            return
        if "training" in self.result(entry.first).failures:
            # The folder is a run all the same, so that it is found and can be replaced.
            config = self.plan.config(entry, self.data.identity)
            Run(folder, config, self.data.identity).write_config()
            raise NumericalError("its first stage failed")
        finetune(
            entry.first.folder(self.out), out=folder, data=self.given, ratio=entry.ratio,
            settings=self.plan.second_stage_settings, resume=resume, device=device,
            progress=self.progress,
        )  # fmt: skip

    def _sde(self, model: DiffusionODE) -> Values:
        """The SDE bound of as many images as the held-out curve has."""
        count = self.plan.config(self.plan.entries()[0], self.data.identity).train.evaluate_count
        bound = sde_bound(model, self.data.test[:count], draws=self.plan.measurement.draws)
        values = {"sde": bound.mean, "sde_error": bound.standard_error}
        return values | ({"code": bound.code} if bound.code else {}), ()

    def _ode(self, model: DiffusionODE) -> Values:
        """Bits/dim by two dequantizations, on the grid of the first, which starts earlier."""
        images = self.data.test[: self.plan.measurement.limit]
        first = LikelihoodSettings(
            dequantization=TruncatedNormal(), solver=Adams(self.plan.measurement.tolerance)
        )
        tn = bits_per_dim(model, images, first)
        second = replace(first, dequantization=Uniform())
        uniform = bits_per_dim(model, images, second, calibration=tn.calibration)
        if not (tn.complete and uniform.complete):
            raise KeyboardInterrupt
        values = {
            "tn": tn.mean,
            "tn_error": tn.standard_error,
            "likelihood_nfe": tn.nfe,
            "pilot_nfe": float(tn.calibration.nfe),
            "uniform": uniform.mean,
            "uniform_error": uniform.standard_error,
        }
        return values, tn.notes

    def _sample(self, model: DiffusionODE) -> Values:
        # One batch and one seed for all: the adaptive solver's steps depend on its batch.
        count = self.plan.measurement.samples
        drawn = sample(model, count, seed=0, solver=Dopri5(), batch_size=count)
        return {"sampling_nfe": drawn.nfe, "fid": self._reference.fid(drawn.data)}, ()

    @cached_property
    def _reference(self) -> FIDReference:
        levels = self.data.levels
        assert levels is not None
        return FIDReference(
            self.data, *(features_for(self.data) or ("pixel", pixel_features(levels)))
        )

    def test_images_fid(self) -> tuple[str, float]:
        """The name of the features, and the FID of as many test images as there are samples."""
        images = self.data.test[: self.plan.measurement.samples]
        return self._reference.network, self._reference.fid(images)
