"""Recomputation: activations computed again in the backward pass instead of kept.

Dropout makes that delicate: a block evaluated twice in one forward pass must drop the same
units both times, so the random state before the first evaluation is kept and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, get_device_states, set_device_states

from idode.errors import InputError

__all__ = ["RandomState", "recomputed", "use_checkpointing"]


def use_checkpointing(network: nn.Module) -> None:
    """Compute activations again in backward passes from now on, however it was trained.

    Values and gradients stay the same; refused where the network has no such way.
    """
    able = [module for module in network.modules() if hasattr(module, "checkpointing")]
    if not able:
        raise InputError(
            f"{type(network).__name__} cannot compute its activations again: leave checkpointing "
            "off, or choose a smaller batch"
        )
    for module in able:
        module.checkpointing = True  # type: ignore[assignment]


def recomputed(f: Callable[..., Tensor], *args: object) -> Tensor:
    """``f(*args)``, of which only ``args`` stay in memory until the backward pass."""
    value: Tensor = checkpoint(f, *args, use_reentrant=False)
    return value


class RandomState:
    """The random state, of the CPU and of the device of ``x``, at the time of construction."""

    def __init__(self, x: Tensor) -> None:
        self.cpu = torch.get_rng_state()
        self.device_type = x.device.type
        self.devices, self.states = get_device_states(x)

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Draw as from this state inside the block; the global state is untouched after it."""
        with torch.random.fork_rng(self.devices, device_type=self.device_type):
            torch.set_rng_state(self.cpu)
            set_device_states(self.devices, self.states, device_type=self.device_type)
            yield
