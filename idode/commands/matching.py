"""The data a command is to use with a run: its own or another, but of the model's kind."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from idode.data import Dataset
    from idode.run import Run

__all__ = ["data_for"]


def data_for(run: Run, spec: str | None) -> Dataset:
    """The data set, after a warning if the model knows another one.

    Args:
        run: Whose model will see it.
        spec: What the command line says; ``None`` is the data the run was trained on.
    """
    from idode.data import load, warning
    from idode.errors import InputError

    spec = spec or run.config.data
    if spec is None:
        raise InputError(f"{run.path} names no data set: give one with --data SPEC")
    data = load(spec)
    wanted, levels = tuple(run.config.model.shape), run.config.model.levels
    if tuple(data.shape) != wanted or data.levels != levels:
        raise InputError(
            f"the model is for data of shape {wanted} with {levels} levels, {spec} has shape "
            f"{tuple(data.shape)} with {data.levels}: choose data of its kind"
        )
    if run.identity is not None:
        text = warning(run.identity, data.identity)
        if text is not None:
            print(f"warning: {text}", file=sys.stderr)
    return data
