"""``idode.calibrate``: what known images look like to a model, kept with its run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from idode.data.loading import default_root
from idode.data.memory import Data
from idode.detection.detector import FILE, Detector, error_terms, fit_normal
from idode.detection.images import Pixels, check_model
from idode.detection.statistics import levels_for, measure
from idode.diffusion.model import DiffusionODE
from idode.errors import InputError
from idode.evaluation.likelihood import sde_bound
from idode.evaluation.run_store import model_hash
from idode.progress import LateBar
from idode.runs import pretrained
from idode.runs.distributed import best_device
from idode.runs.run import Run, open_run

__all__ = ["calibrate", "detector_of", "fit_detector", "kept_detector"]

LIMIT = 4000  # known images by default
LEAST = 20
BITS_IMAGES, BITS_DRAWS = 96, 32  # for which the bits/dim are computed by the SDE bound


def calibrate(
    run: Run | Path | str,
    *,
    data: Data | None = None,
    split: str = "test",
    limit: int | None = None,
    seed: int = 0,
    out: Path | str | None = None,
    device: str | None = None,
    progress: bool = True,
) -> Detector:
    """Measure known images and keep their statistics with the run, for :func:`idode.score`.

    The images must be new to the model: of a data set its test split. One half is for the density
    of the statistics, the other for p-values.

    Args:
        run: A run folder, ``pretrained:NAME`` or ``diffusers:FOLDER``.
        data: Known images: a spec, a data set or a pair of arrays; by default that of the run.
        split: Split of the data: test or train.
        limit: The first so many images, 4000 by default.
        seed: Seed of the noise, and of the division into halves.
        out: Another file to keep the result in.
        device: Such as ``"cpu"``; by default the best available.
        progress: Show a bar on stderr.
    """
    opened = open_run(run)
    model = opened.model(best_device(device))
    check_model(model)
    file = _own_file(opened, model) if out is None else _checked_place(Path(out))
    dataset = opened.load_data(data)
    images = np.asarray(dataset.part(split, LIMIT if limit is None else limit))
    about = {
        "model": model_hash(opened, model),
        "data": dataset.identity.name,
        "sha256": dataset.identity.sha256,
        "split": split,
    }
    found = fit_detector(model, images, seed=seed, about=about, progress=progress)
    found.save(file)
    if progress:
        own = opened.path / FILE
        hides = f", and used instead of {own}" if out is None and file != own else ""
        print(f"kept in {file}{hides if own.is_file() else ''}", file=sys.stderr)
    return found


def fit_detector(
    model: DiffusionODE,
    images: Pixels,
    *,
    seed: int = 0,
    about: Mapping[str, str] | None = None,
    progress: bool = False,
) -> Detector:
    """A detector for a model in memory.

    Args:
        model: Of images.
        images: Known images ``(N, C, H, W)`` that the model was not trained on.
        seed: Seed of the noise, and of the division into halves.
        about: What to say about model and images.
        progress: Show a bar on stderr.
    """
    if len(images) < LEAST:
        raise InputError(
            f"got {len(images)} known images: a calibration needs at least {LEAST}, and a p-value "
            "of 0.01 at least 200"
        )
    levels = levels_for(model, seed)
    with LateBar(" images", not progress, len(images), name="known images") as bar:
        values = measure(model, images, levels, bar.update)
    order = np.random.default_rng(seed).permutation(len(images))
    fitted, counted = order[::2], order[1::2]
    normal = fit_normal(values[fitted])
    some = fitted[:BITS_IMAGES]
    bound = sde_bound(model, images[some], draws=BITS_DRAWS).per_image.numpy()
    weights, error = _quadrature(error_terms(levels, values[some]), bound)
    said = {"fitted": len(fitted), "counted": len(counted), **(about or {})}
    known = np.sort(normal.score(values[counted]))
    return Detector(levels, normal, known, weights, error, said)


def _quadrature(
    terms: NDArray[np.float64], bits: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Weights of the few noise levels that come closest to the bound by many, and the error left.

    They are not negative: an image that is wrong at any level costs more bits.
    """
    from scipy.optimize import nnls

    weights, _ = nnls(terms, bits)
    free = max(1, len(bits) - terms.shape[1])
    return np.asarray(weights), float(np.sqrt(np.sum((terms @ weights - bits) ** 2) / free))


def detector_of(run: Run, model: DiffusionODE) -> Detector:
    """The detector kept with a run, refused where it is of other weights."""
    own, cached = run.path / FILE, _cache(run, model)
    # The place that `calibrate` writes to comes first, so that its last result is used.
    order = (own, cached) if _writable(run) else (cached, own)
    places = [file for file in order if file.is_file()]
    if not places:
        raise InputError(
            f"{run.spec} is not calibrated: run `idode calibrate {run.spec}` with known images"
        )
    return _checked(places[0], run, model)


def kept_detector(run: Run, model: DiffusionODE, file: Path | str | None) -> Detector:
    """The detector in a file, or that of the run, refused where it is of other weights."""
    return detector_of(run, model) if file is None else _checked(Path(file), run, model)


def _checked(file: Path, run: Run, model: DiffusionODE) -> Detector:
    found = Detector.load(file)
    if found.about.get("model") != model_hash(run, model):
        raise InputError(
            f"{file} belongs to other weights than those of {run.path}: calibrate again"
        )
    return found


def _checked_place(out: Path) -> Path:
    """Refuse a file that cannot be written, before any work is done."""
    if out.is_dir():
        raise InputError(f"{out} is a folder: give the name of a file")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent} for {out.name}: make it first")
    return out


def _own_file(run: Run, model: DiffusionODE) -> Path:
    """With the run, or in the cache where that cannot be written."""
    if _writable(run):
        return run.path / FILE
    file = _cache(run, model)
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def _writable(run: Run) -> bool:
    """Whether files may be added to a run; those of the package stay as they are."""
    return run.path not in pretrained().values() and os.access(run.path, os.W_OK)


def _cache(run: Run, model: DiffusionODE) -> Path:
    return default_root() / "detectors" / f"{model_hash(run, model)[:16]}.safetensors"
