"""Whether a training fits into memory, found out before any of it is allocated."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

import torch
from torch import nn

from idode.errors import InputError
from idode.nets.config import CustomNetConfig
from idode.runs.config import Config
from idode.runs.run import build_net

__all__ = ["available_bytes", "check_training_size", "parameter_count"]

COPIES = 5  # of each weight: itself, its average, its gradient and two moments of Adam
CGROUP = Path("/sys/fs/cgroup/memory.max")


def available_bytes(device: torch.device) -> int:
    """Memory of a device in bytes, whoever uses it; of the CPU what this container may have."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 62  # a system that does not tell
    with contextlib.suppress(OSError, ValueError):
        found = min(found, int(CGROUP.read_text()))
    return found


def parameter_count(config: Config, net: nn.Module | None = None) -> int:
    """Number of weights, without allocating them."""
    if isinstance(config.net, CustomNetConfig) and net is not None:
        return sum(p.numel() for p in net.parameters())
    try:
        with torch.device("meta"):
            return sum(p.numel() for p in build_net(config).parameters())
    except (RuntimeError, OverflowError):  # more bytes than a number of 64 bits can count
        return 1 << 62


def check_training_size(
    config: Config, device: torch.device, processes: int = 1, net: nn.Module | None = None
) -> None:
    """Refuse settings that need more memory than there is.

    A lower bound: the weights in all their copies, and one feature map of one piece of the batch.

    Args:
        config: Settings, for the shape of the data.
        device: Where the network will be.
        processes: Among which the batch is divided.
        net: The network where it is custom.
    """
    there = available_bytes(device)
    weights = 4 * COPIES * parameter_count(config, net)
    if weights > there:
        raise InputError(
            f"the network needs {weights / 2**30:.3g} GB to be trained and {device} has "
            f"{there / 2**30:.3g}: make net.width or net.depth smaller"
        )
    shape, train = config.model.shape, config.train
    places = math.prod(shape[1:]) if len(shape) == 3 else 1
    width = getattr(config.net, "width", shape[0] if shape else 1)
    piece = math.ceil(train.batch_size / (train.accumulate * processes))
    batch = 4 * piece * places * width + 8 * train.batch_size
    if batch > there:
        raise InputError(
            f"a batch needs more than {batch / 2**30:.3g} GB and {device} has "
            f"{there / 2**30:.3g}: make train.batch_size smaller or train.accumulate larger"
        )
