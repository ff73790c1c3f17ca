"""Samples of a model: the ODE backwards by any solver, or the SDE step by step.

``sample(model, 64, (1, 8, 8), generator)`` gives :class:`Samples`; see ``docs/sampling.md``.
"""

from __future__ import annotations

from idode.sampling.ancestral import ancestral
from idode.sampling.multistep import DataMultistep
from idode.sampling.sampler import SOLVERS, latents
from idode.sampling.samples import Samples, nearest_level, sample

__all__ = [
    "SOLVERS",
    "DataMultistep",
    "Samples",
    "ancestral",
    "latents",
    "nearest_level",
    "sample",
]
