"""The data set a command uses with a run: the run's own or another of the same kind."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from idode.data import Dataset, Identity
    from idode.runs.run import Run

__all__ = ["data_for", "warn_of_other_data"]


def data_for(run: Run, spec: str | None) -> Dataset:
    """The data set, of the shape and levels of the model.

    Args:
        run: Whose model will see it.
        spec: What the command line says; ``None`` is the data the run was trained on.
    """
    from idode.data import load
    from idode.errors import InputError

    spec = spec or run.config.data
    if spec is None:
        raise InputError(f"{run.path} names no data set: give one with --data SPEC")
    data = load(spec)
    data.expect(run.config.model.shape, run.config.model.levels, "the model")
    return data


def warn_of_other_data(run: Run, identity: Identity, quiet: bool) -> None:
    """Warn on stderr if the model was trained on other data than it is used on."""
    from idode.data import mismatch_warning

    text = None if run.identity is None else mismatch_warning(run.identity, identity)
    if text is not None and not quiet:
        print(f"warning: {text}", file=sys.stderr)
