"""``idode.fit_dequantizer``: train a learned dequantization for a run and store it there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from idode.data.identity import Identity, mismatch_warning
from idode.data.memory import Data
from idode.errors import InputError
from idode.progress import Bar
from idode.runs import SHIPPED
from idode.runs.dequantizer_file import DEQUANTIZER, save_dequantizer, weights_hash
from idode.runs.distributed import best_device
from idode.runs.folder import claim
from idode.runs.run import MODEL, Run, holds_run, open_run
from idode.storage import locked_folder, write_atomically
from idode.training.flow_fitting import fit_flow, untrained_dequantizer
from idode.training.settings import DequantizerSettings

__all__ = ["FittedDequantizer", "fit_dequantizer"]


@dataclass(frozen=True)
class FittedDequantizer:
    """A run with its learned dequantization, and what it gains."""

    run: Run
    steps: int
    identity: Identity  # of the data it was trained on
    gain: float  # held-out bits/dim below the base, by the training objective
    gain_error: float  # its standard error


def fit_dequantizer(
    run: Run | Path | str,
    *,
    out: Path | str | None = None,
    data: Data | None = None,
    net: nn.Module | None = None,
    base: str = DequantizerSettings.base,
    steps: int = DequantizerSettings.steps,
    batch_size: int = DequantizerSettings.batch_size,
    lr: float = DequantizerSettings.lr,
    seed: int = DequantizerSettings.seed,
    force: bool = False,
    device: str | None = None,
    progress: bool = True,
) -> FittedDequantizer:
    """Train a learned dequantization for a run, whose model is not changed.

    It is stored in the run folder, and ``idode.evaluate`` can use it there. Ctrl-C stores what the
    steps so far have learned, unless there was one to replace, and raises ``KeyboardInterrupt``.

    Args:
        run: The run, its folder, or ``"pretrained:NAME"``.
        out: Folder for a copy of the run that gets it; by default the run itself.
        data: A spec, a data set or a pair of arrays; by default that of the run.
        net: The network of the run if it is one of your own.
        base: The noise that learning starts from, ``"tn"`` (truncated normal) or ``"uniform"``.
        steps: Optimiser steps.
        batch_size: Images in a step.
        lr: Learning rate at the start; it falls to zero.
        seed: Seed of everything random.
        force: Replace the dequantizer that the run has.
        device: Such as ``"cpu"`` or ``"cuda:1"``; by default the best available.
        progress: Show a progress bar on stderr.
    """
    opened = open_run(run)
    folder = _folder(opened, None if out is None else Path(out), force, named=run)
    settings = DequantizerSettings(base, steps, batch_size, lr, seed)
    with locked_folder(folder):
        return _fit(opened, folder, settings, data, net, device, progress)


def _fit(
    opened: Run,
    folder: Path,
    settings: DequantizerSettings,
    data: Data | None,
    net: nn.Module | None,
    device: str | None,
    progress: bool,
) -> FittedDequantizer:
    """Train and store, in a folder that no other process writes."""
    model = opened.model(best_device(device), net)
    start = untrained_dequantizer(
        model, tuple(opened.config.model.shape), settings.base, settings.seed
    )
    used = opened.load_data(data)
    other = None if opened.identity is None else mismatch_warning(opened.identity, used.identity)
    with Bar(settings.steps, not progress) as bar:
        if other is not None:
            bar.notice(f"warning: {other}")
        fitted = fit_flow(
            model,
            start,
            used.train,
            used.test,
            settings,
            progress=lambda step, loss: bar.progress(step, {"loss": loss}),
        )
    if fitted.interrupted and (folder / DEQUANTIZER).exists():
        raise KeyboardInterrupt(
            f"interrupted after {fitted.step} steps: {folder} keeps the dequantizer it had"
        )
    if not holds_run(folder):
        _copy(opened, folder)
    save_dequantizer(folder, fitted.learned, fitted.step)
    if fitted.interrupted:
        raise KeyboardInterrupt(
            f"interrupted: {folder} has the dequantizer of {fitted.step} steps; --force trains it "
            "again"
        )
    gain = fitted.gain, fitted.gain_error
    return FittedDequantizer(open_run(folder), fitted.step, used.identity, *gain)


def _folder(opened: Run, out: Path | None, force: bool, named: Run | Path | str) -> Path:
    """Where the dequantizer goes, refused before any work is done."""
    if out is None and not isinstance(named, Run) and str(named).startswith(SHIPPED):
        raise InputError(
            f"{named} comes with the package, which is not changed: give a folder for a copy of "
            "it as out"
        )
    if opened.spec != str(opened.path):
        raise InputError(
            f"{opened.spec} is no run folder, which a learned dequantization is stored in: fit "
            "one to the adapted model in Python, by idode.training.flow_fitting.fit_flow"
        )
    folder = opened.path if out is None else out
    if not holds_run(folder):
        if not _half_copied(opened, folder):
            claim(folder, force=force)
    elif folder != opened.path and weights_hash(folder) != weights_hash(opened.path):
        raise InputError(f"{folder} has another run than {opened.path}: give another folder")
    if (folder / DEQUANTIZER).exists() and not force:
        raise InputError(f"{folder} has a learned dequantization: --force replaces it")
    return folder


def _half_copied(opened: Run, folder: Path) -> bool:
    """Whether a folder holds what a kill during :func:`_copy` leaves: the run's model alone."""
    names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    shown = [name for name in names if not name.startswith(".")]
    return shown == [MODEL] and weights_hash(folder) == weights_hash(opened.path)


def _copy(opened: Run, folder: Path) -> None:
    """Copy the run's model and configuration to another folder.

    The model comes first: a folder with a configuration is a run and always has its model.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / MODEL, (opened.path / MODEL).read_bytes())
    except OSError as error:
        raise InputError(f"cannot write {folder / MODEL} ({error.strerror}): make room") from None
    try:
        replace(opened, path=folder).write_config()
    except InputError:
        (folder / MODEL).unlink()
        raise
