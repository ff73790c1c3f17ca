"""The model of an archive: its tables, its plan, and the proof that both sides compute alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from idode import __version__
from idode.codec.bases import patch_sides
from idode.codec.network import (
    Denoiser,
    arithmetic,
    check_levels,
    differences,
    environment,
    one_thread,
    weights_hash,
)
from idode.codec.scheme import Scheme
from idode.codec.steps import make_plan
from idode.codec.tables import FEATURES, FILE, IMAGES, Tables, fit
from idode.data.memory import Data
from idode.diffusion.model import DiffusionODE
from idode.errors import InputError
from idode.runs.run import Run, open_run

__all__ = ["AnyModel", "Model", "check_header", "header_of", "model_for"]

FARTHEST = 50.0  # noise levels of tables, in gamma

AnyModel: TypeAlias = DiffusionODE | Run | Path | str


@dataclass(frozen=True)
class Model:
    """A model with its tables, and how a user names it."""

    ode: DiffusionODE
    tables: Tables
    name: str
    shape: tuple[int, int, int]
    levels: int

    def scheme(self, steps: int) -> Scheme:
        """How images of the model's shape are coded."""
        plan = make_plan(self.tables, self.ode.schedule, steps)
        denoiser = Denoiser(self.ode, self.shape, self.tables.side)
        return Scheme(denoiser, plan, self.levels, self.tables.feature)


def model_for(
    model: AnyModel,
    tables: Tables | None = None,
    progress: Callable[[int], None] = lambda count: None,
    data: Data | None = None,
) -> Model:
    """The model of a run, or one in memory with its ``tables``.

    A run without tables gets them now, from its training images or from those of ``data``.
    """
    if isinstance(model, DiffusionODE):
        ode, name = model, ""
        if tables is None:
            raise InputError(
                "a model that is not of a run has no tables: pass those of "
                "idode.codec.tables.fit(model, training_images)"
            )
    else:
        run = open_run(model)
        ode = run.model("cpu")
        name = str(model.path if isinstance(model, Run) else model)
    levels = check_levels(ode)
    if ode.shape is None or len(ode.shape) != 3:
        raise InputError(f"this model is for data of shape {ode.shape}: images have (C, H, W)")
    if tables is None:
        tables = _tables_of(run, ode, progress, data)
    c, h, w = ode.shape
    _check_tables(tables, (c, h, w))
    return Model(ode.to("cpu").eval(), tables, name, (c, h, w), levels)


def _check_tables(tables: Tables, shape: tuple[int, int, int]) -> None:
    """Refuse tables whose parts do not fit together, or not the images of the model."""
    levels, classes, size = tables.error.shape if tables.error.ndim == 3 else (0, 0, 0)
    pixels = len(tables.pixel_nats) if tables.pixel_nats.ndim == 1 else 0
    shapes = {
        "gamma": (levels,), "edges": (levels, classes - 1), "share": (levels, classes),
        "pixel_spread": (pixels, classes), "pixel_nats": (pixels,), "power": (size,),
    }  # fmt: skip
    arrays = {name: getattr(tables, name) for name in shapes}
    good = levels > 1 and 1 <= pixels <= levels and tables.error.dtype == np.uint8
    good &= all(arrays[name].shape == wanted for name, wanted in shapes.items())
    good = good and all(a.dtype.kind == "f" and np.isfinite(a).all() for a in arrays.values())
    good = good and bool((np.diff(tables.gamma) > 0).all() and (tables.pixel_spread > 0).all())
    good = good and bool((tables.power >= 0).all() and np.abs(tables.gamma).max() < FARTHEST)
    side = tables.about.get("side")
    good &= side in patch_sides(*shape[1:]) and size == shape[0] * int(side) ** 2
    if not good or tables.about.get("feature") not in FEATURES:
        raise InputError(
            f"the tables of the codec do not fit the model of images {shape}: delete {FILE} of "
            "the run, or fit them again"
        )


def _tables_of(
    run: Run, ode: DiffusionODE, progress: Callable[[int], None], data: Data | None
) -> Tables:
    file = run.path / FILE
    if file.exists():
        tables = Tables.load(file)
        if tables.about.get("weights") == weights_hash(ode):
            return tables  # otherwise they are of an earlier model of the run
    found = run.load_data(data)
    images = np.array(found.train[:IMAGES])
    tables = fit(ode, images, about={"data": str(found.identity)}, progress=progress)
    tables.save(file)
    return tables


def header_of(model: Model, scheme: Scheme) -> dict[str, Any]:
    """What a decoder must have alike."""
    with one_thread():
        probe = scheme.denoiser.probe()
    return {
        "idode": __version__,
        "model": model.name,
        "weights": weights_hash(model.ode),
        "steps": scheme.plan.steps,
        "plan": scheme.plan.hash(),
        "probe": probe,
        "environment": environment(),
    }


def check_header(header: dict[str, Any], model: Model, archive: str) -> Scheme:
    """The scheme of an archive; refused, with what differs, where it would decode otherwise."""
    steps, there = header.get("steps"), header.get("environment")
    if type(steps) is not int or not isinstance(there, dict):
        raise InputError(f"{archive} is damaged (its header is not complete): get it again")
    if header.get("weights") != weights_hash(model.ode):
        raise InputError(
            f"{archive} was made with weights {str(header.get('weights'))[:12]}, and those of "
            f"{model.name or 'this model'} are {weights_hash(model.ode)[:12]}: give the model it "
            "was made with"
        )
    scheme = model.scheme(steps)
    here = header_of(model, scheme)
    wrong = [name for name in ("plan", "probe") if header.get(name) != here[name]]
    if wrong:
        differs = differences(there, arithmetic()) or "the processor or a library it uses"
        raise InputError(
            f"{archive} cannot be decoded here, since this machine computes other "
            f"{'tables' if 'plan' in wrong else 'network outputs'} than the one that made it "
            f"({differs}): decode it with the same versions on the same kind of processor"
        )
    return scheme
