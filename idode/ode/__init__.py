"""Solvers for ordinary differential equations, divergences, and step grids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idode.registry import Registry

if TYPE_CHECKING:
    from idode.ode.divergence import Probe
    from idode.ode.solvers import Solver

__all__ = ["PROBES", "SOLVERS"]

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
