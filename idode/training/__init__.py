"""Training: from a run folder and data to a model, on one process or many."""

from idode.runs.distributed import World, joined
from idode.training.finetuning import finetuned, parent_of
from idode.training.trainer import Diverged, Reporter, Trained, Trainer

__all__ = [
    "Diverged",
    "Reporter",
    "Trained",
    "Trainer",
    "World",
    "finetuned",
    "joined",
    "parent_of",
]
