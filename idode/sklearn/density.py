"""``DiffusionDensity``: the density of a table by a diffusion ODE, as a scikit-learn estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from idode.errors import InputError
from idode.sklearn.columns import Matrix, fit_columns
from idode.sklearn.fitted import Corrected, Plain, corrected
from idode.sklearn.mixture import choose_mixture, fit_mixture
from idode.sklearn.residual import Training, train_residual

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DiffusionDensity"]

LEAST_ROWS = 60  # below which a network has nothing to learn from


class DiffusionDensity(DensityMixin, BaseEstimator):  # type: ignore[misc]
    """Density of the rows of a table.

    Columns are standardised, bent to remove skewness and whitened; a Gaussian mixture chosen by
    cross-validation is turned into its diffusion; and a network learns what the mixture misses,
    as long as held-out rows profit. The log-density is that of the diffusion ODE, in the
    user's units: the log-Jacobian of all maps is added back.

    Args:
        width: Units of the network.
        depth: Its residual blocks.
        max_steps: Of its training, 0 for none; it ends earlier where held-out rows stop
            improving.
        validation_fraction: Share of the rows held out for that.
        random_state: Seed of everything random.

    Attributes:
        columns_: The map of the columns.
        density_: The density of the mapped columns.
        uses_network_: Whether the network improved on the mixture.
        n_features_in_: Number of columns.
    """

    def __init__(
        self,
        *,
        width: int = 64,
        depth: int = 2,
        max_steps: int = 3000,
        validation_fraction: float = 0.15,
        random_state: Any = 0,  # noqa: ANN401
    ) -> None:
        self.width = width
        self.depth = depth
        self.max_steps = max_steps
        self.validation_fraction = validation_fraction
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Fit the density of the rows of ``X`` ``(n, d)``; ``y`` is ignored."""
        # Two rows and one held out, by which the mixture is chosen.
        x = validate_data(self, X, dtype=np.float64, ensure_min_samples=3)
        _check_columns(x, getattr(self, "feature_names_in_", None))
        if not 0 < self.validation_fraction < 1:
            raise InputError(
                f"validation_fraction: must be between 0 and 1, got {self.validation_fraction}"
            )
        rng = check_random_state(self.random_state)
        seed = int(rng.randint(2**31 - 1))
        self.columns_ = fit_columns(x)
        z, _ = self.columns_.forward(x)
        count, shrinkage = choose_mixture(z, seed)
        held = np.zeros(len(z), dtype=bool)
        held[rng.permutation(len(z))[: max(1, round(self.validation_fraction * len(z)))]] = True
        network = None
        if self.max_steps and len(z) >= LEAST_ROWS:
            if (~held).sum() < max(2, count):
                raise InputError(
                    f"validation_fraction={self.validation_fraction} leaves {(~held).sum()} of "
                    f"{len(z)} rows to fit to: give a smaller one"
                )
            network = self._fit_network(z[~held], z[held], count, shrinkage, seed)
        self.uses_network_ = network is not None
        # A mixture alone needs no rows held out.
        self.density_ = network or Plain(fit_mixture(z, count, shrinkage, seed))
        return self

    def _fit_network(
        self, rows: Matrix, held: Matrix, count: int, shrinkage: float, seed: int
    ) -> Corrected | None:
        """The mixture with a network, if held-out rows gain more than the error of their gain.

        The alternative, a mixture of all rows, costs less to evaluate and has seen more of them.
        """
        mixture = fit_mixture(rows, count, shrinkage, seed)
        how = Training(self.width, self.depth, self.max_steps, seed=seed)
        first, second = (torch.from_numpy(part).float() for part in (rows, held))
        net = train_residual(mixture, first, second, how)
        if net is None:
            return None
        found = corrected(mixture, net, held)
        gain = found.log_prob(held) - Plain(mixture).log_prob(held)
        return found if gain.mean() > gain.std() / len(gain) ** 0.5 else None

    def score_samples(self, X: ArrayLike) -> Matrix:
        """Log-density of each row in nats, ``(n,)``."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, reset=False)
        z, log_det = self.columns_.forward(x)
        return np.asarray(self.density_.log_prob(z) + log_det)

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Mean log-density of the rows, as of ``GaussianMixture``; ``y`` is ignored."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Matrix:  # noqa: ANN401
        """Draw rows ``(n_samples, d)``."""
        check_is_fitted(self)
        if n_samples < 1:
            raise InputError(f"n_samples: must be at least 1, got {n_samples}")
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return self.columns_.backward(self.density_.sample(n_samples, seed))


def _check_columns(x: Matrix, names: Any) -> None:  # noqa: ANN401
    """Refuse columns that have no density."""
    constant = np.flatnonzero(x.std(axis=0) <= 1e-12 * np.maximum(1.0, np.abs(x).max(axis=0)))
    if len(constant):
        first = int(constant[0])
        name = f"{first}" if names is None else f"{first} ({names[first]})"
        raise InputError(
            f"column {name} has the same value in all {len(x)} rows (n_samples={len(x)}): a "
            "constant has no density, drop the column"
        )
