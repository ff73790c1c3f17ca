"""Fine-tuning: its configuration, and the record of what it started from."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from idode.errors import InputError
from idode.runs.config import Config
from idode.runs.run import MODEL, Parent, Run
from idode.storage import checksum
from idode.training import checkpoint
from idode.training.state import COUNTERS

__all__ = ["finetuned", "parent_of", "starting_state"]


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
    objective, further, train = config.objective, config.finetune, config.train
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
            train,
            steps=further.steps,
            accumulate=max(train.accumulate, further.accumulate),
            lr=train.lr if further.lr is None else further.lr,
            matrix_lr=train.matrix_lr * _share(train.lr, further.lr),
            minutes=None,
            # An optimiser and an average that go on are warm already.
            warmup=0 if further.continues else train.warmup,
            ema_warmup=train.ema_warmup and not further.continues,
            compile=False,
        ),
    )


def _share(before: float, after: float | None) -> float:
    """By which the rate of matrices changes with the other one; where that was 0, it stays."""
    return 1.0 if after is None or before == 0 else after / before


def starting_state(run: Run, continues: bool, net: nn.Module | None = None) -> dict[str, Tensor]:
    """What fine-tuning begins with, as tensors of :class:`~idode.training.state.State`.

    Args:
        run: The trained run.
        continues: Weights, average and moments of its last checkpoint; else the averaged weights
            for both, and nothing of the optimiser.
        net: The network where it is custom.
    """
    if not continues:
        average = run.net(net).state_dict()
        return {f"{part}/{k}": v for part in ("net", "average") for k, v in average.items()}
    damaged: list[str] = []
    found = checkpoint.load_latest(run.checkpoints, damaged.append)
    if found is None:
        why = damaged[-1] if damaged else "it has no checkpoint"
        raise InputError(
            f"{run.path} cannot be continued ({why}): start from its averaged weights with "
            "--set finetune.continues=false"
        )
    return {k: v for k, v in found[1].items() if k not in COUNTERS}


def parent_of(run: Run, name: str) -> Parent:
    """The record that a run fine-tuned from ``run`` keeps; ``name`` is where ``run`` was found."""
    found = checkpoint.steps(run.checkpoints)
    return Parent(name, max(found, default=None), checksum(run.path / MODEL))
