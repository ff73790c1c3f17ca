"""Settings of likelihoods and samplers by short names, as the command line has them."""

from __future__ import annotations

from typing import Any

from idode.likelihood import DEQUANTIZATIONS
from idode.likelihood.estimator import LikelihoodSettings
from idode.ode import SOLVERS
from idode.sampling import SAMPLERS


def settings(
    *,
    dequantization: str | None = None,
    start: float | None = None,
    solver: str = "adams",
    tolerance: float | None = None,
    importance: int = 1,
    probes: int = 1,
    **others: Any,
) -> LikelihoodSettings:
    way = None
    if dequantization is not None or start is not None:
        way = DEQUANTIZATIONS.build(dequantization or "tn", start=start)
    return LikelihoodSettings(
        dequantization=way,
        solver=SOLVERS.build(solver, tolerance=tolerance),
        n_importance=importance,
        n_probes=probes,
        **others,
    )


def sampler(name: str, steps: int | None = None) -> Any:
    return SAMPLERS.build(name, steps=steps)
