r"""The mean of a test set from a few of its images: regression on proxies, and two grids.

Of a population of N images, :math:`n_1` chosen at random have a coarse value :math:`c_i`, and the
first :math:`n_2` of them also a fine one :math:`f_i`. With :math:`g` fitted to the coarse values
by ridge regression on proxies :math:`z_i` that all N images have,

.. math:: \hat\mu = \frac1N\sum_{i \le N} g(z_i) + \frac1{n_1}\sum_{i \le n_1} (c_i - g(z_i))
          + \frac1{n_2}\sum_{i \le n_2} (f_i - c_i).

Every residual is taken from a fit that has not seen its image (cross-fitting), which makes the
estimate unbiased whatever the fit, and keeps the fit from shrinking the error bar.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from idode.likelihood.bits_per_dim import skewness_of_mean, student_interval

__all__ = [
    "Allocation",
    "Estimate",
    "Spread",
    "allocate",
    "estimate_mean",
    "residual_variance",
    "standardised",
]

Vector = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

FOLDS = 64  # at most: beyond, leaving one out and leaving a few out are the same
FEWEST = 6  # samples from which a regression is tried
OUTLIER = 4.0  # standard deviations at which a proxy is clipped: one image must not steer the fit
PENALTIES = 10.0 ** np.arange(-3, 2.5, 0.5)  # of ridge regression, for each sample
CHANCE = 4.0  # over the number of samples: share by which a regression must improve the error
LEAST_FINE = 8  # fine solves that tell the spread of the corrections


@dataclass(frozen=True)
class Spread:
    """Standard deviations over images that decide how many are needed."""

    values: float  # of the values
    residuals: float  # of what the proxies leave
    corrections: float  # of fine minus coarse; 0 where all is fine
    noise: float  # of one value over draws of noise and probes


@dataclass(frozen=True)
class Estimate:
    """The mean of a finite population, estimated from a sample."""

    mean: float
    standard_error: float  # of the mean over this test set
    population_error: float  # of the mean over all images of the kind the test set came from
    degrees: float  # degrees of freedom of the error
    skewness: float  # of the estimate
    correlation: float  # of values and their predictions, each without its own image; 0 if none
    spread: Spread

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the test set's mean."""
        return student_interval(self.mean, self.standard_error, self.degrees, level, self.skewness)


@dataclass(frozen=True)
class _Fit:
    """A ridge regression with an intercept."""

    slope: Vector
    intercept: float
    degrees: float  # effective number of slopes

    def __call__(self, features: Vector) -> Vector:
        return features @ self.slope + self.intercept


def standardised(features: Vector) -> Vector:
    """Columns of mean 0 and variance 1 without outliers; constant or broken ones are left out."""
    kept = []
    for column in np.asarray(features, dtype=np.float64).T:
        spread = float(column.std()) if np.isfinite(column).all() else 0.0
        if spread > 1e-12 * (1 + abs(float(column.mean()))):
            kept.append(np.clip((column - column.mean()) / spread, -OUTLIER, OUTLIER))
    return np.column_stack(kept) if kept else np.zeros((len(features), 0))


def _ridge(features: Vector, values: Vector) -> _Fit:
    """The penalty with the least leave-one-out error; one of them is infinite, a mean alone."""
    n, centre, level = len(values), features.mean(0), float(values.mean())
    plain = _Fit(np.zeros(features.shape[1]), level, 0.0)
    if n < FEWEST - 1 or features.shape[1] == 0:
        return plain
    u, s, vt = np.linalg.svd(features - centre, full_matrices=False)
    shrink = s**2 / (s**2 + n * PENALTIES[:, None])  # (penalties, p)
    y = values - level
    along = u.T @ y
    residuals = y - (shrink * along) @ u.T  # (penalties, n)
    leverage = 1 / n + shrink @ (u**2).T
    press = np.square(residuals / np.maximum(1 - leverage, 1e-9)).mean(1)
    best = int(press.argmin())
    # A gain that chance may have made costs more than it brings.
    sure = 1 - min(0.5, CHANCE / n)
    if press[best] >= sure * float((y**2).mean()) / (1 - 1 / n) ** 2:
        return plain
    inverse = np.divide(shrink[best], s, out=np.zeros_like(s), where=s > 1e-9 * s[0])
    slope = vt.T @ (inverse * along)
    return _Fit(slope, level - float(centre @ slope), float(shrink[best].sum()))


def _cross_fitted(features: Vector, rows: Rows, values: Vector) -> tuple[float, Vector, float]:
    """The mean of the population, the residual of each sample, and the slopes that were fitted.

    A fold is a random sample of the images that its fit has not seen, so its mean residual is
    unbiased for theirs; for images that the fit has seen the values are known.
    """
    population, n = len(features), len(values)
    total, seen = features.mean(0), features[rows]
    residuals, means, degrees = np.empty(n), [], []
    folds = min(n, FOLDS)
    for k in range(folds):
        left_out = np.arange(n) % folds == k
        if folds < 2:
            return float(values.mean()), values - values.mean(), 0.0
        known = ~left_out
        fit = _ridge(seen[known], values[known])
        residuals[left_out] = values[left_out] - fit(seen[left_out])
        everywhere = population * (fit.intercept + float(total @ fit.slope))
        rest = population - int(known.sum())
        unseen = everywhere - float(fit(seen[known]).sum()) + rest * residuals[left_out].mean()
        means.append((float(values[known].sum()) + unseen) / population)
        degrees.append(fit.degrees)
    sizes = [np.count_nonzero(np.arange(n) % folds == k) for k in range(folds)]
    return float(np.average(means, weights=sizes)), residuals, float(np.mean(degrees))


def residual_variance(features: Vector, values: Vector) -> float:
    """Variance of the values that proxies of the same images leave, cross-fitted."""
    return _variance(_cross_fitted(features, np.arange(len(values)), values)[1])


def estimate_mean(
    features: Vector,
    rows: Rows,
    coarse: Vector,
    fine: Vector | None = None,
    noise: float = 0.0,
) -> Estimate:
    """The mean of fine values over a population, and its errors.

    Args:
        features: Proxies of the whole population ``(N, p)``, from :func:`standardised`.
        rows: Places in the population of the sample ``(n1,)``, chosen at random.
        coarse: Their values.
        fine: Better values of the first of them ``(n2,)``; ``None`` where ``coarse`` is final.
        noise: Standard deviation of one value over draws of noise and probes: the part of the
            error that is left when every image is solved.
    """
    population, n1 = len(features), len(rows)
    mean, residuals, slopes = _cross_fitted(features, rows, coarse)
    n2 = n1 if fine is None else len(fine)
    difference = np.zeros(n1) if fine is None else fine - coarse[:n2]
    left, values, corrections = _variance(residuals), _variance(coarse), _variance(difference)
    together = residuals[:n2] + difference if fine is not None else residuals
    if fine is not None and n2 > 2:  # fine residuals: coarse ones, and how corrections go along
        along = float(np.cov(residuals[:n2], difference)[0, 1])
        final = max(left + 2 * along + corrections, corrections)
    else:
        final = _variance(together)
    first = max(0.0, 1 / n1 - 1 / population) * final
    second = max(0.0, 1 / n2 - 1 / n1) * corrections
    always = noise**2 / population
    degrees = _satterthwaite([(first, n1 - 1 - slopes), (second, n2 - 1)], always)
    true = max(0.0, values - noise**2)
    error = first + second + always
    skewed = skewness_of_mean(torch.from_numpy(residuals))
    explained = 0.0 if values == 0 else max(0.0, 1 - left / values)
    return Estimate(
        mean=mean + float(difference.mean()),
        standard_error=math.sqrt(error),
        population_error=math.sqrt(error + true / population),
        degrees=degrees,
        skewness=skewed * (first / error) ** 1.5 if error > 0 else 0.0,
        correlation=math.sqrt(explained),
        spread=Spread(math.sqrt(values), math.sqrt(left), math.sqrt(corrections), noise),
    )


def _variance(values: Vector) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0


def _satterthwaite(parts: list[tuple[float, float]], known: float) -> float:
    """Degrees of freedom of a sum of variances, those of ``known`` being without limit."""
    total = sum(variance for variance, _ in parts) + known
    loose = sum(variance**2 / max(degrees, 0.5) for variance, degrees in parts)
    return total**2 / loose if loose > 0 else 1e9


@dataclass(frozen=True)
class Allocation:
    """How many images to solve on each grid; all fine where ``coarse`` equals ``fine``."""

    coarse: int
    fine: int
    cost: float  # evaluations of what is left to do


def allocate(
    spread: Spread,
    population: int,
    error: float,
    cost_coarse: float,
    cost_fine: float,
    *,
    coarse_done: int = 0,
    fine_done: int = 0,
) -> Allocation:
    r"""The cheapest numbers of images whose standard error is ``error``.

    Of :math:`S_1^2/n_1 + S_2^2/n_2` at the cost :math:`n_1 k_1 + n_2 k_2` the least is where
    :math:`n_j \propto S_j/\sqrt{k_j}`.

    Args:
        spread: Of residuals and corrections.
        population: Images of the test set.
        error: Standard error of its mean.
        cost_coarse: Evaluations of a coarse solve.
        cost_fine: Of a fine one.
        coarse_done: Coarse solves already made, which cost nothing.
        fine_done: Fine solves already made.
    """

    def only_fine(count: int) -> Allocation:
        return Allocation(count, count, max(0, count - fine_done) * cost_fine)

    s1, s2 = max(spread.residuals, 1e-12), spread.corrections
    target = error**2 + (s1**2 - spread.noise**2) / population
    if target <= 0:
        return only_fine(population)
    single = only_fine(min(population, math.ceil(s1**2 / target)))
    if cost_coarse >= cost_fine:
        return single
    share = s1 * math.sqrt(cost_coarse) + s2 * math.sqrt(cost_fine)
    n2 = max(LEAST_FINE, math.ceil(s2 / math.sqrt(cost_fine) * share / target))
    spare = target - s2**2 / n2
    n1 = math.ceil(s1**2 / spare) if spare > 0 else population
    n1 = min(population, max(n1, n2, coarse_done))
    spare = target - s1**2 / n1  # more coarse solves than planned leave more to the fine ones
    if spare > 0:
        n2 = min(n2, max(LEAST_FINE, math.ceil(s2**2 / spare)))
    n2 = min(n1, n2)
    cost = max(0, n1 - coarse_done) * cost_coarse + max(0, n2 - fine_done) * cost_fine
    return Allocation(n1, n2, cost) if cost < single.cost else single
