"""Notices that training has diverged, on the device, without a step waiting for the answer."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from idode.errors import InputError
from idode.numerics import home_of_float64
from idode.runs.distributed import World

__all__ = ["Diverged", "Watch"]

MAX_LISTED = 8  # samples listed in a message


class Diverged(InputError):
    """The loss or its gradient is not finite; the state before that step is saved."""

    @classmethod
    def at(cls, step: int, norm: float, samples: list[int], folder: Path) -> Diverged:
        """The error for a step, its norm of the gradient and the samples to blame."""
        named = ", ".join(map(str, samples[:MAX_LISTED]))
        more = f" and {len(samples) - MAX_LISTED} more" if len(samples) > MAX_LISTED else ""
        return cls(
            f"the loss is not finite in step {step} (gradient norm {norm:g}; training samples "
            f"{named}{more}); the state before it is saved in {folder}: look at these samples, or "
            "continue with --resume and a smaller train.lr, or with train.clip"
        )


class Watch:
    """The first step whose loss or gradient is not finite, and its losses.

    From that step on :attr:`diverged` is true, which keeps the optimiser and the sums from taking
    the step and all later ones; whoever reads it later finds the state before it.

    Args:
        world: This process's place among all.
        count: Samples of a step on this process.
    """

    def __init__(self, world: World, count: int) -> None:
        home = home_of_float64(world.device)
        self._world = world
        self.diverged = torch.zeros((), dtype=torch.bool, device=home)
        self._step = torch.zeros((), dtype=torch.int64, device=home)
        self._losses = torch.zeros(count, dtype=torch.float64, device=home)
        self._norm = torch.zeros((), device=home)

    def see(self, step: int, losses: Tensor, norm: Tensor) -> None:
        """Look at the losses ``(B,)`` and the norm ``()`` of a step, before it is taken."""
        norm = norm.to(self._norm)
        bad = ~(torch.isfinite(losses).all() & torch.isfinite(norm))
        if self._world.size > 1:
            bad = self._world.sum(bad.to(torch.float32)) > 0
        first = bad & ~self.diverged
        self._step = torch.where(first, step, self._step)
        self._losses = torch.where(first, losses, self._losses)
        self._norm = torch.where(first, norm, self._norm)
        self.diverged = self.diverged | bad

    def found(self) -> tuple[int, Tensor, float] | None:
        """The step, the losses ``(B,)`` of the global batch, the norm; ``None`` if all is well."""
        if not bool(self.diverged):
            return None
        losses = self._world.gather(self._losses)
        return int(self._step), losses.cpu(), float(self._norm)
