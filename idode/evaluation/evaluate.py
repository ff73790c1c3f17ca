"""A data set under a run: the SDE bound, the ODE value, and the paper's table of bounds."""

from __future__ import annotations

import dataclasses
import math
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from idode.batches import rows_for
from idode.data.identity import Identity, mismatch_warning
from idode.data.memory import Data
from idode.data.prepared import Split
from idode.diffusion.model import Condition, DiffusionODE
from idode.errors import DataWarning, InputError
from idode.evaluation.kept_calibration import KeptCalibrations, calibrations_of
from idode.evaluation.likelihood import bits_per_dim, bounds, condition_identity, sde_bound
from idode.evaluation.precision import sampled_bits_per_dim
from idode.evaluation.result import Evaluation
from idode.evaluation.run_store import open_store
from idode.evaluation.runner import BatchRunner
from idode.likelihood.bits_per_dim import BitsPerDim
from idode.likelihood.dequantization import (
    Dequantization,
    TruncatedNormal,
    Uniform,
    Variational,
)
from idode.likelihood.estimator import LikelihoodSettings
from idode.likelihood.learned_dequantization import Learned
from idode.likelihood.sde_bound import SDEBound
from idode.nets.memory import use_checkpointing
from idode.progress import Stages
from idode.runs.dequantizer_file import has_dequantizer, load_dequantizer
from idode.runs.distributed import joined
from idode.runs.run import Run, open_run

__all__ = ["IMPORTANCES", "evaluate", "table_rows"]

IMPORTANCES = (1, 5, 20)  # the columns of the paper's table of bounds


def evaluate(
    run: Run | Path | str,
    *,
    data: Data | None = None,
    split: str = "test",
    limit: int | None = None,
    precision: float | None = None,
    settings: LikelihoodSettings | None = None,
    learned: bool = False,
    table: bool = False,
    draws: int = 16,
    net: nn.Module | None = None,
    condition: Condition | None = None,
    journal: Path | str | None = None,
    checkpointing: bool = False,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> Evaluation:
    """Bits per dimension of a data set under a trained run, with error bars.

    Finished batches are stored: after an interruption the same call resumes. Under ``torchrun``
    the processes share the batches.

    Args:
        run: A run folder, a :class:`Run`, or ``pretrained:NAME``.
        data: A spec, a data set, or a pair of arrays; by default that of the run.
        split: ``test`` or ``train``.
        limit: Only the first images; by default all.
        precision: Standard error of the test set's mean to reach, in bits/dim, by solving as few
            images as that takes: chosen at random, some on coarse grids, with a regression on
            proxies that all images have. By default all images are solved.
        settings: How the ODE value is computed; a table has its own ``n_importance``, and takes
            of ``dequantization`` the start alone.
        learned: Use the run's learned dequantization (see :func:`idode.fit_dequantizer`).
        table: The paper's table in place of one value: all dequantizations by K = 1, 5, 20.
        draws: Noise levels for each image of the SDE bound.
        net: An instance of the user's own network, for a run that was trained with one.
        condition: Keyword arguments of the network, one row for each image of the split, such as
            ``{"labels": y}``.
        journal: File of finished batches; by default in ``RUN/evaluations``.
        checkpointing: Save memory by computing activations again, however the run was trained;
            the values are the same.
        device: By default the best one there is.
        progress: Whether to show progress bars.

    Returns:
        The figures. After ``Ctrl-C`` those of the images done so far, with ``complete`` false.
    """
    name, run = str(run.path if isinstance(run, Run) else run), open_run(run)
    dataset = run.load_data(data)
    images, identity = dataset.part(split, limit), dataset.identity
    given = {
        name: value[:limit] if isinstance(value, Tensor) else value
        for name, value in (condition or {}).items()
    }
    rows_for(given, len(images), None)  # refuses what is no tensor, or of another length
    settings = settings or LikelihoodSettings()
    with joined(device) as world:
        if precision is not None and (table or condition or not 0 < precision < math.inf):
            raise InputError(
                "a precision is for one value of unconditional images: leave out the table of "
                "bounds and the condition"
                if table or condition
                else f"the precision must be a positive number of bits/dim, got {precision}"
            )
        model = run.model(world.device, net)
        if checkpointing:
            use_checkpointing(model)
        own = _learned(run, learned, table, world.device)
        ways = _checked_ways(model, settings, own, learned, table)
        depends = {
            "settings": settings.to_json(),
            "ways": [way.to_json() for way in ways],
            "draws": draws,
            "split": split,
            "data": identity.to_json(),
            "device": world.device.type,
            **condition_identity(given),
        }
        if world.writes:
            _warn_of_other_data(run, identity)
        with (
            open_store(run, model, depends, journal, world.rank, own) as kept,
            Stages(quiet=not (progress and world.writes)) as stages,
        ):
            runner = BatchRunner(stages, kept, world.rank, world.size)
            grids = calibrations_of(run, model, identity, split, own)
            # The noise of values differs with the condition, and so do steps.
            grids = dataclasses.replace(
                grids, depends={**grids.depends, **condition_identity(given)}
            )
            try:
                sde = None
                if precision is None:
                    sde = _sde_value(model, images, settings, draws, runner, given)
                    results = _ode_values(
                        model, images, settings, ways, table, runner, grids, given
                    )
                else:
                    one = dataclasses.replace(settings, dequantization=ways[0])
                    results = [
                        sampled_bits_per_dim(
                            model, images, precision, one, runner=runner, kept=grids
                        )
                    ]
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"interrupted: {kept.path} keeps the finished batches; re-run the command to "
                    "resume"
                ) from None
        place, rank = str(world.device), world.rank
        kind = str(model.dtype).removeprefix("torch.")
    return Evaluation(
        name, run.parent, identity, split, sde, tuple(results), place, kept.path, rank, kind
    )


def _warn_of_other_data(run: Run, identity: Identity) -> None:
    text = None if run.identity is None else mismatch_warning(run.identity, identity)
    if text is not None:
        warnings.warn(text, DataWarning, stacklevel=3)


def _sde_value(
    model: DiffusionODE,
    images: Split,
    settings: LikelihoodSettings,
    draws: int,
    runner: BatchRunner,
    condition: Condition,
) -> SDEBound | None:
    if model.levels is None:
        return None
    size = settings.batch_size
    return sde_bound(
        model, images, draws=draws, seed=settings.seed, batch_size=size, condition=condition,
        runner=runner,
    )  # fmt: skip


def _learned(run: Run, learned: bool, table: bool, device: torch.device) -> Learned | None:
    """The run's dequantizer where it is asked for, or has a row in the table of bounds."""
    if learned or (table and has_dequantizer(run)):
        return load_dequantizer(run, device)
    return None


def _checked_ways(
    model: DiffusionODE,
    settings: LikelihoodSettings,
    own: Learned | None,
    learned: bool,
    table: bool,
) -> tuple[Dequantization, ...]:
    """The dequantizations to use; all that is wrong with them is found before any work."""
    if table and model.levels is None:
        raise InputError(
            "the table of bounds compares ways from integers to states; this data is continuous"
        )
    if table:
        _check_table(settings)
        ways = table_rows(own, settings.dequantization)
    elif learned and own is not None:
        start = None if settings.dequantization is None else settings.dequantization.start
        if start not in (None, own.start):
            raise InputError(f"the dequantizer was trained for the start {own.start}, not {start}")
        ways = (own,)
    else:
        chosen = settings.for_model(model).dequantization
        assert chosen is not None
        ways = (chosen,)
    for way in ways:
        dataclasses.replace(settings, dequantization=way).for_model(model)
    return ways


def _check_table(settings: LikelihoodSettings) -> None:
    """Refuse settings that the rows and columns of the table of bounds have of their own."""
    way = settings.dequantization
    given = {
        "n_importance": settings.n_importance > 1,
        "dequantization": way is not None and way.start is None,
        "closed_form": settings.closed_form,
    }
    for name in (name for name, there in given.items() if there):
        raise InputError(
            f"the table of bounds has all dequantizations by K = 1, 5, 20: leave out {name}, or "
            "the table"
        )


def table_rows(
    learned: Learned | None, given: Dequantization | None = None
) -> tuple[Dequantization, ...]:
    """Dequantizations of the table of bounds: the paper's, and the learned one if there is."""
    start = None if given is None else given.start
    paper = (Uniform(start), Variational(start), TruncatedNormal(start))
    return paper if learned is None else (*paper, learned)


def _ode_values(
    model: DiffusionODE,
    images: Split,
    settings: LikelihoodSettings,
    ways: tuple[Dequantization, ...],
    table: bool,
    runner: BatchRunner,
    kept: KeptCalibrations,
    condition: Condition,
) -> list[BitsPerDim]:
    """One value, or three or four dequantizations by K = 1, 5, 20."""
    if not table:
        (way,) = ways
        chosen = dataclasses.replace(settings, dequantization=way)
        return [bits_per_dim(model, images, chosen, condition=condition, runner=runner, kept=kept)]
    results: list[BitsPerDim] = []
    for way in ways:
        chosen = dataclasses.replace(settings, dequantization=way)
        try:
            row = bounds(
                model, images, IMPORTANCES, chosen, condition=condition, runner=runner, kept=kept
            )
        except KeyboardInterrupt:
            if not results:
                raise
            return [dataclasses.replace(r, complete=False) for r in results]
        results += row
        if not row[0].complete:
            break
    return results
