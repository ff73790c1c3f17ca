"""A data set under a model: the SDE bound, the ODE value, and the paper's table of bounds."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from idode import __version__
from idode.data import Split, default_root
from idode.diffusion.model import DiffusionODE
from idode.evaluation.runner import Ledger, digest
from idode.evaluation.store import Journal
from idode.likelihood.bits_per_dim import BitsPerDim, LikelihoodSettings, bounds
from idode.likelihood.learned_dequantization import Learned
from idode.ode.solvers import Adams
from idode.runs.config import to_json
from idode.runs.run import EVALUATIONS, Run, pretrained

__all__ = [
    "IMPORTANCES",
    "PAPER_ROWS",
    "bounds_table",
    "model_digest",
    "open_journal",
    "summary",
    "table_rows",
]

PAPER_ROWS = ("uniform", "variational", "tn")  # of its table of bounds, and the columns
IMPORTANCES = (1, 5, 20)


def table_rows(learned: Learned | None) -> tuple[str, ...]:
    """Dequantizations of the table of bounds: the paper's, and the learned one if there is."""
    return PAPER_ROWS if learned is None else (*PAPER_ROWS, "learned")


def bounds_table(
    model: DiffusionODE,
    split: Split,
    settings: LikelihoodSettings,
    device: torch.device | str,
    ledger: Ledger | None = None,
    learned: Learned | None = None,
) -> list[BitsPerDim]:
    """Three dequantizations, or four, by K = 1, 5, 20, and all else as in ``settings``."""
    results: list[BitsPerDim] = []
    for name in table_rows(learned):
        chosen = dataclasses.replace(settings, dequantization=name)
        try:
            row = bounds(
                model, split, IMPORTANCES, chosen, device=device, ledger=ledger, learned=learned
            )
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


def model_digest(run: Run, model: DiffusionODE, learned: Learned | None = None) -> str:
    """SHA-256 of all that a run's numbers depend on: its settings and the weights in use.

    Those in memory, since training may replace the file at any time.

    Args:
        run: The run.
        model: Its model, as loaded.
        learned: Its dequantizer, where the numbers depend on one.
    """
    total = hashlib.sha256(json.dumps(to_json(run.config), sort_keys=True).encode())
    _add_weights(total, model.net)
    if learned is not None:
        kind = type(learned.base).__name__
        total.update(f"{kind} {learned.gamma} {learned.levels} {learned.flow.config}".encode())
        _add_weights(total, learned.flow)
    return total.hexdigest()


def _add_weights(total: hashlib._Hash, net: object) -> None:
    if not isinstance(net, nn.Module):
        return  # a formula, which has none
    for name, value in net.state_dict().items():
        total.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        total.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy())


def open_journal(
    run: Run,
    model: DiffusionODE,
    work: Mapping[str, Any],
    file: Path | None = None,
    rank: int = 0,
    learned: Learned | None = None,
) -> Journal:
    """The journal of an evaluation of ``run`` that ``work`` describes.

    By default it is in ``RUN/evaluations``, or in the cache of idode where that cannot be written,
    under a name made from everything its numbers depend on: other weights, data or settings
    have another journal.

    Args:
        run: The run.
        model: Its model, as loaded.
        work: LikelihoodSettings and data, as plain values.
        file: Another place.
        rank: Number of this process.
        learned: Its dequantizer, where the numbers depend on one.
    """
    versions = {"idode": __version__, "torch": str(torch.__version__)}
    header = {**versions, "model": model_digest(run, model, learned), **work}
    if file is None:
        own = run.path not in pretrained().values() and os.access(run.path, os.W_OK)
        home = run.path if own else default_root()
        file = home / EVALUATIONS / f"{digest(header)}.jsonl"
    return Journal(file, header, rank)
