"""Solvers for ordinary differential equations, divergences, and step grids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idode.registry import Registry

if TYPE_CHECKING:
    from idode.ode.adams import Adams
    from idode.ode.divergence import Gaussian, Probe, Rademacher
    from idode.ode.dormand_prince import Dopri5
    from idode.ode.solvers import RK4, Solver

__all__ = ["PROBES", "RK4", "SOLVERS", "Adams", "Dopri5", "Gaussian", "Rademacher"]

SOLVERS: Registry[type[Solver]] = Registry(
    "solver",
    {
        "adams": ("idode.ode.adams:Adams", "on a calibrated grid"),
        "dopri5": ("idode.ode.dormand_prince:Dopri5", "adaptive, the paper's"),
        "rk4": ("idode.ode.solvers:RK4", "equal steps"),
    },
)
PROBES: Registry[type[Probe]] = Registry(
    "probe",
    {
        "rademacher": "idode.ode.divergence:Rademacher",
        "gaussian": "idode.ode.divergence:Gaussian",
    },
)


def __getattr__(name: str) -> object:
    try:
        return SOLVERS.by_attribute(name)
    except AttributeError:
        return PROBES.by_attribute(name)
