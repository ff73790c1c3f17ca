"""Bits per dimension of a test set to a precision that is asked for, from few of its images.

Images are chosen at random by seed. A pilot of them, solved on a coarse and on the fine grid,
shows how well proxies predict a value and how far the grids differ; from that follows how many
images each grid needs (:mod:`idode.evaluation.multilevel`), and the work goes on until the
standard error of the test set's mean is as asked, or all images are solved.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from idode.batches import IndexedBatches, Pixels
from idode.diffusion.model import DiffusionODE
from idode.errors import InputError
from idode.evaluation.coder_proxies import CODERS, coder_size, missing_coders, useful_coders
from idode.evaluation.kept_calibration import KeptCalibrations
from idode.evaluation.levels import ChosenImages, Level
from idode.evaluation.likelihood import find_calibration
from idode.evaluation.multilevel import (
    Allocation,
    Estimate,
    Spread,
    allocate,
)
from idode.evaluation.runner import BatchRunner
from idode.evaluation.sampled import SampledBitsPerDim, Sampling
from idode.likelihood.bits_per_dim import Errors
from idode.likelihood.calibration import PILOT
from idode.likelihood.estimator import BatchDraws, LikelihoodSettings, LogWeightEstimator

__all__ = ["sampled_bits_per_dim"]

FIRST = 32  # coarse solves of the pilot
FINER, MIDDLE, COARSER = 0.75, 0.55, 0.35  # shares of the fine steps that are tried
WORTH = 6  # pilots that must be left to do for another grid to be tried
SAFETY = 0.99  # of the error asked for is planned with: the spreads are estimates
GROWTH = 4  # times as many images at most, before the plan is made again
PART = 0.5  # of the images that a plan asks for, before it is made again from better estimates
ROUNDS = 16
OPERATIONS, RATE = 6, 1e11  # for each weight and pixel of an evaluation; in a second, nominally


def sampled_bits_per_dim(
    model: DiffusionODE,
    data: Pixels,
    precision: float,
    settings: LikelihoodSettings | None = None,
    *,
    runner: BatchRunner | None = None,
    kept: KeptCalibrations | None = None,
) -> SampledBitsPerDim:
    """Bits/dim of a data set to a standard error of ``precision``, from as few images as it takes.

    Args:
        model: The diffusion ODE.
        data: The whole test set ``(N, *)``.
        precision: Standard error of its mean, in bits/dim.
        settings: How each image is solved.
        runner: Knows batches that are done already and shares the others.
        kept: Calibrations of earlier evaluations of this model and data.

    Returns:
        The estimate, its errors, and what was done. ``Ctrl-C`` returns what is done.
    """
    if not 0 < precision < math.inf:
        raise InputError(f"the precision must be a positive number of bits/dim, got {precision}")
    estimator = LogWeightEstimator(model, (settings or LikelihoodSettings()).for_model(model))
    runner = runner or BatchRunner()
    depends = {"settings": estimator.settings.to_json(), "first": 0, "dtype": str(estimator.dtype)}
    batches = IndexedBatches(data, estimator.settings.batch_size, 0, model.device)
    calibration, seconds = find_calibration(estimator, batches, depends, runner, kept)
    chosen = ChosenImages(estimator, data, runner, calibration, depends)
    fine = Level(calibration.solver, calibration.largest_gap)
    chosen.extend(fine, PILOT)
    coarse, levels = _coarse_level(chosen, fine, precision)
    notes = _add_coders(chosen, coarse, fine, precision)
    for _ in range(ROUNDS):
        found = chosen.estimate(coarse, fine)
        done = fine.count >= len(data)
        if found.standard_error <= precision or done or not chosen.complete:
            break
        plan = _plan(chosen, coarse, fine, found.spread, precision)
        if plan.coarse == plan.fine:  # also where all are solved: corrections then gain nothing
            coarse = fine
        more = max(PILOT, math.ceil(PART * (plan.coarse - coarse.count)))
        chosen.extend(coarse, min(coarse.count + more, GROWTH * coarse.count))
        more = max(1, math.ceil(PART * (plan.fine - fine.count)))
        chosen.extend(fine, min(fine.count + more, GROWTH * fine.count))
    return _result(chosen, coarse, fine, levels, precision, seconds, notes)


def _coarse_level(
    chosen: ChosenImages, fine: Level, precision: float
) -> tuple[Level, list[Level]]:
    """The coarse grid with the cheapest plan, solved for the pilot; and all that were tried.

    One of them is tried first; a finer or a coarser one only where much is left to do.
    """
    if not fine.parts:
        raise KeyboardInterrupt
    middle = _tried(chosen, fine, MIDDLE, FIRST)
    if middle is None:
        chosen.extend(fine, FIRST)
        return fine, [fine]
    found = chosen.estimate(middle, fine)
    plan = _plan(chosen, middle, fine, found.spread, precision)
    levels, best = [fine, middle], middle
    if plan.cost > WORTH * FIRST * middle.cost:
        corrections = plan.fine * fine.cost > plan.coarse * middle.cost / 2
        other = _tried(chosen, fine, FINER if corrections else COARSER, PILOT)
        if other is not None:
            levels.append(other)
            apart = chosen.result(fine).per_image[: other.count] - chosen.result(other).per_image
            spread = dataclasses.replace(found.spread, corrections=float(apart.std()))
            again = _plan(chosen, other, fine, spread, precision)
            if again.cost < plan.cost:
                best, plan = other, again
                chosen.extend(other, FIRST)
    if plan.cost > 0 and plan.coarse == plan.fine:
        chosen.extend(fine, FIRST)
        best = fine
    return best, levels


def _tried(chosen: ChosenImages, fine: Level, share: float, count: int) -> Level | None:
    """A grid with a share of the steps, solved for so many images; ``None`` where there is none.

    A test set that the pilot nearly covers is solved on the fine grid at once.
    """
    solver = fine.solver.coarsened(share) if len(chosen.data) > 2 * PILOT else None
    if solver is None:
        return None
    level = Level(solver, math.inf)
    chosen.extend(level, count)
    return level if level.count >= PILOT else None


def _plan(
    chosen: ChosenImages, coarse: Level, fine: Level, spread: Spread, precision: float
) -> Allocation:
    cost = fine.cost if coarse is fine else coarse.cost
    done = {"coarse_done": coarse.count, "fine_done": fine.count}
    return allocate(spread, len(chosen.data), SAFETY * precision, cost, fine.cost, **done)


def _add_coders(chosen: ChosenImages, coarse: Level, fine: Level, precision: float) -> list[str]:
    """Add the file sizes that pay to the proxies; which coders are missing."""
    images = np.asarray(chosen.data)
    missing = missing_coders(images)
    if len(missing) == len(CODERS):
        return []
    spread = chosen.estimate(coarse, fine).spread
    plan = _plan(chosen, coarse, fine, spread, precision)
    weights = sum(p.numel() for p in chosen.estimator.model.parameters())
    pixels = math.prod(images.shape[2:])
    seconds = plan.cost * weights * pixels * OPERATIONS / RATE
    rows = chosen.order[: coarse.count]
    values = chosen.result(coarse).per_image.numpy()
    for name in useful_coders(images[rows], chosen.raw[rows], values, seconds, len(images)):
        chosen.raw = np.column_stack([chosen.raw, coder_size(name, images)])
        chosen.names.append(name)
    return [f"{name} is not among the proxies: {why}" for name, why in missing.items()]


def _result(
    chosen: ChosenImages,
    coarse: Level,
    fine: Level,
    levels: list[Level],
    precision: float,
    seconds: float,
    notes: list[str],
) -> SampledBitsPerDim:
    """The estimate with all that was done."""
    found, calibration = chosen.estimate(coarse, fine), chosen.calibration
    low, high = chosen.result(coarse), chosen.result(fine)
    n1, n2 = coarse.count, min(coarse.count, fine.count)
    values, solver_error = low.per_image.clone(), low.solver_error.clone()
    if coarse is not fine:
        values += float((high.per_image[:n2] - low.per_image[:n2]).mean())
        solver_error[:] = found.spread.corrections
    values[:n2], solver_error[:n2] = high.per_image[:n2], high.solver_error[:n2]
    drawn = n1 * low.errors.dequantization**2, n1 * low.errors.probe**2
    total, size = found.standard_error**2, len(chosen.data)
    # Noise and probes of the solved images are part of what the residuals scatter by.
    noise, probe = (min(total, variance / n1) for variance in drawn)
    evaluations = sum(level.evaluations for level in levels) + calibration.nfe * min(PILOT, size)
    sampling = Sampling(
        images=size,
        coarse=0 if coarse is fine else n1,
        fine=fine.count,
        nfe_coarse=0.0 if coarse is fine else BatchDraws.joined(coarse.parts).nfe,
        nfe_fine=high.nfe,
        proxies=tuple(chosen.names),
        correlation=found.correlation,
        spread=found.spread,
        evaluations=evaluations,
        evaluations_of_all=fine.cost * size,
        precision=precision,
    )
    return SampledBitsPerDim(
        mean=found.mean,
        standard_error=found.standard_error,
        errors=Errors(
            images=math.sqrt(max(0.0, total - noise - probe)),
            dequantization=math.sqrt(noise),
            probe=math.sqrt(probe),
            solver=calibration.solver_mean,
            prior=high.errors.prior,
        ),
        per_image=values,
        solver_error=solver_error,
        nfe=evaluations / n1,
        seconds=seconds + sum(level.seconds for level in levels),
        complete=chosen.complete,
        # Of the few on the fine grid alone, their own spread says nothing.
        notes=(
            *(note for note in high.notes if not note.startswith("noise and probe alone")),
            *notes,
            *_shortfall(found, precision, fine, chosen),
        ),
        settings=chosen.estimator.settings,
        groups=high.groups,
        calibration=calibration,
        population_error=found.population_error,
        degrees=found.degrees,
        skewness=found.skewness,
        indices=tuple(chosen.order[:n1].tolist()),
        sampling=sampling,
    )


def _shortfall(found: Estimate, precision: float, fine: Level, chosen: ChosenImages) -> list[str]:
    """Why the precision was not reached, if it was not."""
    if not chosen.complete:
        return [f"interrupted before the standard error was {precision:g}"]
    if found.standard_error <= precision:
        return []
    if fine.count >= len(chosen.data):
        return [
            f"all {len(chosen.data)} images were solved: noise and probes alone leave ± "
            f"{found.standard_error:.4f}, more than {precision:g}; more probes or repeats help"
        ]
    return [f"the standard error is {found.standard_error:.4f}, not {precision:g}"]
