r"""Bits per dimension, with an error bar, from the log-weights of many draws.

The log-weights of an image become bounds: their mean, or the logarithm of the mean of K weights.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from idode.errors import InputError
from idode.likelihood.calibration import SolverCalibration
from idode.likelihood.estimator import BatchDraws, LikelihoodSettings
from idode.likelihood.notes import early_end
from idode.likelihood.prior import prior_cost
from idode.numerics import log_mean_exp, nats_to_bits
from idode.ode.calibration import MOST_STEPS

__all__ = ["BitsPerDim", "Errors", "bits_from_draws", "skewness_of_mean", "student_interval"]

MOST_SKEWED = 2.0  # skewness of single values that intervals are corrected for


@dataclass(frozen=True)
class Errors:
    """Standard error of the mean in bits/dim, by source; the last two are likely biases."""

    images: float  # other test images of the same kind
    dequantization: float  # other draws of the noise
    probe: float  # other probes
    solver: float  # mean over the pilot against a finer grid, signed; NaN if not estimated
    prior: float = 0.0  # for ending the paths before all is noise, measured on the images

    @property
    def solver_text(self) -> str:
        """The solver's error for people: fixed steps and adaptive solvers have no estimate."""
        return "unknown" if math.isnan(self.solver) else f"{self.solver:+.4f}"

    def __str__(self) -> str:
        return (
            f"images {self.images:.4f}, dequantization {self.dequantization:.4f}, "
            f"probe {self.probe:.4f}, solver {self.solver_text}, prior {self.prior:.4f}"
        )


def student_interval(
    mean: float,
    standard_error: float,
    degrees: float,
    level: float = 0.95,
    skewness: float = 0.0,
) -> tuple[float, float]:
    r"""Confidence interval by Student's t, corrected for skewness by Hall's transformation.

    Few samples make it wider than the normal one. Where values are skewed the t-statistic is too,
    and :math:`g(t) = t + k(t^2/3 + 1/6) + k^2t^3/27` is not, to the order of the samples (Hall,
    1992). Without a degree of freedom the spread is unknown, and the interval infinite.

    >>> [round(end, 3) for end in student_interval(1.0, 0.1, 7)]
    [0.764, 1.236]

    Args:
        mean: The estimate.
        standard_error: Its standard error.
        degrees: Degrees of freedom of the standard error: samples minus what was fitted to them.
        level: Share of such intervals that cover the truth.
        skewness: Of the estimate, from :func:`skewness_of_mean`; the ``k`` above.
    """
    from scipy.special import stdtrit

    if not 0 < level < 1:
        raise InputError(f"the level of an interval lies between 0 and 1, got {level}")
    if degrees < 1:
        return -math.inf, math.inf
    quantile = float(stdtrit(degrees, (1 + level) / 2))
    low, high = (_unskewed(sign * quantile, skewness) for sign in (1, -1))
    return mean - low * standard_error, mean - high * standard_error


def _unskewed(t: float, k: float) -> float:
    """The inverse of Hall's transformation."""
    if abs(k) < 1e-6:
        return t
    return 3 / k * (float(np.cbrt(1 + k * (t - k / 6))) - 1)


def skewness_of_mean(values: Tensor) -> float:
    """Skewness of the mean of values ``(n,)``: theirs, clipped, over the root of n."""
    apart = values.double() - values.double().mean()
    spread = float(apart.square().mean())
    if len(values) < 3 or spread == 0:
        return 0.0
    skewness = float((apart**3).mean()) / (spread * math.sqrt(spread))
    return min(MOST_SKEWED, max(-MOST_SKEWED, skewness)) / math.sqrt(len(values))


@dataclass(frozen=True)
class BitsPerDim:
    """A likelihood, what it cost and how far it can be trusted."""

    mean: float
    standard_error: float  # images, dequantization and probes together
    errors: Errors
    per_image: Tensor  # (N,) float64
    solver_error: Tensor  # (N,) likely size of the solver's error of each image
    nfe: float  # mean number of evaluations for one solve of one image
    seconds: float  # computing by all processes, shared by the bounds made from it
    complete: bool  # False when interrupted: per_image holds the images that were done
    notes: tuple[str, ...]
    settings: LikelihoodSettings
    groups: int  # independent bounds averaged for an image: all its draws over K
    calibration: SolverCalibration  # pass it on to solve more images with the same solver

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval for the mean over all images of this kind.

        A single image has no spread to tell the images' part from: its interval is infinite.
        """
        degrees, skewness = len(self.per_image) - 1, skewness_of_mean(self.per_image)
        return student_interval(self.mean, self.standard_error, degrees, level, skewness)

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.standard_error:.4f} bits/dim"


def bits_from_draws(
    draws: BatchDraws,
    k: int,
    settings: LikelihoodSettings,
    calibration: SolverCalibration,
    dim: int,
    *,
    seconds: float = 0.0,
    complete: bool = True,
    notes: tuple[str, ...] = (),
) -> BitsPerDim:
    """The bound with K = ``k`` and its errors.

    Args:
        draws: Log-weights of all images, ``repeats * n_importance`` of each.
        k: Draws inside the logarithm, a divisor of ``n_importance``; the rest is averaged.
        settings: How the draws were made.
        calibration: Of the solver that made them.
        dim: Dimensions of a sample.
        seconds: Spent on the draws.
        complete: Whether all images are there.
        notes: What else a reader must know.
    """
    s, n = settings, draws.log_w.shape[1]
    groups = draws.log_w.reshape(-1, k, n)
    per_image = -torch.stack([nats_to_bits(log_mean_exp(g), dim) for g in groups]).mean(0)
    # The share of a probe's variance that a new draw brings along.
    fresh = float(s.repeats == len(groups)) / max(1, s.n_probes)
    noise = float(_noise_variance(groups, calibration, dim, fresh).mean()) / n
    probe = calibration.probe_variance / (max(1, s.n_probes) * s.repeats) / n
    total = float(per_image.var()) / n if n > 1 else noise + probe
    prior = prior_cost(draws.prior_mismatch, dim)
    found = [*notes, *_notes(s, k, calibration, dim), *early_end(prior)]
    if total < noise + probe:
        found.append(
            f"noise and probe alone make ± {math.sqrt(noise + probe):.4f}, more than {n} images "
            "scatter: too few to tell the images' own part, and ± may be too small"
        )
    if not complete:
        found.append(f"interrupted after {n} images")
    return BitsPerDim(
        mean=float(per_image.mean()),
        standard_error=math.sqrt(total),
        errors=Errors(
            images=math.sqrt(max(0.0, total - noise - probe)),
            dequantization=math.sqrt(noise),
            probe=math.sqrt(probe),
            solver=calibration.solver_mean,
            prior=prior,
        ),
        per_image=per_image,
        solver_error=calibration.error_per_gap * draws.corrector_gap,
        nfe=draws.nfe,
        seconds=seconds,
        complete=complete,
        notes=tuple(found),
        settings=dataclasses.replace(s, n_importance=k),
        groups=len(groups),
        calibration=calibration,
    )


def _noise_variance(
    log_w: Tensor, calibration: SolverCalibration, dim: int, fresh: float
) -> Tensor:
    """Variance over draws of the mean of the groups' bounds, ``(B,)``; groups ``(G, K, B)``."""
    groups, k, _ = log_w.shape
    if k == 1 and groups == 1:
        return torch.full(log_w.shape[2:], calibration.noise_variance, dtype=torch.float64)
    if k == 1:
        spread = nats_to_bits(log_w[:, 0], dim).var(0)
        return (spread - fresh * calibration.probe_variance).clamp_min(0) / groups
    # The delta method for the logarithm of a mean of K weights.
    share = torch.softmax(log_w, dim=1)
    relative = (share - 1 / k).square().sum(1) * k / (k - 1)
    return relative.mean(0) / groups / (dim * math.log(2)) ** 2


def _notes(s: LikelihoodSettings, k: int, calibration: SolverCalibration, dim: int) -> list[str]:
    """What a reader must know about a number before using it."""
    notes = []
    allowed = getattr(s.solver, "tolerance", math.inf)
    if calibration.solver_rms > allowed:
        notes.append(
            f"the solver's error is {calibration.solver_rms:.4f} bits/dim rms for an image, not "
            f"the {allowed:g} asked for: at most {MOST_STEPS} steps are tried, and fewer where "
            "the field is so rough that more gain little; solver dopri5 goes on at any price"
        )
    if k > 1 and s.n_probes:
        gain = calibration.interaction / s.n_probes / 2 * dim * math.log(2)
        notes.append(
            f"K = {k}: the noise of {s.n_probes} probe(s) inside the logarithm may make the value "
            f"too good by up to {gain:.4f} bits/dim; only the exact divergence gives a bound"
        )
    return notes
