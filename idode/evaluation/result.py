"""The figures of a data set under a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idode.data.identity import Identity
from idode.errors import InputError
from idode.evaluation.sampled import SampledBitsPerDim
from idode.likelihood.bits_per_dim import BitsPerDim
from idode.likelihood.sde_bound import SDEBound
from idode.runs.run import Parent

__all__ = ["Evaluation"]


@dataclass(frozen=True)
class Evaluation:
    """Bits/dim of a data set under a run."""

    run: str
    parent: Parent | None  # what the run was fine-tuned from, or is an average of
    data: Identity
    split: str
    sde: SDEBound | None  # None for continuous data, and where a precision was asked for
    results: tuple[BitsPerDim, ...]  # one, or the table of bounds
    device: str
    store: Path  # keeps finished batches: the same call resumes
    rank: int = 0  # of this process; all have the same figures
    precision: str = "float32"  # of the network, true float32 on every device

    @property
    def images(self) -> int:
        """Images that were evaluated."""
        return len(self.results[0].per_image)

    @property
    def indices(self) -> Sequence[int]:
        """Places of the images in their split."""
        first = self.results[0]
        return first.indices if isinstance(first, SampledBitsPerDim) else range(self.images)

    @property
    def complete(self) -> bool:
        """False when interrupted."""
        return all(result.complete for result in self.results)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the ODE value; a table has one for each of its ``results``."""
        if len(self.results) != 1:
            raise InputError("a table of bounds has an interval for each of its results")
        return self.results[0].interval(level)

    def __str__(self) -> str:
        sde = [] if self.sde is None else [f"SDE bound {self.sde}"]
        ode = [f"ODE {r.settings.to_json()['dequantization']['kind']} {r}" for r in self.results]
        return "\n".join([*sde, *ode])

    def to_json(self) -> dict[str, Any]:
        """All figures as plain values."""
        sde = self.sde
        errors = ("standard_error", "monte_carlo_error")
        terms = (*errors, "reconstruction", "prior", "diffusion", "code")
        return {
            "run": self.run,
            "parent": None if self.parent is None else self.parent.to_json(),
            "data": self.data.to_json(),
            "split": self.split,
            "images": self.images,
            "device": self.device,
            "precision": self.precision,
            "results": [_result_json(result) for result in self.results],
        } | (
            {}
            if sde is None
            else {
                "sde_bound": {
                    "bits_per_dim": sde.mean,
                    **{name: getattr(sde, name) for name in terms},
                }
            }
        )


def _result_json(result: BitsPerDim) -> Mapping[str, Any]:
    errors = dataclasses.asdict(result.errors)
    more = {"sampling": result.sampling_json()} if isinstance(result, SampledBitsPerDim) else {}
    return {
        "bits_per_dim": result.mean,
        "standard_error": result.standard_error,
        "interval_95": [_or_none(end) for end in result.interval()],
        "errors": {name: _or_none(value) for name, value in errors.items()},
        "nfe": result.nfe,
        "seconds": result.seconds,
        "complete": result.complete,
        "notes": list(result.notes),
        "settings": result.settings.to_json(),
        "per_image": result.per_image.tolist(),
        "solver_error": [_or_none(v) for v in result.solver_error.tolist()],
        "groups": result.groups,
        "solver": result.calibration.to_json()["solver"],
        **more,
    }


def _or_none(value: float) -> float | None:
    """JSON has neither NaN nor infinity."""
    return value if math.isfinite(value) else None
