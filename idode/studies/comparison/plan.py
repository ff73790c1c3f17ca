"""What is compared: systems by seeds, with one network, one data set, one number of steps.

A plan may grow by systems and by seeds, and its runs may be measured again with other settings;
what the trainings share may not change.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from idode.data.identity import Identity
from idode.errors import InputError, choose
from idode.runs.config import Config, check_not_of_data, fit, names_of, override
from idode.runs.presets import PRESETS
from idode.runs.systems import SYSTEMS, apply, distinct
from idode.studies.comparison.settings import MeasurementSettings
from idode.training.finetuning import finetuned

__all__ = ["BASELINE", "FINETUNED", "Entry", "Plan"]

BASELINE = "vdm"  # the others are timed until they reach its final value
FINETUNED = ("idode-vp", "idode-sp")  # systems that the paper fine-tunes
POINTS, FURTHER_POINTS, SAVES = 20, 4, 5  # held-out values and checkpoints of one training
STAGES: dict[str, float | None] = {"finetune": None, "control": 0.0}  # ratio; None: the preset's


@dataclass(frozen=True)
class Entry:
    """One run of a comparison; ``stage`` is empty for training from scratch."""

    system: str
    seed: int
    stage: str = ""

    @property
    def name(self) -> str:
        """The name of its row in the table."""
        return f"{self.system}+{self.stage}" if self.stage else self.system

    @property
    def first(self) -> Entry:
        """The run that a second stage starts from."""
        return replace(self, stage="")

    @property
    def ratio(self) -> float | None:
        """Weight of the second-order term of a second stage; ``None`` is the preset's."""
        return STAGES[self.stage]

    def folder(self, out: Path) -> Path:
        """The folder of its run."""
        return out / self.name / f"seed-{self.seed}"


@dataclass(frozen=True)
class Plan:
    """Systems by seeds, and what they share.

    Args:
        systems: Names in :data:`idode.runs.systems.SYSTEMS`.
        seeds: Of training; images and noise of the evaluation are the same for all.
        preset: Network, optimisation and, unless given, data.
        data: A data spec, ``memory`` for arrays; by default that of the preset.
        settings: Changes to the preset as ``NAME=VALUE``; those of a system override them.
        steps: Optimiser steps; by default those of the preset.
        finetune: Steps of the second stage of i-DODE; 0 for none.
        control: Also a second stage without the second-order term.
        measurement: How runs are measured.
    """

    systems: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    preset: str = "digits"
    data: str | None = None
    settings: tuple[str, ...] = ()
    steps: int | None = None
    finetune: int = 0
    control: bool = False
    measurement: MeasurementSettings = field(default_factory=MeasurementSettings)

    def __post_init__(self) -> None:
        choose("preset", self.preset, PRESETS)
        for what, values in (("systems", self.systems), ("seeds", self.seeds)):
            if not values or len(set(values)) < len(values):
                raise InputError(f"{what}: give at least one, and none twice")
        again = [name for name in self.systems if name not in distinct(self.systems)]
        if again:
            same = next(
                n for n in self.systems if SYSTEMS[n].settings == SYSTEMS[again[0]].settings
            )
            raise InputError(
                f"{same} and {again[0]} are the same training here (math.md): give one of them"
            )
        check_not_of_data(self.settings)
        if ours := sorted(names_of(self.settings) & {"train.minutes", "train.seed"}):
            raise InputError(
                f"{ours[0]} is not for all trainings of a comparison: leave it out, and give "
                "steps and seeds, which have arguments of their own"
            )
        if self.finetune < 0:
            raise InputError(f"finetune must be at least 0, got {self.finetune}")
        if self.control and not self.finetune:
            raise InputError("control is a second stage: give its number of steps as finetune")

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the second stages."""
        return tuple(STAGES)[: 1 + self.control] if self.finetune else ()

    @property
    def spec(self) -> str:
        """The data spec of all runs."""
        spec = self.data or PRESETS[self.preset].data
        if spec is None:
            raise InputError(f"{self.preset} has no data set of its own: give the data")
        return spec

    def entries(self) -> list[Entry]:
        """All runs: seed by seed, and first stages before the second stages."""
        return [
            Entry(system, seed, stage)
            for seed in self.seeds
            for system in self.systems
            for stage in ("", *(self.stages if system in FINETUNED else ()))
        ]

    def names(self) -> list[str]:
        """Names of the rows of the table."""
        return list(dict.fromkeys(entry.name for entry in self.entries()))

    @property
    def second_stage_settings(self) -> list[str]:
        """Changes to the settings of fine-tuning, as ``NAME=VALUE``."""
        return [f"train.steps={self.finetune}", *_intervals(self.finetune, FURTHER_POINTS)]

    def config(self, entry: Entry, identity: Identity) -> Config:
        """The configuration of a run, for data of this identity."""
        if identity.levels is None:
            raise InputError(
                f"{self.spec} is continuous, and bounds are compared on integer data: give images"
            )
        short = [] if self.steps is None else [f"train.steps={self.steps}"]
        chosen = override(
            PRESETS[self.preset], [*self.settings, *short, f"train.seed={entry.seed}"]
        )
        base = override(chosen, _intervals(chosen.train.steps, POINTS))
        named = replace(base, name=f"{self.preset}+{entry.system}", data=self.spec)
        config = fit(apply(named, entry.system), identity.levels, identity.shape)
        if not entry.stage:
            return config
        return override(finetuned(config, ratio=entry.ratio), self.second_stage_settings)

    def shared(self) -> dict[str, Any]:
        """What all trainings have in common, as plain values for JSON."""
        values = dataclasses.asdict(self)
        for name in ("systems", "seeds", "control", "measurement"):
            del values[name]
        found: dict[str, Any] = json.loads(json.dumps({**values, "data": self.spec}))
        return found


def _intervals(steps: int, points: int) -> list[str]:
    """Settings for ``points`` held-out values in a training, with its speed at the same steps."""
    every, saves = max(1, steps // points), max(1, steps // SAVES)
    return [
        f"train.evaluate_every={every}",
        f"train.log_every={every}",
        f"train.checkpoint_every={saves}",
        "train.keep=1",
        "train.sample_every=0",
    ]
