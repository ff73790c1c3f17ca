"""The training objective as plain values; its parts are looked up by name where they are used."""

from __future__ import annotations

from dataclasses import dataclass

from idode.dataclass_io import at_least, new_field
from idode.errors import InputError

__all__ = ["LEARNED", "NO_REGULARISATION", "ObjectiveConfig", "SimulationConfig"]

LEARNED = ("adaptive", "histogram")  # distributions that follow the losses


@dataclass(frozen=True)
class ObjectiveConfig:
    """Loss, weighting and distribution of noise levels.

    Args:
        order: 1, or 2 for the fine-tuning objective.
        density: ``designed``, ``uniform-gamma``, ``adaptive``, ``histogram``, ``normal-gamma`` or
            ``uniform-time:CLOCK``.
        weighting: A name in :data:`idode.training.objective.WEIGHTINGS`.
        low_discrepancy: Spread the noise levels of a batch evenly.
        ratio: Weight of the second-order term.
        probes: Hutchinson probes for each sample of the second-order term.
        unbiased: Square by the product of two different probes.
        augment: Flip and rotate images; the network gets a flag that says so.
        data: ``centres`` of the bins, or ``uniform`` noise in them.
        truncation: Exponent of Soft Truncation's prior over the smallest time of a batch.
        second: Second-order objective, a name in :data:`idode.training.objective.SECOND_ORDERS`.
        method: ``matching`` (denoising losses) or ``simulation`` (likelihood through a solver).
        antithetic: Train on each sample twice in a step, with its noise and with minus its noise,
            and on half as many samples.
    """

    order: int = 1
    density: str = "designed"
    weighting: str = "likelihood"
    low_discrepancy: bool = True
    ratio: float = 0.1
    probes: int = 1
    unbiased: bool = False
    augment: bool = False
    data: str = new_field("centres")
    truncation: float | None = new_field(None)
    second: str = new_field("flow-matching")
    method: str = new_field("matching")
    antithetic: bool = new_field(False)

    def __post_init__(self) -> None:
        at_least(self, ratio=0, probes=1, truncation=0)
        if self.order not in (1, 2):
            raise InputError(f"order={self.order}: must be 1 or 2")
        if self.order == 2 and self.weighting != "likelihood":
            raise InputError(
                f"weighting={self.weighting}: the second order is defined for likelihood only"
            )
        if self.truncation is not None and self.density in LEARNED:
            raise InputError(
                f"truncation needs a fixed density: {self.density} learns the whole clock"
            )
        given = (self.order, self.weighting, self.data, self.truncation)
        fixed = given == (1, "likelihood", "uniform", None) and self.density not in LEARNED
        if self.method == "simulation" and not fixed:
            raise InputError(
                "method=simulation needs order=1, weighting=likelihood, data=uniform, "
                "truncation=none and a density that is not learned"
            )
        if self.antithetic and self.method == "simulation":
            raise InputError("antithetic=true needs the noise of method=matching")
        if self.unbiased and self.second != "flow-matching":
            raise InputError(f"second={self.second}: unbiased is for flow-matching only")
        if self.unbiased and self.probes < 2:
            raise InputError(f"probes: must be at least 2 with unbiased, got {self.probes}")

    @property
    def second_order(self) -> bool:
        """Whether the second-order term has any weight (``ratio=0`` is a control experiment)."""
        return self.order == 2 and self.ratio > 0

    @property
    def is_bound(self) -> bool:
        """Whether the loss is the variational bound, in which noise levels may be learned too."""
        parts = self.order, self.weighting, self.method, self.truncation
        return parts == (1, "likelihood", "matching", None)

    @property
    def differentiates(self) -> bool:
        """Whether the loss contains derivatives of the network with respect to its input."""
        return self.order == 2 or self.method == "simulation"


@dataclass(frozen=True)
class SimulationConfig:
    """Solver steps and RNODE regularisation of ``method=simulation``.

    Args:
        steps: Steps of the classical Runge-Kutta method, four network evaluations each.
        kinetic: Weight of RNODE's kinetic energy.
        jacobian: Weight of RNODE's squared norm of the Jacobian.
    """

    steps: int = 4
    kinetic: float = 0.0
    jacobian: float = 0.0

    def __post_init__(self) -> None:
        at_least(self, steps=1, kinetic=0, jacobian=0)


NO_REGULARISATION = SimulationConfig()
