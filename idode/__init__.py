"""Exact likelihoods for images, and other data, with diffusion ODEs."""

from idode.errors import InputError
from idode.model import DiffusionODE, wrap
from idode.predictors import PREDICTORS
from idode.schedules import SCHEDULES, start_gamma

__version__ = "0.1.0"

__all__ = [
    "PREDICTORS",
    "SCHEDULES",
    "DiffusionODE",
    "InputError",
    "__version__",
    "start_gamma",
    "wrap",
]
