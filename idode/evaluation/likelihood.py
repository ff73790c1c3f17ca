"""Likelihoods of a data set, batch by batch: stored, resumed and shared by a runner.

The mathematics of a batch is in :mod:`idode.likelihood`; here batches are cut, handed to the
:class:`~idode.evaluation.runner.BatchRunner`, and put together.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from idode.batches import Batch, FittingSize, IndexedBatches, Pixels, check_shape
from idode.diffusion.model import Condition, DiffusionODE
from idode.diffusion.noise_levels import NoiseLevelDistribution
from idode.errors import InputError
from idode.evaluation.kept_calibration import KeptCalibrations
from idode.evaluation.runner import BatchRunner, Codec, fingerprint
from idode.likelihood.bits_per_dim import BitsPerDim, bits_from_draws
from idode.likelihood.calibration import PILOT, SolverCalibration, calibrate_solver
from idode.likelihood.estimator import BatchDraws, LikelihoodSettings, LogWeightEstimator
from idode.likelihood.sde_bound import SDEBound, SDEBoundEstimator
from idode.likelihood.states import state_dtype
from idode.numerics import float32_products
from idode.ode import SOLVERS
from idode.ode.solvers import Solver

__all__ = [
    "DRAWS",
    "bits_per_dim",
    "bounds",
    "condition_identity",
    "find_calibration",
    "fitting_draws",
    "notes_of",
    "sde_bound",
]

CALIBRATION = Codec[SolverCalibration](
    lambda found: {"calibration": found.to_json()},
    lambda record: SolverCalibration.from_json(record["calibration"]),
)
DRAWS = Codec(BatchDraws.to_json, BatchDraws.from_json)
TERMS = Codec[Tensor](
    lambda terms: {"terms": terms.tolist()},
    lambda record: torch.tensor(record["terms"], dtype=torch.float64),
)


def bits_per_dim(
    model: DiffusionODE,
    data: Pixels,
    settings: LikelihoodSettings | None = None,
    *,
    first_index: int = 0,
    dtype: torch.dtype | None = None,
    calibration: SolverCalibration | None = None,
    condition: Condition | None = None,
    runner: BatchRunner | None = None,
    kept: KeptCalibrations | None = None,
) -> BitsPerDim:
    """Upper bound on the bits a dimension of the data costs under the model.

    Args:
        model: The diffusion ODE.
        data: Integers in ``0..levels-1`` ``(N, *)``, or floats for continuous data.
        settings: How, for example ``LikelihoodSettings(n_importance=5)``.
        first_index: Place of the first image in its data set: it seeds the image's noise.
        dtype: Type of the states, by default that of the model; log-densities are float64 always.
        calibration: That of an earlier result, to solve more images of the same kind on the same
            grid; by default the first images are a pilot.
        condition: Keyword arguments of the network, one row for each image.
        runner: Knows batches that are done already and shares the others; one for each model and
            data set.
        kept: Calibrations of earlier evaluations of this model and data.

    Returns:
        Mean, per-image values, and their errors by source. ``Ctrl-C`` returns what is done.
    """
    settings = settings or LikelihoodSettings()
    (result,) = bounds(
        model,
        data,
        [settings.n_importance],
        settings,
        first_index=first_index,
        dtype=dtype,
        calibration=calibration,
        condition=condition,
        runner=runner,
        kept=kept,
    )
    return result


def find_calibration(
    estimator: LogWeightEstimator,
    batches: IndexedBatches,
    depends: Mapping[str, object],
    runner: BatchRunner,
    kept: KeptCalibrations | None = None,
) -> tuple[SolverCalibration, float]:
    """The solver's calibration on the first images, and the seconds it took.

    Args:
        estimator: The model and how it is solved.
        batches: The data set.
        depends: All that the calibration depends on besides the model and the data.
        runner: Knows whether it is done already.
        kept: Calibrations of earlier evaluations, used where they still hold.
    """
    pilot = dataclasses.replace(batches, size=PILOT).batch(0)

    def make(tick: Callable[[int], None]) -> SolverCalibration:
        if kept is None:
            return calibrate_solver(estimator, pilot, tick)
        return kept.checked_or_found(estimator, pilot, tick)

    found: tuple[SolverCalibration, float] = runner.once(
        f"calibrating {estimator.dequantization.name}",
        len(pilot.indices),
        make,
        CALIBRATION,
        fingerprint(depends),
    )
    return found


def fitting_draws(
    estimator: LogWeightEstimator,
    batch: Batch,
    solver: Solver,
    largest_gap: float,
    fitting: FittingSize,
) -> BatchDraws:
    """All draws of a batch, in parts that fit into memory."""
    parts = fitting.each(
        len(batch.indices),
        lambda lo, hi: estimator.draws(batch.part(lo, hi), solver, largest_gap, fitting.most),
    )
    return BatchDraws.joined(list(parts))


def notes_of(estimator: LogWeightEstimator) -> tuple[str, ...]:
    """What a reader of the values should know of dequantization and model."""
    model = estimator.model
    return (*estimator.dequantization.notes(model), *model.path.notes(), *_assumed(model))


@float32_products()
def bounds(
    model: DiffusionODE,
    data: Pixels,
    importances: Sequence[int],
    settings: LikelihoodSettings | None = None,
    *,
    first_index: int = 0,
    dtype: torch.dtype | None = None,
    calibration: SolverCalibration | None = None,
    condition: Condition | None = None,
    runner: BatchRunner | None = None,
    kept: KeptCalibrations | None = None,
) -> list[BitsPerDim]:
    """Bounds for several K from the same draws, which makes them comparable and cheap.

    The largest K decides the number of draws; a smaller one averages over groups of them.

    Args:
        model: As for :func:`bits_per_dim`, and so are the arguments not named here.
        data: Data ``(N, *)``.
        importances: The values of K; each must divide the largest.
        settings: How; its ``n_importance`` is not used.
        first_index: Place of the first image in its data set.
        dtype: Type of the states.
        calibration: That of an earlier result.
        condition: Keyword arguments of the network.
        runner: Knows batches that are done already.
        kept: Calibrations of earlier evaluations.
    """
    most = max(importances)
    if any(k < 1 or most % k for k in importances):
        raise InputError(f"each K must divide the largest, got {list(importances)}")
    _check_data(model, data)
    dtype = state_dtype(model, dtype)
    settings = dataclasses.replace(settings or LikelihoodSettings(), n_importance=most)
    estimator = LogWeightEstimator(model, settings.for_model(model), dtype)
    settings, runner = estimator.settings, runner or BatchRunner()
    batches = IndexedBatches(
        data, settings.batch_size, first_index, model.device, dict(condition or {})
    )
    depends: dict[str, object] = {
        "settings": settings.to_json(),
        "first": first_index,
        "dtype": str(dtype),
        **condition_identity(condition),
    }
    seconds = 0.0
    if calibration is None:
        calibration, seconds = find_calibration(estimator, batches, depends, runner, kept)
    solver, largest_gap = calibration.solver, calibration.largest_gap
    # Of the calibration only what a solve depends on: its errors may be better known later.
    depends["solver"] = [SOLVERS.to_json(solver), largest_gap]
    fitting = FittingSize(settings.batch_size)

    done = runner.each(
        f"ODE {estimator.dequantization.name}",
        batches.sizes,
        lambda number: fitting_draws(
            estimator, batches.batch(number), solver, largest_gap, fitting
        ),
        DRAWS,
        fingerprint(depends),
    )
    if not done.values:
        raise KeyboardInterrupt
    draws = BatchDraws.joined(done.values)
    return [
        bits_from_draws(
            draws,
            k,
            settings,
            calibration,
            math.prod(data.shape[1:]),
            seconds=seconds + done.seconds,
            complete=done.complete,
            notes=notes_of(estimator),
        )
        for k in importances
    ]


@float32_products()
def sde_bound(
    model: DiffusionODE,
    data: Pixels,
    *,
    draws: int = 16,
    distribution: NoiseLevelDistribution | None = None,
    seed: int = 0,
    first_index: int = 0,
    batch_size: int = 128,
    dtype: torch.dtype | None = None,
    condition: Condition | None = None,
    runner: BatchRunner | None = None,
) -> SDEBound:
    """The variational bound of the diffusion SDE on a data set.

    Args:
        model: Its network as a noise predictor, whatever it predicts.
        data: Integers in ``0..levels-1`` ``(N, *)``, a tensor or an array.
        draws: Noise levels for each image, an even number.
        distribution: Of the noise levels; by default the designed one.
        seed: Seed of noise levels and noise.
        first_index: Place of the first image in its data set.
        batch_size: Images evaluated together.
        dtype: Type of the states, by default that of the model.
        condition: Keyword arguments of the network, one row for each image.
        runner: Knows batches that are done already and shares the others.
    """
    _check_data(model, data)
    dtype = state_dtype(model, dtype)
    estimator = SDEBoundEstimator(model, draws, distribution, seed, dtype)
    batches = IndexedBatches(data, batch_size, first_index, model.device, dict(condition or {}))
    depends = {
        **estimator.identity(),
        "first": first_index,
        "batch_size": batch_size,
        **condition_identity(condition),
    }
    fitting = FittingSize(batch_size)

    def make(number: int) -> Tensor:
        batch = batches.batch(number)
        parts = fitting.each(
            len(batch.indices), lambda lo, hi: estimator.terms(batch.part(lo, hi))
        )
        return torch.cat(list(parts), dim=1)

    done = (runner or BatchRunner()).each(
        "SDE bound",
        batches.sizes,
        make,
        TERMS,
        fingerprint(depends),
    )
    if not done.complete:
        raise KeyboardInterrupt
    return estimator.bound(done.values, math.prod(data.shape[1:]), done.seconds)


def condition_identity(condition: Condition | None) -> dict[str, object]:
    """A hash of each part: batches stored for other labels are not taken for these."""
    parts = {}
    for name, value in (condition or {}).items():
        content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        digest = hashlib.sha256(content.tobytes()).hexdigest()
        parts[name] = f"{value.dtype} {tuple(value.shape)} {digest}"
    return {"condition": parts} if parts else {}


def _check_data(model: DiffusionODE, data: Pixels) -> None:
    if len(data) == 0:
        raise InputError("there are no images to evaluate: pass at least one")
    check_shape(data, model.shape)


def _assumed(model: DiffusionODE) -> tuple[str, ...]:
    """What was assumed of a network of another library: the number rests on it."""
    return (model.description,) if model.description else ()
