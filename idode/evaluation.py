"""A data set under a model: the SDE bound, the ODE value, and the paper's table of bounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from idode.bounds import SDEBound, sde_bound
from idode.data import Split
from idode.likelihood import BitsPerDim, Settings, bounds
from idode.model import DiffusionODE
from idode.ode import Adams

__all__ = ["DEQUANTIZATIONS", "IMPORTANCES", "bounds_table", "held_out_bound", "summary"]

DEQUANTIZATIONS = ("uniform", "variational", "tn")
IMPORTANCES = (1, 5, 20)


def held_out_bound(
    model: DiffusionODE, split: Split, draws: int, device: torch.device | str
) -> SDEBound:
    """The SDE bound of a split."""
    pixels = torch.from_numpy(np.asarray(split).astype(np.int32)).to(device)
    return sde_bound(model, pixels, draws=draws)


def bounds_table(
    model: DiffusionODE,
    split: Split,
    settings: Settings,
    device: torch.device | str,
    progress: Callable[[int], None],
) -> list[BitsPerDim]:
    """Three dequantizations by K = 1, 5, 20, with everything else as in ``settings``."""
    results: list[BitsPerDim] = []
    for name in DEQUANTIZATIONS:
        chosen = dataclasses.replace(settings, dequantization=name)
        try:
            row = bounds(model, split, IMPORTANCES, chosen, device=device, progress=progress)
        except KeyboardInterrupt:
            if not results:
                raise
            return [dataclasses.replace(r, complete=False) for r in results]
        results += row
        if not row[0].complete:
            break
    return results


def summary(result: BitsPerDim) -> Mapping[str, Any]:
    """A result as plain values for JSON."""
    solver = result.pilot.solver
    return {
        "bits_per_dim": result.mean,
        "standard_error": result.standard_error,
        "errors": {k: _known(v) for k, v in dataclasses.asdict(result.errors).items()},
        "nfe": result.nfe,
        "seconds": result.seconds,
        "complete": result.complete,
        "notes": list(result.notes),
        "settings": dataclasses.asdict(result.settings),
        "per_image": result.per_image.tolist(),
        "solver_error": [_known(v) for v in result.solver_error.tolist()],
        "groups": result.groups,
        "grid": list(solver.grid) if isinstance(solver, Adams) else None,
        "order": solver.order if isinstance(solver, Adams) else None,
    }


def _known(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value
