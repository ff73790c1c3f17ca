"""A Gaussian mixture of whitened rows: what the network of a density starts from.

The number of components, and how far their covariances are drawn to the common one, are chosen by
cross-validated likelihood; of many rows one part is held out instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from idode.diffusion import exact
from idode.diffusion.schedules import VariancePreserving
from idode.sklearn.columns import Matrix

__all__ = ["choose_mixture", "fit_mixture"]

COMPONENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SHRINKAGE = (0.0, 0.1, 0.3, 0.6, 1.0)
ROWS = 10_000  # of which the choice is made
WORK = 2e7  # values in a fit, rows times squared columns, above which one part is held out
REGULARISATION = 1e-6  # scikit-learn's
PATIENCE = 2  # numbers of components without an improvement


def choose_mixture(z: Matrix, seed: int) -> tuple[int, float]:
    """Components and shrinkage with the best likelihood of rows left out.

    Args:
        z: Whitened rows ``(n, d)``.
        seed: Seed of the folds and of the fits.
    """
    rng = np.random.default_rng(seed)
    z = z[rng.permutation(len(z))[:ROWS]]
    folds = [np.arange(len(z)) % _count(z) == k for k in range(_count(z))]
    folds = folds[:1] if len(z) * z.shape[1] ** 2 > WORK else folds
    best, chosen, waited = -np.inf, (1, 0.0), 0
    for count in COMPONENTS:
        if count > 1 and count * 8 > len(z):
            break
        found = [_held_out(z[~fold], z[fold], count, seed) for fold in folds]
        values = np.mean(found, axis=0)
        if values.max() > best:
            best, waited = float(values.max()), 0
            chosen = count, SHRINKAGE[int(values.argmax())]
        else:
            waited += 1
        if waited == PATIENCE:
            break
    return chosen


def _count(z: Matrix) -> int:
    """Folds: more where rows are few."""
    return min(len(z), 5 if len(z) < 1000 else 3)


def _held_out(fitted: Matrix, left: Matrix, count: int, seed: int) -> list[float]:
    """Mean log-likelihood of the rows left out, for each shrinkage."""
    x = torch.from_numpy(left)
    rows = _mixtures(fitted, count, SHRINKAGE, seed)
    return [float(_log_prob(m, x).mean()) for m in rows]


def fit_mixture(z: Matrix, count: int, shrinkage: float, seed: int) -> exact.Mixture:
    """The mixture of rows ``(n, d)``."""
    return next(_mixtures(z, count, (shrinkage,), seed))


def _mixtures(
    z: Matrix, count: int, shrinkage: tuple[float, ...], seed: int
) -> Iterator[exact.Mixture]:
    model = GaussianMixture(count, reg_covar=REGULARISATION, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(z)
    common = np.einsum("m,mij->ij", model.weights_, model.covariances_)
    for share in shrinkage:
        yield exact.mixture(
            torch.from_numpy(np.maximum(model.weights_, 1e-12)),
            torch.from_numpy(model.means_),
            torch.from_numpy((1 - share) * model.covariances_ + share * common),
        )


def _log_prob(mixture: exact.Mixture, x: torch.Tensor) -> torch.Tensor:
    clean = torch.tensor(-40.0, dtype=torch.float64)
    return mixture.log_prob(x, clean, VariancePreserving())
