"""What is compared: systems by seeds, on one network, one data set, one number of steps.

::

    DIR/plan.json                    what all trainings have in common
    DIR/SYSTEM/seed-S/               a run like any other, and result.json beside its model
    DIR/compare.{json,md,html}       the comparison, with its pictures as PNG files

A plan may grow by systems and by seeds, and be measured with another effort; whatever the
trainings share may not change.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from idode.data import Identity
from idode.errors import InputError, choose
from idode.runs.config import Config, fit, override, to_json
from idode.runs.presets import PRESETS
from idode.runs.run import CONFIG, open_run
from idode.runs.systems import SYSTEMS, apply, distinct
from idode.storage import write_atomically
from idode.training import finetuned

__all__ = [
    "BASELINE",
    "FINETUNED",
    "Effort",
    "Entry",
    "Plan",
    "check_folder",
    "store",
    "stored_plan",
]

BASELINE = "vdm"  # whose final value the others are timed to
FINETUNED = ("idode-vp", "idode-sp")  # the second stage is the paper's own
POINTS, FURTHER_POINTS, SAVES = 20, 4, 5  # held-out values and checkpoints of one training
STAGES: dict[str, float | None] = {"finetune": None, "control": 0.0}  # ratio; None: the preset's
PLAN = "plan.json"


@dataclass(frozen=True)
class Effort:
    """How much is spent on evaluating a run; the defaults take about a third of its training.

    Args:
        limit: Test images of the ODE's values.
        tolerance: Of the solver in bits/dim; a tighter one would mostly be spent on calibrating.
        draws: Noise levels for each image of the SDE bound.
        samples: Drawn together by the paper's adaptive solver, for its NFE and the FID.
    """

    limit: int = 128
    tolerance: float = 0.02
    draws: int = 16
    samples: int = 128

    def __post_init__(self) -> None:
        for name, least in (("limit", 1), ("draws", 2), ("samples", 2)):
            if getattr(self, name) < least:
                raise InputError(f"--{name}: must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.tolerance < math.inf:
            raise InputError(f"--tolerance: must be above 0, got {self.tolerance}")


@dataclass(frozen=True)
class Entry:
    """One run of a comparison; ``stage`` is empty for training from scratch."""

    system: str
    seed: int
    stage: str = ""

    @property
    def name(self) -> str:
        """That of its row in the table."""
        return f"{self.system}+{self.stage}" if self.stage else self.system

    @property
    def first(self) -> Entry:
        """The run that a second stage starts from."""
        return replace(self, stage="")

    def folder(self, out: Path) -> Path:
        """Where its run is."""
        return out / self.name / f"seed-{self.seed}"


@dataclass(frozen=True)
class Plan:
    """Systems by seeds, and all that they share.

    Args:
        systems: Names in :data:`idode.runs.systems.SYSTEMS`.
        seeds: Of training; images and noise of the evaluation are the same for all.
        preset: Network, optimisation and, unless given, data.
        data: A data spec.
        settings: Changes to the preset in the words of ``--set``; a system's own come after them.
        steps: Optimiser steps; by default those of the preset.
        finetune: Steps of the second stage of i-DODE; 0 for none.
        control: Also a second stage without the second-order term.
        effort: Of evaluation.
    """

    systems: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    preset: str = "digits"
    data: str | None = None
    settings: tuple[str, ...] = ()
    steps: int | None = None
    finetune: int = 0
    control: bool = False
    effort: Effort = dataclasses.field(default_factory=Effort)

    def __post_init__(self) -> None:
        choose("preset", self.preset, PRESETS)
        for what, values in (("--systems", self.systems), ("--seeds", self.seeds)):
            if not values or len(set(values)) < len(values):
                raise InputError(f"{what} must name each once, and at least one")
        again = [name for name in self.systems if name not in distinct(self.systems)]
        if again:
            same = next(
                n for n in self.systems if SYSTEMS[n].settings == SYSTEMS[again[0]].settings
            )
            raise InputError(
                f"{same} and {again[0]} are the same training here (math.md): name one of them "
                "in --systems"
            )
        if self.finetune < 0:
            raise InputError(f"--finetune: must be at least 0, got {self.finetune}")
        if self.control and not self.finetune:
            raise InputError("--control is for a second stage: give its steps with --finetune N")

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the second stages."""
        return tuple(STAGES)[: 1 + self.control] if self.finetune else ()

    @property
    def spec(self) -> str:
        """The data spec of all runs."""
        spec = self.data or PRESETS[self.preset].data
        if spec is None:
            raise InputError(f"{self.preset} has no data of its own: give --data SPEC")
        return spec

    def entries(self) -> list[Entry]:
        """All runs, a seed after the other, first stages before what starts from them."""
        return [
            Entry(system, seed, stage)
            for seed in self.seeds
            for system in self.systems
            for stage in ("", *(self.stages if system in FINETUNED else ()))
        ]

    def names(self) -> list[str]:
        """IndexedBatches of the table."""
        return list(dict.fromkeys(entry.name for entry in self.entries()))

    def config(self, entry: Entry, identity: Identity) -> Config:
        """The configuration of a run, for data of this identity."""
        if identity.levels is None:
            raise InputError(
                f"{self.spec} is continuous, and bounds are compared on integer data: give images"
            )
        short = [] if self.steps is None else [f"train.steps={self.steps}"]
        words = [*self.settings, *short, f"train.seed={entry.seed}"]
        base = _paced(override(PRESETS[self.preset], words), POINTS)
        named = replace(base, name=f"{self.preset}+{entry.system}", data=self.spec)
        config = fit(apply(named, entry.system), identity.levels, identity.shape)
        if not entry.stage:
            return config
        further = finetuned(config, ratio=STAGES[entry.stage])
        return _paced(override(further, [f"train.steps={self.finetune}"]), FURTHER_POINTS)

    def shared(self) -> dict[str, Any]:
        """What all trainings have in common, as plain values."""
        values = dataclasses.asdict(self)
        kept = {
            k: v for k, v in values.items() if k not in ("systems", "seeds", "control", "effort")
        }
        plain: dict[str, Any] = json.loads(json.dumps({**kept, "data": self.spec}))
        return plain


def _paced(config: Config, points: int) -> Config:
    """Enough held-out values for a curve, and timings at the same steps."""
    every = max(1, config.train.steps // points)
    saves = max(1, config.train.steps // SAVES)
    words = [f"train.evaluate_every={every}", f"train.log_every={every}"]
    return override(
        config, [*words, f"train.checkpoint_every={saves}", "train.keep=1", "train.sample_every=0"]
    )


def stored_plan(out: Path) -> dict[str, Any] | None:
    """What the comparison in a folder began with, if there is one: others have a plan.json too."""
    try:
        stored = json.loads((out / PLAN).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise InputError(f"{out / PLAN} cannot be read: give another folder with --out") from None
    return stored if isinstance(stored, dict) and {"preset", "finetune"} <= stored.keys() else None


def check_folder(out: Path, plan: Plan, identity: Identity) -> None:
    """Refuse a folder of something else, or of a comparison with other settings."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give a folder for the comparison")
    if not out.exists() or not any(not p.name.startswith(".") for p in out.iterdir()):
        return
    stored = stored_plan(out)
    if stored is None:
        raise InputError(
            f"{out} is not empty and holds no comparison: give another folder with --out"
        )
    stored.pop("effort", None)  # a plan of an older idode has it
    _same(out, stored, plan.shared())
    for entry in plan.entries():
        folder = entry.folder(out)
        if (folder / CONFIG).exists():
            _same(folder, to_json(open_run(folder).config), to_json(plan.config(entry, identity)))
            began = open_run(folder).identity
            if began is not None and began.sha256 != identity.sha256:
                raise InputError(
                    f"{folder} was trained on other data ({began}) than is given ({identity}): "
                    "give its own, or another --out"
                )


def _same(folder: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse settings that differ, and name them."""
    before, now = _flat(stored), _flat(wanted)
    differ = [k for k in sorted(before.keys() | now.keys()) if before.get(k) != now.get(k)]
    if differ:
        name, others = differ[0], len(differ) - 1
        more = f", and {others} more" if others else ""
        raise InputError(
            f"{folder} was begun with other settings ({name}: {before.get(name)} there, "
            f"{now.get(name)} here{more}): give the same, another --out, or --force to begin again"
        )


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted names."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            found |= _flat(item, f"{prefix}{key}.")
        else:
            found[prefix + key] = item
    return found


def store(out: Path, plan: Plan) -> None:
    """Claim the folder for this plan."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / PLAN, json.dumps(plan.shared(), indent=1) + "\n")
    except OSError as error:
        raise InputError(
            f"cannot write to {out} ({error.strerror}): give a folder you may write to"
        ) from None
