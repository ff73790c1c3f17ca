"""Samples of a model: the ODE backwards by any solver, or the SDE step by step.

``idode.load("pretrained:digits").sample(64)`` gives images; see ``docs/sampling.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idode.ode import SOLVERS

if TYPE_CHECKING:
    from idode.ode.solvers import Solver
    from idode.registry import Registry
    from idode.sampling.ancestral import Ancestral
    from idode.sampling.dpm import DPM
    from idode.sampling.samplers import Sampler

__all__ = ["DPM", "SAMPLERS", "Ancestral"]

SAMPLERS: Registry[type[Solver] | type[Sampler]] = SOLVERS.extended(
    "sampler",
    {
        "dpm": ("idode.sampling.dpm:DPM", "good in 10 to 20 steps"),
        "ancestral": ("idode.sampling.ancestral:Ancestral", "the SDE, step by step"),
    },
)


def __getattr__(name: str) -> object:
    return SAMPLERS.by_attribute(name)
