"""The configuration of a run's second phase."""

from __future__ import annotations

from dataclasses import replace

from idode.config import Config

__all__ = ["finetuned"]


def finetuned(
    config: Config,
    ratio: float | None = None,
    probes: int | None = None,
    unbiased: bool = False,
) -> Config:
    """The same system with the second-order objective added, for its number of further steps.

    Args:
        config: Of the trained run.
        ratio: Weight of the second-order term; by default the run's own.
        probes: Hutchinson probes for each sample; by default the run's own.
        unbiased: Square by two different probes, of which there are then at least two.
    """
    objective, further = config.objective, config.finetune
    count = objective.probes if probes is None else probes
    if unbiased and probes is None:
        count = max(2, count)
    return replace(
        config,
        name=config.name if config.objective.order == 2 else f"{config.name}+second-order",
        objective=replace(
            objective,
            order=2,
            ratio=objective.ratio if ratio is None else ratio,
            probes=count,
            unbiased=unbiased,
        ),
        train=replace(
            config.train,
            steps=further.steps,
            accumulate=max(config.train.accumulate, further.accumulate),
            lr=config.train.lr if further.lr is None else further.lr,
        ),
    )
