"""The systems the paper compares, each as a difference from a preset: one line of settings.

A system is a schedule, a predictor, a weighting, a time density and an objective; network, data
and optimisation come from the preset it is applied to, so that systems compare on equal terms.
"""

from __future__ import annotations

from dataclasses import dataclass

from idode.config import Config, override
from idode.errors import choose

__all__ = ["SYSTEMS", "System", "apply"]


@dataclass(frozen=True)
class System:
    """What makes a system, in the words of ``--set``."""

    summary: str
    settings: tuple[str, ...]


SYSTEMS: dict[str, System] = {
    "vdm": System(
        "VDM: noise prediction, uniform gamma",
        ("model.predictor=noise", "objective.density=uniform-gamma"),
    ),
    "idode-vp": System(
        "i-DODE: normalised velocity, designed density, variance preserving",
        ("model.schedule=vp",),
    ),
    "idode-sp": System(
        "i-DODE: normalised velocity, designed density, straight path",
        ("model.schedule=sp",),
    ),
}


def apply(base: Config, name: str) -> Config:
    """The preset ``base`` with the parts of the system called ``name``."""
    return override(base, choose("system", name, SYSTEMS).settings)
