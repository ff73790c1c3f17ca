"""The folder of a new run: whether it may be used, and how an earlier run is removed from it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from idode.errors import InputError
from idode.runs.dequantizer_file import DEQUANTIZER
from idode.runs.run import (
    CHECKPOINTS,
    CONFIG,
    EVALUATIONS,
    METRICS,
    MODEL,
    REPORT,
    SAMPLES,
    Run,
    holds_run,
    open_run,
)

__all__ = ["REPORT_FILES", "REPORT_PICTURES", "claim", "clear"]

# In the order of removal, the other way round: a folder is a run as long as it has the first.
RUN_FILES = (CONFIG, METRICS, MODEL, DEQUANTIZER, CHECKPOINTS, SAMPLES, EVALUATIONS, "tensorboard")
REPORT_PICTURES = (
    "training",
    "time-densities",
    "squared-errors",
    "uniform-starts",
    "histogram",
    "samples",
)
REPORT_FILES = ("report.html", "report.md", *(f"{name}.png" for name in REPORT_PICTURES))


def claim(path: Path, *, resume: bool | None = None, force: bool = False) -> Run | None:
    """The run in a folder if it is to be resumed; ``None`` if the folder is free for a new one.

    Args:
        path: The folder; it need not exist. One that holds other files is always refused.
        resume: Continue the run in it, if there is one; ``None`` where that is not possible.
        force: The run in it is to be replaced; nothing is removed yet, see :func:`clear`.
    """
    if resume and force:
        raise InputError("resume continues a run and force replaces it: give one of them")
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file: give a folder for the run")
    found = path.exists() and holds_run(path)
    if resume and found:
        return open_run(path)
    # Hidden files are what a process killed at its start leaves behind.
    filled = path.exists() and any(not p.name.startswith(".") for p in path.iterdir())
    if filled and not found:
        raise InputError(f"{path} is not empty and holds no run: give another folder")
    if filled and not force:
        replaced, resumed = "force to replace the run in it", "resume to continue it"
        options = f"or {replaced}" if resume is None else f"{replaced}, or {resumed}"
        raise InputError(f"{path} is not empty: give another folder, {options}")
    return None


def clear(path: Path) -> None:
    """Remove the run in a folder, and no file that idode did not write.

    What makes it a run is removed last: after a kill on the way, the rest can still be replaced.
    """
    report = path / REPORT
    if report.is_dir():
        for name in REPORT_FILES:
            (report / name).unlink(missing_ok=True)
        with suppress(OSError):  # it holds other files, which stay
            report.rmdir()
    for target in (path / name for name in reversed(RUN_FILES)):
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
