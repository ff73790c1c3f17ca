"""How much memory a device has."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch

__all__ = ["available_bytes"]

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
