"""Exact likelihoods for images, and other data, with diffusion ODEs.

Public names are loaded when they are first used, so that ``import idode`` costs nothing by
itself and a command that needs no torch does not load it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from idode.errors import InputError, NumericalError

if TYPE_CHECKING:
    from idode.diffusion.model import DiffusionODE, wrap
    from idode.evaluation.likelihood import bits_per_dim, sde_bound
    from idode.likelihood.estimator import LikelihoodSettings
    from idode.likelihood.log_prob import log_prob
    from idode.runs.run import Run, load
    from idode.sampling.samples import Samples, sample

__version__ = "0.2.0.dev0"

LAZY = {  # public name: module
    "DiffusionODE": "idode.diffusion.model",
    "LikelihoodSettings": "idode.likelihood.estimator",
    "Run": "idode.runs.run",
    "Samples": "idode.sampling.samples",
    "bits_per_dim": "idode.evaluation.likelihood",
    "load": "idode.runs.run",
    "log_prob": "idode.likelihood.log_prob",
    "sample": "idode.sampling.samples",
    "sde_bound": "idode.evaluation.likelihood",
    "wrap": "idode.diffusion.model",
}

__all__ = ["InputError", "NumericalError", "__version__", *LAZY]


def __getattr__(name: str) -> object:
    if name in LAZY:
        return getattr(importlib.import_module(LAZY[name]), name)
    raise AttributeError(f"module 'idode' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
