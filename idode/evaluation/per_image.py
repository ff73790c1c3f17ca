"""Values of single images: places in the data set, bits/dim and likely errors, also as a file."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from idode.errors import InputError
from idode.evaluation.result import Evaluation
from idode.storage import write_atomically

__all__ = ["Columns", "check_file", "per_image", "write_columns"]

Columns = Mapping[str, npt.NDArray[np.int64] | npt.NDArray[np.float64]]
"""Columns of equal length by name."""

SUFFIXES = (".csv", ".npz")


def per_image(evaluation: Evaluation) -> Columns:
    """Columns ``index``, ``bits_per_dim`` and ``error``, one row for each image.

    The index is the image's place in its split; the error puts together, for one image, the noise
    of dequantization, that of the probes, and the solver's likely error where it is known.
    """
    if len(evaluation.results) != 1:
        raise InputError(
            "per-image values are of one bound: leave out the table, or read it as JSON"
        )
    (result,) = evaluation.results
    values = result.per_image.numpy()
    drawn = len(values) * (result.errors.dequantization**2 + result.errors.probe**2)
    solver = np.nan_to_num(result.solver_error.numpy())
    return {
        "index": np.asarray(evaluation.indices, dtype=np.int64),
        "bits_per_dim": values,
        "error": np.sqrt(drawn + solver**2),
    }


def check_file(path: Path) -> None:
    """Refuse a name whose ending does not say csv or npz."""
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"per-image values are written as csv or npz, and {path.name} ends in neither: give "
            f"a name such as {path.stem or 'values'}.csv"
        )


def write_columns(path: Path, columns: Columns) -> None:
    """Write columns as csv or npz, after the ending of the name; every bit of a float64 is kept.

    Args:
        path: A file that ends in ``.csv`` or ``.npz``.
        columns: Of equal length.
    """
    check_file(path)
    try:
        write_atomically(path, _csv(columns) if path.suffix == ".csv" else _npz(columns))
    except OSError as error:
        raise InputError(f"cannot write {path} ({error.strerror}): choose another place") from None


def _csv(columns: Columns) -> str:
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    lines = [",".join(map(_cell, row)) for row in rows]
    return "\n".join([",".join(columns), *lines]) + "\n"


def _cell(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


def _npz(columns: Columns) -> bytes:
    file = io.BytesIO()
    np.savez(file, **columns)  # type: ignore[arg-type]
    return file.getvalue()
