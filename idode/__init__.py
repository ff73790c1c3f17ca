"""Exact likelihoods for images, and other data, with diffusion ODEs."""

import importlib
from typing import TYPE_CHECKING

from idode.diffusion.model import DiffusionODE, wrap
from idode.diffusion.predictors import PREDICTORS
from idode.diffusion.schedules import SCHEDULES, start_gamma
from idode.errors import InputError, NumericalError
from idode.likelihood.bits_per_dim import BitsPerDim, LikelihoodSettings, bits_per_dim
from idode.likelihood.log_prob import decode, encode, log_prob
from idode.likelihood.sde_bound import SDEBound, sde_bound

if TYPE_CHECKING:
    from idode.runs.run import Run, open_run
    from idode.sampling import Samples, sample

__version__ = "0.1.0"

__all__ = [
    "PREDICTORS",
    "SCHEDULES",
    "BitsPerDim",
    "DiffusionODE",
    "InputError",
    "LikelihoodSettings",
    "NumericalError",
    "Run",
    "SDEBound",
    "Samples",
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
    "Run": "idode.runs.run",
    "Samples": "idode.sampling",
    "open_run": "idode.runs.run",
    "sample": "idode.sampling",
}


def __getattr__(name: str) -> object:
    if name in LATE:
        return getattr(importlib.import_module(LATE[name]), name)
    raise AttributeError(f"module 'idode' has no attribute {name!r}")
