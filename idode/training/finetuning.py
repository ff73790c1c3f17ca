"""Fine-tuning: its configuration, and the record of what it started from."""

from __future__ import annotations

from dataclasses import replace

from idode.runs.config import Config
from idode.runs.run import MODEL, Parent, Run
from idode.storage import checksum
from idode.training import checkpoint

__all__ = ["finetuned", "parent_of"]


def finetuned(
    config: Config,
    ratio: float | None = None,
    probes: int | None = None,
    unbiased: bool = False,
) -> Config:
    """The same system with the second-order objective added, for its number of further steps.

    The network is not compiled even if the run's was: that objective differentiates twice.

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
            compile=False,
        ),
    )


def parent_of(run: Run, name: str) -> Parent:
    """The record that a run fine-tuned from ``run`` keeps; ``name`` is where ``run`` was found."""
    found = checkpoint.steps(run.checkpoints)
    return Parent(name, max(found, default=None), checksum(run.path / MODEL))
