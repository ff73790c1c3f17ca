r"""Two models on the same images: the mean difference and its error.

Images differ far more from one another than two models differ on an image, so the standard error
of the mean of :math:`b_i - a_i` is a small part of that of either mean. Noise and probes of an
image depend on the seed and its index alone, so the models see the same ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idode.data.identity import same_data
from idode.data.memory import Data
from idode.errors import InputError
from idode.evaluation.evaluate import evaluate
from idode.evaluation.per_image import Columns
from idode.evaluation.result import Evaluation
from idode.likelihood.bits_per_dim import skewness_of_mean, student_interval
from idode.likelihood.estimator import LikelihoodSettings
from idode.runs.run import Run, open_run

__all__ = ["PairedDifference", "compare_models", "paired_difference"]


@dataclass(frozen=True)
class PairedDifference:
    """Mean of the second minus the first over the same images, in bits/dim."""

    first: Evaluation
    second: Evaluation
    mean: float  # below 0 where the second is better
    standard_error: float  # other images of the same kind, other noise and probes
    unpaired_error: float  # that of the difference of two means on different images
    correlation: float  # of the two models' values over images; NaN where one does not vary
    per_image: Tensor  # (N,) float64
    notes: tuple[str, ...]

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the mean difference."""
        degrees, skewness = len(self.per_image) - 1, skewness_of_mean(self.per_image)
        return student_interval(self.mean, self.standard_error, degrees, level, skewness)

    def columns(self) -> Columns:
        """Both models' values and their difference, one row for each image."""
        first, second = (e.results[0].per_image.numpy() for e in (self.first, self.second))
        places = np.asarray(self.first.indices, dtype=np.int64)
        n = len(self.per_image)
        names = {"index": places[:n], "first": first[:n], "second": second[:n]}
        return {**names, "difference": self.per_image.numpy()}

    def to_json(self) -> dict[str, Any]:
        """All figures as plain values."""
        return {
            "first": self.first.to_json(),
            "second": self.second.to_json(),
            "difference": {
                "bits_per_dim": self.mean,
                "standard_error": self.standard_error,
                "unpaired_error": self.unpaired_error,
                "interval_95": [end if math.isfinite(end) else None for end in self.interval()],
                "correlation": None if math.isnan(self.correlation) else self.correlation,
                "images": len(self.per_image),
                "notes": list(self.notes),
            },
        }

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.standard_error:.4f} bits/dim"


def paired_difference(first: Evaluation, second: Evaluation) -> PairedDifference:
    """The difference of two evaluations of the same images.

    Args:
        first: Evaluation of one model.
        second: Of another, on the same data and split; where one was interrupted, the images
            that both have are compared.
    """
    for evaluation in (first, second):
        if len(evaluation.results) != 1:
            raise InputError("a difference is of two values: leave out the table of bounds")
    if not same_data(first.data, second.data) or first.split != second.split:
        raise InputError(
            f"the evaluations are of other data ({first.split} split of {first.data}, and "
            f"{second.split} split of {second.data}): evaluate both on the same"
        )
    a, b = first.results[0], second.results[0]
    n = min(len(a.per_image), len(b.per_image))
    if list(first.indices)[:n] != list(second.indices)[:n]:
        raise InputError("the evaluations are of other images: evaluate both on the same")
    x, y = a.per_image[:n], b.per_image[:n]
    difference = y - x
    notes = []
    same = (a.settings.seed, a.settings.dequantization, a.settings.n_importance)
    if same != (b.settings.seed, b.settings.dequantization, b.settings.n_importance):
        notes.append("noise and bounds of the two differ: their difference is not of models alone")
    unpaired = math.hypot(a.standard_error, b.standard_error)
    varies = n > 2 and float(x.std()) > 0 and float(y.std()) > 0
    return PairedDifference(
        first=first,
        second=second,
        mean=float(difference.mean()),
        standard_error=math.sqrt(float(difference.var()) / n) if n > 1 else unpaired,
        unpaired_error=unpaired,
        correlation=float(torch.corrcoef(torch.stack([x, y]))[0, 1]) if varies else math.nan,
        per_image=difference,
        notes=tuple(notes),
    )


def compare_models(
    first: Run | Path | str,
    second: Run | Path | str,
    *,
    data: Data | None = None,
    split: str = "test",
    limit: int | None = None,
    settings: LikelihoodSettings | None = None,
    learned: bool = False,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> PairedDifference:
    """The difference in bits/dim of two models on the same images, noise and probes.

    Args:
        first: A run folder, a :class:`Run`, or ``pretrained:NAME``.
        second: Another one, for data of the same kind.
        data: A spec, a data set, or a pair of arrays; by default that of the first.
        split: ``test`` or ``train``.
        limit: Only the first images; by default all.
        settings: How the ODE values are computed.
        learned: Use each run's learned dequantization.
        device: By default the best one there is.
        progress: Whether to show progress bars.
    """
    same = open_run(first).load_data(data)
    open_run(second).load_data(same)  # refuses other data before the first takes its time
    a, b = (
        evaluate(
            run,
            data=same,
            split=split,
            limit=limit,
            settings=settings,
            learned=learned,
            device=device,
            progress=progress,
        )
        for run in (first, second)
    )
    return paired_difference(a, b)
