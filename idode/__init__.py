"""Exact likelihoods for images, and other data, with diffusion ODEs."""

from idode.bounds import SDEBound, sde_bound
from idode.density import decode, encode, log_prob
from idode.errors import InputError, NumericalError
from idode.likelihood import BitsPerDim, Settings, bits_per_dim
from idode.model import DiffusionODE, wrap
from idode.predictors import PREDICTORS
from idode.schedules import SCHEDULES, start_gamma

__version__ = "0.1.0"

__all__ = [
    "PREDICTORS",
    "SCHEDULES",
    "BitsPerDim",
    "DiffusionODE",
    "InputError",
    "NumericalError",
    "SDEBound",
    "Settings",
    "__version__",
    "bits_per_dim",
    "decode",
    "encode",
    "log_prob",
    "sde_bound",
    "start_gamma",
    "wrap",
]
