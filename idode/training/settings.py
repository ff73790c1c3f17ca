"""Settings of training a dequantization, as plain values: reading them needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from idode.errors import InputError, is_number, whole

__all__ = ["DequantizerSettings"]


@dataclass(frozen=True)
class DequantizerSettings:
    """How a learned dequantization is trained.

    Args:
        base: The noise it starts from, ``tn`` (truncated normal) or ``uniform``.
        steps: Steps of Adam; the learning rate falls to zero over them.
        batch_size: Images in a step.
        lr: Learning rate at the start.
        seed: Seed of everything random.
    """

    base: str = "tn"
    steps: int = 2000
    batch_size: int = 64
    lr: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch_size", 1), ("seed", 0)):
            whole(name, getattr(self, name), least)
        if not (is_number(self.lr) and 0 < self.lr < math.inf):
            raise InputError(f"lr must be positive, got {self.lr}")
