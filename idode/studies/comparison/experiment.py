"""One run of a comparison: train it, measure it, and keep every part as soon as it is done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from idode.data import Dataset
from idode.diffusion.model import DiffusionODE
from idode.errors import NumericalError
from idode.likelihood.bits_per_dim import LikelihoodSettings, bits_per_dim
from idode.likelihood.sde_bound import sde_bound
from idode.runs.run import Run, open_run
from idode.sampling import sample
from idode.sampling.features import Features, features_for, pixel_features
from idode.sampling.fid import FeatureStatistics, fid, statistics_of
from idode.studies.comparison.plan import Entry, Plan
from idode.studies.comparison.results import Result, read_result, write_result
from idode.training import Diverged, Reporter, Trainer, World, parent_of

__all__ = ["Bench"]

Watch = Callable[[int], Reporter]  # whoever watches a training of so many steps
Values = tuple[Mapping[str, float], tuple[str, ...]]


@dataclass(frozen=True)
class Bench:
    """Where the runs of a plan are made: folder, data and device, the same for all."""

    out: Path
    plan: Plan
    data: Dataset
    device: torch.device

    def result(self, entry: Entry) -> Result:
        """What is known of a run so far."""
        return read_result(entry.folder(self.out), entry, self.plan.effort)

    def carry_out(self, entry: Entry, watch: Watch, tell: Callable[[str], None]) -> Result:
        """Train and measure a run from wherever it stopped.

        A loss or a solve that leaves the range of numbers is a result of its system and is kept
        as such. ``Ctrl-C`` raises :class:`KeyboardInterrupt`, with all finished parts stored.

        Args:
            entry: Which run; a second stage after its first.
            watch: Gives the reporter of a training.
            tell: Hears of each part that begins.
        """
        result = self.result(entry)
        for part in result.missing:
            if "training" in result.failures:
                break
            tell(part)
            began = time.perf_counter()
            try:
                values, notes = self._part(part, entry, watch)
                wrong = [name for name, value in values.items() if not math.isfinite(value)]
                if wrong:
                    raise NumericalError(f"{', '.join(wrong)} is not finite")
                result = result.done(part, time.perf_counter() - began, values, notes)
            except (Diverged, NumericalError) as error:
                result = result.failed(part, str(error))
            write_result(entry.folder(self.out), result)
        return result

    def _part(self, part: str, entry: Entry, watch: Watch) -> Values:
        if part == "training":
            return self._train(entry, watch)
        model = open_run(entry.folder(self.out)).model(self.device)
        return {"sde": self._sde, "ode": self._ode, "sampling": self._sample}[part](model)

    def _train(self, entry: Entry, watch: Watch) -> Values:
        config = self.plan.config(entry, self.data.identity)
        run = Run(entry.folder(self.out), config, self.data.identity)
        start = None
        if entry.stage:
            first = open_run(entry.first.folder(self.out))
            if "training" in self.result(entry.first).failures:
                run.write_config()
                raise NumericalError("its first stage failed")
            start = first.net().state_dict()
            run = replace(run, parent=parent_of(first, str(first.path.resolve())))
        run.write_config()
        reporter = watch(config.train.steps)
        trained = Trainer(run, self.data, World(self.device), reporter, start).train()
        if trained.interrupted:
            raise KeyboardInterrupt
        return {}, ()

    def _sde(self, model: DiffusionODE) -> Values:
        """As many images as the held-out curve has."""
        count = self.plan.config(self.plan.entries()[0], self.data.identity).train.evaluate_count
        images = self.data.test[:count]
        bound = sde_bound(model, images, draws=self.plan.effort.draws, device=self.device)
        return {"sde": bound.mean, "sde_error": bound.standard_error}, ()

    def _ode(self, model: DiffusionODE) -> Values:
        """Both dequantizations on the grid tuned for the first, whose clock is the longer one."""
        effort = self.plan.effort
        values: dict[str, float] = {}
        notes: list[str] = []
        pilot = None
        for name in ("tn", "uniform"):
            settings = LikelihoodSettings(dequantization=name, tolerance=effort.tolerance)
            images = self.data.test[: effort.limit]
            found = bits_per_dim(model, images, settings, device=self.device, pilot=pilot)
            if not found.complete:
                raise KeyboardInterrupt
            values |= {name: found.mean, f"{name}_error": found.standard_error}
            pilot = pilot or found.pilot
            if name == "tn":
                values |= {"likelihood_nfe": found.nfe, "pilot_nfe": float(pilot.nfe)}
                notes += found.notes
        return values, tuple(notes)

    def _sample(self, model: DiffusionODE) -> Values:
        count, shape = self.plan.effort.samples, self.data.shape
        # One batch and one seed for all: the adaptive solver's steps depend on its batch.
        drawn = sample(
            model,
            count,
            shape,
            torch.Generator().manual_seed(0),
            solver="dopri5",
            batch_size=count,
            device=self.device,
        )
        distance = fid(drawn.data, self._reference, self._features[1])
        return {"sampling_nfe": drawn.nfe, "fid": distance}, ()

    @cached_property
    def _features(self) -> tuple[str, Features]:
        levels = self.data.levels
        assert levels is not None
        return features_for(self.data) or ("pixel", pixel_features(levels))

    @cached_property
    def _reference(self) -> FeatureStatistics:
        return statistics_of(self.data.train, self._features[1])

    def yardstick(self) -> tuple[str, float]:
        """Whose features the Fréchet distance sees, and that of equally many test images."""
        name, features = self._features
        return name, fid(self.data.test[: self.plan.effort.samples], self._reference, features)
