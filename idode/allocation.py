"""Memory that was freed stays with the process, as it does on a GPU.

By default the C library gives large blocks back to the system, which clears every page of them
again at the next step: a tenth to a fifth of a training step on CPU (docs/results/networks.md).
"""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_freed_memory"]

# Of mallopt(3). A threshold of -1 is never reached; no block is mapped apart from the others.
TRIM_THRESHOLD, MAPPED_BLOCKS = -1, -4
SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Whether the C library agreed; for a whole program, and on others than glibc for nothing."""
    if sys.platform != "linux" or any(name in os.environ for name in SET_BY_USER):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    return bool(set_option(TRIM_THRESHOLD, -1)) and bool(set_option(MAPPED_BLOCKS, 0))
