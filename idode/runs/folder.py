"""The folder of a new run: whether it may be used, and how an earlier run in it is replaced.

A run that is replaced is moved to ``RUN/.replaced`` and removed only when the new one has its
first checkpoint; if the new one never gets there it is moved back. ``RUN/.moving`` exists while
files are moved either way, so that a kill at any moment loses nothing: what it holds belongs into
the folder. Links are moved and removed as links, never followed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from idode.errors import InputError
from idode.runs.dequantizer_file import DEQUANTIZER
from idode.runs.run import (
    CHECKPOINT,
    CHECKPOINTS,
    CONFIG,
    EVALUATIONS,
    METRICS,
    MODEL,
    REPORT,
    SAMPLES,
    SNAPSHOTS,
    Run,
    holds_run,
    open_run,
)
from idode.storage import locked_folder, remove, sweep, sync_folder

__all__ = ["REPORT_FILES", "REPORT_PICTURES", "claim", "clear", "settle", "writing_run"]

# A folder is a run as long as it has the first, which is therefore moved or removed last.
RUN_FILES = (
    *(CONFIG, METRICS, MODEL, DEQUANTIZER, CHECKPOINTS, SAMPLES, EVALUATIONS, "tensorboard"),
    SNAPSHOTS,
    # Of evaluation, compression and detection, which use runs.
    *("calibration.json", "codec.safetensors", "detector.safetensors"),
)
REPORT_PICTURES = (
    "training",
    "time-densities",
    "squared-errors",
    "uniform-starts",
    "histogram",
    "samples",
)
REPORT_FILES = ("report.html", "report.md", *(f"{name}.png" for name in REPORT_PICTURES))
REPLACED, MOVING = ".replaced", ".moving"


def claim(path: Path, *, resume: bool | None = None, force: bool = False) -> Run | None:
    """The run in a folder if it is to be resumed; ``None`` if the folder is free for a new one.

    Args:
        path: The folder; it need not exist. One that holds other files is always refused.
        resume: Continue the run in it, if there is one; ``None`` where that is not possible.
        force: The run in it is to be replaced; nothing is removed yet, see :func:`writing_run`.
    """
    if resume and force:
        raise InputError("--resume continues a run and --force replaces it: give one of them")
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file: give a folder for the run")
    if _interrupted(path):
        with locked_folder(path):
            recover(path)
    found = path.exists() and holds_run(path)
    if resume and found:
        return open_run(path)
    # Hidden files are what a process killed at its start leaves behind.
    filled = path.exists() and any(not p.name.startswith(".") for p in path.iterdir())
    if filled and not found:
        raise InputError(f"{path} is not empty and holds no run: give another folder")
    if filled and not force:
        replaced, resumed = "--force to replace the run in it", "--resume to continue it"
        options = f"or {replaced}" if resume is None else f"{replaced}, or {resumed}"
        raise InputError(f"{path} is not empty: give another folder, {options}")
    return None


@contextlib.contextmanager
def writing_run(path: Path, *, force: bool = False) -> Iterator[None]:
    """Write a run: locked against other processes, and an earlier run safe until it is replaced.

    Args:
        path: The folder, which :func:`claim` has accepted; made if need be.
        force: Move the run in it aside; it comes back if the block fails before there is a
            checkpoint or a model.
    """
    with locked_folder(path):
        try:
            for folder in (path, path / SAMPLES, path / EVALUATIONS):
                sweep(folder)
            recover(path)
            if force and (path / REPLACED).exists():
                clear(path)  # a replacement that never got to a checkpoint
            elif force:
                _move_aside(path)
        except OSError as error:
            raise InputError(
                f"cannot replace the run in {path} ({error.strerror}): give a folder you may "
                "write to"
            ) from None
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                if force and not _usable(path):
                    _restore(path)
            raise
        with contextlib.suppress(OSError):  # the new run is complete; the next one removes it
            settle(path)


def settle(path: Path) -> None:
    """Remove the run that was replaced, now that the new one has a checkpoint or a model."""
    if (path / REPLACED).exists() and _usable(path):
        remove(path / REPLACED)


def recover(path: Path) -> None:
    """Finish what a process left undone that was killed while it replaced a run."""
    for name in (MOVING, REPLACED):
        if (path / name).is_symlink():
            raise InputError(f"{path / name} is a link, which idode does not make: remove it")
    if (path / MOVING).exists():
        _move_back(path)
    if (path / REPLACED).exists() and not (path / CONFIG).exists():
        _restore(path)
    settle(path)


def clear(path: Path) -> None:
    """Remove the run in a folder, and no file that idode did not write.

    What makes it a run is removed last: after a kill on the way, the rest can still be replaced.
    """
    for part in _parts(path):
        remove(path / part)
    _tidy(path)


def _interrupted(path: Path) -> bool:
    """Whether a process was killed while it moved a run; the folder is no run until recovered."""
    aside = (path / REPLACED).exists() and not (path / CONFIG).exists()
    return aside or (path / MOVING).exists()


def _usable(path: Path) -> bool:
    return (path / MODEL).exists() or any((path / CHECKPOINTS).glob(f"{CHECKPOINT}*"))


def _parts(path: Path) -> list[str]:
    """What idode has written to a folder, by relative path, the configuration last."""
    linked = (path / REPORT).is_symlink()
    report = [REPORT] if linked else [f"{REPORT}/{name}" for name in REPORT_FILES]
    names = [*report, *reversed(RUN_FILES)]
    return [name for name in names if (path / name).exists() or (path / name).is_symlink()]


def _tidy(path: Path) -> None:
    """Remove the folder of the report if it is ours and empty."""
    if not (path / REPORT).is_symlink():
        with contextlib.suppress(OSError):  # it does not exist, or holds other files, which stay
            (path / REPORT).rmdir()


def _move_aside(path: Path) -> None:
    moving = path / MOVING
    moving.mkdir()
    for part in _parts(path):
        (moving / part).parent.mkdir(exist_ok=True)
        (path / part).rename(moving / part)
    _tidy(path)
    if any(moving.iterdir()):
        moving.rename(path / REPLACED)
    else:
        moving.rmdir()
    sync_folder(path)


def _restore(path: Path) -> None:
    """Put the replaced run back in the place of one that never got to a checkpoint."""
    if (path / REPLACED).exists():
        clear(path)
        (path / REPLACED).rename(path / MOVING)
        _move_back(path)


def _move_back(path: Path) -> None:
    moving = path / MOVING
    for part in _parts(moving):
        (path / part).parent.mkdir(exist_ok=True)
        remove(path / part)
        (moving / part).rename(path / part)
    _tidy(moving)
    moving.rmdir()
    sync_folder(path)
