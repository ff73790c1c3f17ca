"""Likelihoods: from pixels to log-densities and bounds on bits per dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idode.registry import Registry

if TYPE_CHECKING:
    from idode.likelihood.dequantization import (
        Continuous,
        Dequantization,
        TruncatedNormal,
        Uniform,
        Variational,
    )

__all__ = ["DEQUANTIZATIONS", "Continuous", "TruncatedNormal", "Uniform", "Variational"]

DEQUANTIZATIONS: Registry[type[Dequantization]] = Registry(
    "dequantization",
    {
        "tn": ("idode.likelihood.dequantization:TruncatedNormal", "truncated normal"),
        "uniform": "idode.likelihood.dequantization:Uniform",
        "variational": ("idode.likelihood.dequantization:Variational", "the model's own noise"),
        "learned": ("idode.likelihood.learned_dequantization:Learned", "by idode dequantize"),
        "none": ("idode.likelihood.dequantization:Continuous", "for continuous data"),
    },
)


def __getattr__(name: str) -> object:
    return DEQUANTIZATIONS.by_attribute(name)
