"""Exact likelihoods for images, and other data, with diffusion ODEs."""

import importlib
from typing import TYPE_CHECKING

from idode.bounds import SDEBound, sde_bound
from idode.density import decode, encode, log_prob
from idode.errors import InputError, NumericalError
from idode.likelihood import BitsPerDim, Settings, bits_per_dim
from idode.model import DiffusionODE, wrap
from idode.predictors import PREDICTORS
from idode.schedules import SCHEDULES, start_gamma

if TYPE_CHECKING:
    from idode.run import Run, open_run
    from idode.sampling import Samples, sample

__version__ = "0.1.0"

__all__ = [
    "PREDICTORS",
    "SCHEDULES",
    "BitsPerDim",
    "DiffusionODE",
    "InputError",
    "NumericalError",
    "Run",
    "SDEBound",
    "Samples",
    "Settings",
    "__version__",
    "bits_per_dim",
    "decode",
    "encode",
    "log_prob",
    "open_run",
    "sample",
    "sde_bound",
    "start_gamma",
    "wrap",
]

# Loaded when they are asked for, so that the mathematics alone costs nothing more.
LATE = {
    "Run": "idode.run",
    "Samples": "idode.sampling",
    "open_run": "idode.run",
    "sample": "idode.sampling",
}


def __getattr__(name: str) -> object:
    if name in LATE:
        return getattr(importlib.import_module(LATE[name]), name)
    raise AttributeError(f"module 'idode' has no attribute {name!r}")
