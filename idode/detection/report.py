"""What ``idode score`` writes: scores of images as a table and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from idode.detection.calibrate import kept_detector
from idode.detection.images import Given, NamedImages, check_model, read_images
from idode.detection.page import Unusual, page
from idode.detection.score import LEVEL, RATE, Labelled, Scores, most_unusual, score_images
from idode.detection.separation import separation
from idode.detection.statistics import error_maps
from idode.errors import InputError
from idode.runs.distributed import best_device
from idode.runs.run import Run, open_run

__all__ = ["score_report"]

SHOWN = 24  # images on the page


def score_report(
    run: Run | Path | str,
    images: Given | None = None,
    *,
    known: Given | None = None,
    unknown: Given | None = None,
    level: float = LEVEL,
    rate: float = RATE,
    calibration: Path | str | None = None,
    limit: int | None = None,
    device: str | None = None,
    progress: bool = False,
) -> tuple[Scores, Labelled | None, str]:
    """Scores, how well labels are told apart where they are given, and the page as HTML.

    Args:
        run: As for :func:`idode.score`, as are the others.
        images: What to score; or else
        known: Images that should not be flagged, and
        unknown: Images that should be.
        level: Share of known images that may be flagged.
        rate: False discovery rate.
        calibration: Another file of :func:`idode.calibrate`.
        limit: The first so many images of each set.
        device: Such as ``"cpu"``.
        progress: Show a bar on stderr.
    """
    given = {"the images": images, "the known images": known, "the unknown images": unknown}
    sets = {what: value for what, value in given.items() if value is not None}
    if set(sets) not in ({"the images"}, {"the known images", "the unknown images"}):
        raise InputError("give images to score, or both known and unknown images for a ROC curve")
    opened = open_run(run)
    model = opened.model(best_device(device))
    check_model(model)
    detector = kept_detector(opened, model, calibration)
    read = [read_images(value, model, what).limited(limit) for what, value in sets.items()]
    parts = _named(read)
    how: dict[str, Any] = {"level": level, "rate": rate, "progress": progress}
    found = score_images(model, detector, parts, **how)
    labelled = _labelled(found, len(read[0].names)) if len(read) == 2 else None
    order = most_unusual(found, SHOWN)
    shown = parts.pixels[list(order)]
    maps = error_maps(model, shown, detector.levels, detector.weights[:-1])
    assert model.levels is not None
    about = detector.about
    facts = {
        "model": str(run.path if isinstance(run, Run) else run),
        "known images": f"{about.get('data', 'in memory')}: {about['fitted']} for the density, "
        f"{about['counted']} for p-values",
        "evaluations of the network": f"{detector.levels.nfe} for an image",
    }
    html = page(
        found, detector.known, Unusual(order, shown, maps, model.levels), facts,
        "Unusual images", labelled,
    )  # fmt: skip
    return found, labelled, html


def _named(read: list[NamedImages]) -> NamedImages:
    """One set; where there are two, names say which."""
    if len(read) == 1:
        return read[0]
    kinds = ("known", "unknown")
    names = [f"{k}/{n}" for k, part in zip(kinds, read, strict=True) for n in part.names]
    return NamedImages(names, np.concatenate([part.pixels for part in read]))


def _labelled(scores: Scores, count: int) -> Labelled:
    known, unknown = scores.score[:count], scores.score[count:]
    return Labelled(known, unknown, separation(known, unknown))
