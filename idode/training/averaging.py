"""``idode.average``: the weights of a run averaged with another width, as a run of their own."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from idode.data.memory import Data
from idode.errors import DataWarning, InputError
from idode.evaluation.likelihood import sde_bound
from idode.runs.distributed import best_device
from idode.runs.folder import claim, writing_run
from idode.runs.run import Run, build_net, diffusion_ode, open_run, save_model
from idode.training.finetuning import parent_of
from idode.training.held_out import DRAWS
from idode.training.snapshots import check_snapshots, combined

__all__ = ["Averaged", "average"]

CHOICES = (0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2)
LARGE = 0.1  # error of a profile; above it the average is not of its width


@dataclass(frozen=True)
class Averaged:
    """A run whose weights are an average, and how its width was chosen."""

    run: Run
    width: float
    error: float  # of the profile, relative
    bounds: dict[float, float]  # width: SDE bound on held-out training images, bits/dim
    left_out: tuple[float, ...]  # widths of CHOICES for which there are too few snapshots
    own: float | None  # the same of the run's own average, where there are bounds


def average(
    run: Run | Path | str,
    *,
    out: Path | str,
    width: float | None = None,
    data: Data | None = None,
    net: nn.Module | None = None,
    device: str | None = None,
    force: bool = False,
) -> Averaged:
    """Average the weights of a run with another width, from its snapshots.

    Args:
        run: A run trained with ``train.snapshot_every``; it is not changed.
        out: Folder of the new run.
        width: Standard deviation of the average as a share of the training; by default that with
            the lowest SDE bound on the training images that ``train.hold_out`` kept apart, of
            those for which there are enough snapshots.
        data: The data of the run where it was trained on arrays in memory.
        net: The network of the run if it is one of your own.
        device: Where bounds are computed.
        force: Replace the run in the folder.
    """
    trained, out = open_run(run), Path(out)
    if out.resolve() == trained.path.resolve():
        raise InputError(
            f"{out} is the run itself, whose snapshots are needed: give another folder"
        )
    check_snapshots(trained.path)
    claim(out, force=force)
    bounds: dict[float, float] = {}
    left_out: tuple[float, ...] = ()
    own = None
    if width is None:
        own, bounds = _bounds(trained, data, net, best_device(device))
        width = min(bounds, key=bounds.__getitem__)
        left_out = tuple(w for w in CHOICES if w not in bounds)
    weights, found = combined(trained.path, width)
    if found.error > LARGE:
        warnings.warn(
            f"the average is not of width {width:g}: the relative error of its profile is "
            f"{found.error:.2f}, since there are few snapshots; take more, with a smaller "
            "train.snapshot_every",
            DataWarning,
            stacklevel=2,
        )
    parent = replace(parent_of(trained, str(trained.path.resolve())), width=width)
    made = replace(trained, path=out, parent=parent)
    with writing_run(out, force=force):
        made.write_config()
        save_model(out, weights)
    return Averaged(made, width, found.error, bounds, left_out, own)


def _bounds(
    run: Run, data: Data | None, net: nn.Module | None, device: torch.device
) -> tuple[float, dict[float, float]]:
    """SDE bounds of the run as it is and of choices, on images that were not trained on.

    A choice with too few snapshots is none; the widths that are kept always have enough.
    """
    kept = run.config.train.hold_out
    if not kept:
        raise InputError(
            f"{run.spec} was trained on all training images, so that none is left to choose a "
            "width by: give a --width such as 0.1, or train with --set train.hold_out=N"
        )
    images = run.load_data(data).train[-kept:]
    built = build_net(run.config, net=net).to(device).eval().requires_grad_(False)
    model = diffusion_ode(built, run.config)

    def bound(weights: dict[str, Tensor]) -> float:
        built.load_state_dict(weights)
        return sde_bound(model, images, draws=DRAWS).mean

    bounds = {}
    for width in CHOICES:
        weights, found = combined(run.path, width)
        if found.error <= LARGE:
            bounds[width] = bound(weights)
    return bound(run.weights()), bounds
