"""Memory that was freed stays with the process, as it does on a GPU.

By default the C library gives large blocks back to the system, which clears every page of them
again at the next step, up to a third of a training on CPU (docs/results/networks.md).
"""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_freed_memory"]

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # numbers of options, see mallopt(3)
SET_BY_USER = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_TOP_PAD_",
    "GLIBC_TUNABLES",
)


def keep_freed_memory() -> bool:
    """Have the C library keep freed memory, from now on, in this whole process.

    False where it is not glibc, and where the user has settled the matter by a variable.
    """
    if sys.platform != "linux" or any(name in os.environ for name in SET_BY_USER):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    never, none = -1, 0  # reach the size at which memory goes back; map blocks on their own
    return bool(set_option(M_TRIM_THRESHOLD, never)) and bool(set_option(M_MMAP_MAX, none))
