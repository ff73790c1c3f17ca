"""What the program sets for its own process: its memory, and Ctrl-C while it starts."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType, ModuleType

from idode.cli import INTERRUPTED

__all__ = ["check_processes", "end_imports_on_interrupt", "keep_freed_memory", "spin_briefly"]

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # numbers of options, see mallopt(3)
SET_BY_USER = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_TOP_PAD_",
    "GLIBC_TUNABLES",
)


def check_processes(name: str, command: ModuleType) -> None:
    """Refuse to run a command in several processes that do not share its work.

    All of them would do the same and write the same files. Commands that share have ``SHARED``.
    """
    from idode.errors import InputError

    count = os.environ.get("WORLD_SIZE", "1")
    if count != "1" and not getattr(command, "SHARED", False):
        raise InputError(
            f"{name} does not share its work between the {count} processes that torchrun started: "
            "run it without torchrun"
        )


def spin_briefly() -> None:
    """Have waiting threads of OpenMP sleep soon; to be called before torch is imported.

    By default they spin for long, and starve each other where the cores are shared: an evaluation
    of four digits beside four other processes took 500 s instead of 20.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def keep_freed_memory() -> bool:
    """Have the C library keep freed memory, from now on, in this whole process.

    By default it gives large blocks back to the system, which clears every page of them again at
    the next step, up to a third of a training on CPU (docs/results/networks.md). ``False`` where
    it is not glibc, and where the user has set one of :data:`SET_BY_USER`.
    """
    if sys.platform != "linux" or any(name in os.environ for name in SET_BY_USER):
        return False
    import ctypes

    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    never, none = -1, 0  # reach the size at which memory goes back; map blocks on their own
    return bool(set_option(M_TRIM_THRESHOLD, never)) and bool(set_option(M_MMAP_MAX, none))


def end_imports_on_interrupt() -> None:
    """End the process quietly when Ctrl-C comes while torch is being imported.

    A ``KeyboardInterrupt`` inside of its C++ code aborts the process or prints a traceback, and
    at that time there is nothing to save. A handler somebody else has set is left in place.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch.__spec__, "_initializing", False):
        os.write(2, b"idode: interrupted\n")
        os._exit(INTERRUPTED)
    signal.default_int_handler(number, frame)
