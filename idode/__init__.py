"""Exact likelihoods for images, and other data, with diffusion ODEs.

Public names are loaded when they are first used, so that ``import idode`` costs nothing by
itself and a command that needs no torch does not load it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from idode.errors import InputError, NumericalError

if TYPE_CHECKING:
    from idode.adapters.adapt import adapt
    from idode.codec.compress import compress
    from idode.codec.decompress import decompress
    from idode.detection.calibrate import calibrate
    from idode.detection.score import score
    from idode.diffusion.model import DiffusionODE
    from idode.diffusion.wrapping import wrap
    from idode.evaluation.evaluate import evaluate
    from idode.evaluation.paired import compare_models
    from idode.likelihood.estimator import LikelihoodSettings
    from idode.likelihood.latents import decode, encode
    from idode.likelihood.log_prob import log_prob
    from idode.runs.importing import import_checkpoint
    from idode.runs.run import Run, load
    from idode.sampling.samples import sample
    from idode.studies.comparison.compare import compare
    from idode.studies.report.report import report
    from idode.training.averaging import average
    from idode.training.dequantizer import fit_dequantizer
    from idode.training.train import finetune, train

__version__ = "0.2.0"

LAZY = {  # public name: module
    "DiffusionODE": "idode.diffusion.model",
    "LikelihoodSettings": "idode.likelihood.estimator",
    "Run": "idode.runs.run",
    "average": "idode.training.averaging",
    "adapt": "idode.adapters.adapt",
    "calibrate": "idode.detection.calibrate",
    "compare": "idode.studies.comparison.compare",
    "compare_models": "idode.evaluation.paired",
    "compress": "idode.codec.compress",
    "decompress": "idode.codec.decompress",
    "decode": "idode.likelihood.latents",
    "encode": "idode.likelihood.latents",
    "evaluate": "idode.evaluation.evaluate",
    "finetune": "idode.training.train",
    "fit_dequantizer": "idode.training.dequantizer",
    "import_checkpoint": "idode.runs.importing",
    "load": "idode.runs.run",
    "log_prob": "idode.likelihood.log_prob",
    "report": "idode.studies.report.report",
    "sample": "idode.sampling.samples",
    "score": "idode.detection.score",
    "train": "idode.training.train",
    "wrap": "idode.diffusion.wrapping",
}

__all__ = [
    "DiffusionODE",
    "InputError",
    "LikelihoodSettings",
    "NumericalError",
    "Run",
    "__version__",
    "adapt",
    "average",
    "calibrate",
    "compare",
    "compare_models",
    "compress",
    "decode",
    "decompress",
    "encode",
    "evaluate",
    "finetune",
    "fit_dequantizer",
    "import_checkpoint",
    "load",
    "log_prob",
    "report",
    "sample",
    "score",
    "train",
    "wrap",
]


def __getattr__(name: str) -> object:
    if name in LAZY:
        return getattr(importlib.import_module(LAZY[name]), name)
    raise AttributeError(f"module 'idode' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
