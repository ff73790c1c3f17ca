"""Where the evaluations of a run keep their finished batches."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from idode import __version__
from idode.data.loading import default_root
from idode.diffusion.model import DiffusionODE
from idode.evaluation.runner import fingerprint
from idode.evaluation.store import JsonlStore
from idode.likelihood.learned_dequantization import Learned
from idode.runs import pretrained
from idode.runs.config import to_json
from idode.runs.run import EVALUATIONS, Run

__all__ = ["model_hash", "open_store"]


# Fields that came after the first hashes were stored, with what models had before. There they are
# left out, so that calibrations, detectors and evaluations of such models stay valid.
FIELDS_SINCE: dict[str, dict[str, Any]] = {"model": {"quantization": "learned"}, "net": {}}


def _hashed(fields: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in fields.items() if k not in later or v != later[k]}


def model_hash(run: Run, model: DiffusionODE, learned: Learned | None = None) -> str:
    """SHA-256 of all that a run's numbers depend on: its diffusion, its network and its weights.

    Those in memory, since training may replace the file at any time.

    Args:
        run: The run.
        model: Its model, as loaded.
        learned: Its dequantizer, where the numbers depend on one.
    """
    config = to_json(run.config)
    parts = {name: _hashed(config[name], later) for name, later in FIELDS_SINCE.items()}
    total = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    _add_weights(total, model.net)
    if learned is not None:
        total.update(json.dumps(learned.to_json(), sort_keys=True).encode())
        total.update(str(learned.flow.config).encode())
        _add_weights(total, learned.flow)
    return total.hexdigest()


def _add_weights(total: hashlib._Hash, net: object) -> None:
    if not isinstance(net, nn.Module):
        return  # a formula, which has none
    for name, value in net.state_dict().items():
        total.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        total.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy())


def open_store(
    run: Run,
    model: DiffusionODE,
    depends: Mapping[str, Any],
    file: Path | str | None = None,
    rank: int = 0,
    learned: Learned | None = None,
) -> JsonlStore:
    """The store of an evaluation of ``run``.

    By default it is in ``RUN/evaluations``, or in the cache of idode where that cannot be written,
    under a name made from everything its numbers depend on: other weights, data or settings
    have another file.

    Args:
        run: The run.
        model: Its model, as loaded.
        depends: Settings and data, as plain values.
        file: Another place.
        rank: Number of this process.
        learned: Its dequantizer, where the numbers depend on one.
    """
    versions = {"idode": __version__, "torch": str(torch.__version__)}
    header = {**versions, "model": model_hash(run, model, learned), **depends}
    if file is None:
        own = run.path not in pretrained().values() and os.access(run.path, os.W_OK)
        home = run.path if own else default_root()
        file = home / EVALUATIONS / f"{fingerprint(header)}.jsonl"
    return JsonlStore(Path(file), header, rank)
