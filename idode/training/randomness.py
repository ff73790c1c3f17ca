"""Random numbers as a pure function of seed, purpose and step.

No generator is kept from one step to the next, so a resumed run and any number of processes see
the same draws without any random state being stored.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["Purpose", "generator", "seeded_globally"]


class Purpose(enum.IntEnum):
    """What the numbers are for; streams of different purposes are independent."""

    WEIGHTS = 0
    BATCH = 1
    DROPOUT = 2
    HELD_OUT = 3
    DENSITY = 4
    SAMPLES = 5


def _mixed(seed: int, purpose: Purpose, *place: int) -> int:
    entropy = [seed, int(purpose), *place]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])


def generator(seed: int, purpose: Purpose, *place: int) -> torch.Generator:
    """A fresh generator on the CPU for this purpose at this place, such as a step."""
    return torch.Generator().manual_seed(_mixed(seed, purpose, *place))


@contextmanager
def seeded_globally(device: torch.device, seed: int, *place: int) -> Iterator[None]:
    """Dropout has no generator argument: lend it the global state, and put that back after."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(_mixed(seed, Purpose.DROPOUT, *place))
        yield
