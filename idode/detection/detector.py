r"""The density of statistics on known images, and what makes an image unusual.

Statistics are standardised; their covariance is shrunk by the rule of Ledoit and Wolf; the score
is minus the log-density up to a constant, half the squared Mahalanobis distance. The images that
the density was fitted to are not those that p-values are counted on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from idode.detection.conformal import Vector
from idode.detection.statistics import NOISED_WORDS, Levels, Statistic, statistics_of
from idode.errors import InputError
from idode.runs.tensor_file import save_tensors
from idode.storage import check_regular, parse_json

__all__ = ["FILE", "Detector", "Normal", "error_terms", "fit_normal"]

FILE = "detector.safetensors"  # in the folder of a run
FORMAT = 1
FAR = 3.0  # standard deviations at which a single statistic explains a flag


@dataclass(frozen=True)
class Normal:
    """A normal density of standardised statistics."""

    mean: Vector  # (F,)
    scale: Vector  # (F,)
    precision: Vector  # (F, F), of the standardised ones

    def standardised(self, values: Vector) -> Vector:
        """Deviations in units of the known images, ``(N, F)``."""
        return np.asarray((values - self.mean) / self.scale)

    def score(self, values: Vector) -> Vector:
        """Minus the log-density up to a constant, ``(N,)``; higher is more unusual."""
        z = self.standardised(values)
        return np.asarray(0.5 * np.einsum("ni,ij,nj->n", z, self.precision, z))


def fit_normal(values: Vector) -> Normal:
    """The density of statistics ``(N, F)``; the number of rows may be less than F."""
    from sklearn.covariance import ledoit_wolf

    mean, scale = values.mean(0), values.std(0)
    # A statistic that is the same for all known images counts as soon as it differs.
    scale = np.maximum(scale, 1e-6 * np.maximum(1.0, np.abs(mean)))
    covariance, _ = ledoit_wolf((values - mean) / scale, assume_centered=True)
    return Normal(mean, scale, np.linalg.pinv(covariance, hermitian=True))


@dataclass(frozen=True)
class Detector:
    """All that scores need besides the model.

    Args:
        levels: Noise levels and seed of the statistics.
        normal: Density of the statistics, fitted to one part of the known images.
        known: Scores of the other part, sorted, ``(n,)``.
        weights: Of the noised levels and of a constant, whose sum is bits/dim, ``(K + 1,)``.
        bits_error: Root mean square error of those bits/dim on known images.
        about: Model, data and numbers of images.
    """

    levels: Levels
    normal: Normal
    known: Vector
    weights: Vector
    bits_error: float
    about: dict[str, Any]

    @property
    def least_p_value(self) -> float:
        """That of an image which is more unusual than all known ones."""
        return 1 / (1 + len(self.known))

    def bits(self, values: Vector) -> Vector:
        """Bits/dim of images with these statistics, ``(N,)``."""
        return np.asarray(error_terms(self.levels, values) @ self.weights)

    def reasons(self, values: Vector) -> list[str]:
        """What is most unusual about each image, in words."""
        z = self.normal.standardised(values)
        share = z * (z @ self.normal.precision)  # parts of twice the score
        names = statistics_of(self.levels)
        found = []
        for row, parts in zip(z, share, strict=True):
            most = int(np.argmax(np.abs(row)))
            if abs(row[most]) < FAR:
                most = int(np.argmax(parts))
            side = "above" if row[most] > 0 else "below"
            far = f"{names[most]}: {abs(row[most]):.1f} standard deviations {side} known images"
            alone = "" if abs(row[most]) >= FAR else "together with others, "
            found.append(alone + far)
        return found

    def to_json(self) -> dict[str, Any]:
        """The figures for people: levels, cost, errors and quantiles of the known scores."""
        shares = (0.5, 0.9, 0.95, 0.99)
        return {
            **self.about, "clean_levels": self.levels.clean, "noised_levels": self.levels.noised,
            "nfe": self.levels.nfe, "bits_error": self.bits_error,
            "known_quantiles": {str(q): float(np.quantile(self.known, q)) for q in shares},
        }  # fmt: skip

    def save(self, file: Path) -> None:
        """Write the file whole or not at all."""
        arrays = {
            "mean": self.normal.mean, "scale": self.normal.scale,
            "precision": self.normal.precision, "known": self.known, "weights": self.weights,
        }  # fmt: skip
        about = {
            "format": FORMAT, "clean": self.levels.clean, "noised": self.levels.noised,
            "seed": self.levels.seed, "bits_error": self.bits_error, **self.about,
        }  # fmt: skip
        tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
        try:
            save_tensors(file, tensors, {"about": json.dumps(about)})
        except OSError as error:
            raise InputError(
                f"cannot write {file} ({error.strerror}): choose another place"
            ) from None

    def check(self) -> None:
        """Raise ``ValueError`` where the parts do not fit together, as in a damaged file."""
        levels, normal = self.levels, self.normal
        count, shape = len(statistics_of(levels)), (len(levels.noised) + 1,)
        arrays = [normal.mean, normal.scale, normal.precision, self.known, self.weights]
        shapes = [(count,), (count,), (count, count), (len(self.known),), shape]
        if [a.shape for a in arrays] != shapes or not len(self.known):
            raise ValueError("its arrays are of other shapes than its noise levels need")
        finite = all(a.dtype == np.float64 and np.isfinite(a).all() for a in arrays)
        if not finite or not np.isfinite([*levels.clean, self.bits_error]).all():
            raise ValueError("it holds values that are no finite numbers")
        if not set(levels.noised) <= set(levels.clean) or (np.diff(levels.clean) <= 0).any():
            raise ValueError("its noise levels do not fit together")
        if (normal.scale <= 0).any() or (np.diff(self.known) < 0).any():
            raise ValueError("its statistics are not those of known images")
        if not 0 <= levels.seed < 2**63:
            raise ValueError("its seed is out of range")

    @classmethod
    def load(cls, file: Path) -> Detector:
        """Read what :meth:`save` wrote."""
        again = "calibrate again with `idode calibrate`"
        try:
            check_regular(file)
            with safe_open(str(file), framework="numpy") as opened:
                about = parse_json(opened.metadata()["about"])
                arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            if about.pop("format") != FORMAT:
                raise ValueError("it is of another version")
            clean, noised = (tuple(map(float, about.pop(k))) for k in ("clean", "noised"))
            levels = Levels(clean, noised, int(about.pop("seed")))
            error = float(about.pop("bits_error"))
            normal = Normal(*(arrays[k] for k in ("mean", "scale", "precision")))
            found = cls(levels, normal, arrays["known"], arrays["weights"], error, about)
            found.check()
            return found
        except (
            *(OSError, SafetensorError, ValueError, KeyError, TypeError),
            *(AttributeError, OverflowError),
        ) as error:
            raise InputError(f"{file} cannot be read ({error}): {again}") from None


def error_terms(levels: Levels, values: Vector) -> Vector:
    r""":math:`\frac12(\epsilon - \hat\epsilon)^2` a dimension at every noised level, in bits; 1.

    Args:
        levels: Levels of the statistics.
        values: Statistics ``(N, F)``.
    """
    names = statistics_of(levels)
    columns = [names.index(Statistic(NOISED_WORDS[0], gamma)) for gamma in levels.noised]
    half = np.exp(values[:, columns]) / (2 * np.log(2))
    return np.column_stack([half, np.ones(len(values))])
