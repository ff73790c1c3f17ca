"""``idode.score``: how unusual images are to a model, with p-values and reasons.

>>> import idode
>>> from idode.data.loading import load
>>> found = idode.score("pretrained:digits", 16 - load("digits").test[:3])  # negatives
>>> bool((found.p_value < 0.05).all())
True
"""

from __future__ import annotations

import csv
import dataclasses
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idode.detection.calibrate import kept_detector
from idode.detection.conformal import Vector, check_share, discoveries, p_values
from idode.detection.detector import Detector
from idode.detection.images import Given, NamedImages, check_model, read_images
from idode.detection.separation import Separation
from idode.detection.statistics import measure
from idode.diffusion.model import DiffusionODE
from idode.progress import LateBar
from idode.runs.distributed import best_device
from idode.runs.run import Run, open_run

__all__ = ["LEVEL", "RATE", "Labelled", "Scores", "most_unusual", "score", "score_images"]

LEVEL = RATE = 0.05


@dataclass(frozen=True)
class Scores:
    """One value for each image, ``(N,)``."""

    names: list[str]
    bits_per_dim: Vector  # SDE bound by a quadrature of few noise levels
    bits_error: float  # its root mean square error on known images
    score: Vector  # higher is more unusual
    p_value: Vector
    flagged: NDArray[np.bool_]  # p-value at most ``level``
    discovered: NDArray[np.bool_]  # flagged at the false discovery rate ``rate``
    reasons: list[str]
    level: float
    rate: float
    nfe: int  # evaluations of the network for an image
    seconds: float
    least_p_value: float = 0.0  # possible with the known images there were

    def __str__(self) -> str:
        n, flagged, found = len(self.names), int(self.flagged.sum()), int(self.discovered.sum())
        return (
            f"{n} {'image' if n == 1 else 'images'}: {flagged} flagged at level {self.level:g} "
            f"(about {self.level * n:.0f} expected of known images), {found} at a "
            f"false discovery rate of {self.rate:g}; "
            f"median {np.median(self.bits_per_dim):.3f} ± {self.bits_error:.3f} bits/dim; "
            f"{self.nfe} evaluations an image, {self.seconds:.1f} s{self._unreachable}"
        )

    @property
    def _unreachable(self) -> str:
        if self.level >= self.least_p_value:
            return ""
        return (
            f"; no p-value can be below {self.least_p_value:.2g}, for lack of known images: "
            "calibrate with more of them"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        arrays = ("bits_per_dim", "score", "p_value", "flagged", "discovered")
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return plain | {name: getattr(self, name).tolist() for name in arrays}

    def to_csv(self) -> str:
        """A table with one line for each image."""
        file = io.StringIO()
        out = csv.writer(file, lineterminator="\n")
        out.writerow(
            ["image", "bits_per_dim", "bits_error", "score", "p_value", "flagged", "discovered",
             "reason"]
        )  # fmt: skip
        for i, name in enumerate(self.names):
            out.writerow(
                [name, f"{self.bits_per_dim[i]:.6g}", f"{self.bits_error:.3g}",
                 f"{self.score[i]:.6g}", f"{self.p_value[i]:.6g}", int(self.flagged[i]),
                 int(self.discovered[i]), self.reasons[i]]
            )  # fmt: skip
        return file.getvalue()


@dataclass(frozen=True)
class Labelled:
    """Scores of known and of unknown images, and how well they tell them apart."""

    known: Vector
    unknown: Vector
    separation: Separation


def score(
    run: Run | Path | str,
    images: Given,
    *,
    level: float = LEVEL,
    rate: float = RATE,
    calibration: Path | str | None = None,
    limit: int | None = None,
    device: str | None = None,
    progress: bool = False,
) -> Scores:
    """Score images against the known ones that a run was calibrated with.

    Args:
        run: A run folder, ``pretrained:NAME`` or ``diffusers:FOLDER``, calibrated by
            :func:`idode.calibrate`.
        images: A folder, an image, a ``.npy`` file, a ``.npz`` file of one array, a data set by
            name (its test split), or integers ``(N, C, H, W)``.
        level: Share of known images that may be flagged.
        rate: Share of the flags of ``discovered`` that may be false.
        calibration: Another file of :func:`idode.calibrate`.
        limit: The first so many images.
        device: Such as ``"cpu"``; by default the best available.
        progress: Show a bar on stderr.
    """
    model, detector = _opened(run, calibration, device)
    read = read_images(images, model).limited(limit)
    return score_images(model, detector, read, level=level, rate=rate, progress=progress)


def score_images(
    model: DiffusionODE,
    detector: Detector,
    images: NamedImages,
    *,
    level: float = LEVEL,
    rate: float = RATE,
    progress: bool = False,
) -> Scores:
    """Score images in memory with a detector in memory; see :func:`score`."""
    check_share("level", level)
    check_share("rate", rate)
    began = time.perf_counter()
    with LateBar(" images", not progress, len(images.names)) as bar:
        values = measure(model, images.pixels, detector.levels, bar.update)
    found = detector.normal.score(values)
    p = p_values(found, detector.known)
    return Scores(
        names=list(images.names),
        bits_per_dim=detector.bits(values),
        bits_error=detector.bits_error,
        score=found,
        p_value=p,
        flagged=p <= level,
        discovered=discoveries(p, rate),
        reasons=detector.reasons(values),
        level=level,
        rate=rate,
        nfe=detector.levels.nfe,
        seconds=time.perf_counter() - began,
        least_p_value=detector.least_p_value,
    )


def _opened(
    run: Run | Path | str, calibration: Path | str | None, device: str | None
) -> tuple[DiffusionODE, Detector]:
    opened = open_run(run)
    model = opened.model(best_device(device))
    check_model(model)
    return model, kept_detector(opened, model, calibration)


def most_unusual(scores: Scores, count: int) -> Sequence[int]:
    """Indices of the images with the highest scores, highest first."""
    order: list[int] = np.argsort(-scores.score, kind="stable")[:count].tolist()
    return order
