"""``DiffusionOutlierDetector``: unusual rows of a table, or unusual images, for scikit-learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from idode.detection.calibrate import fit_detector
from idode.detection.images import Pixels, check_model, read_images
from idode.detection.statistics import measure
from idode.diffusion.model import DiffusionODE
from idode.errors import InputError
from idode.runs.run import load
from idode.sklearn.columns import Matrix
from idode.sklearn.density import DiffusionDensity

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DiffusionOutlierDetector"]


class DiffusionOutlierDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """Outliers of a table by its density, or of images by a trained model.

    Without a model, ``X`` is a table ``(n, d)``, and its density is learned by
    :class:`DiffusionDensity`. With one, ``X`` are images ``(n, C, H, W)``, or their pixels in
    rows ``(n, C * H * W)``; the statistics of the known images given to ``fit`` are learned, and
    the model stays as it is.

    Args:
        model: A run folder, ``pretrained:NAME`` or a model of images; ``None`` for tables.
        contamination: Share of the rows given to ``fit`` that ``predict`` calls outliers; with a
            model, of new images like them.
        max_steps: Of training, for tables; see :class:`DiffusionDensity`.
        random_state: Seed of everything random.

    Attributes:
        offset_: The score between outliers and the rest: the ``contamination`` quantile of the
            scores of the rows given to ``fit``; with a model, of the half of the images that the
            density of the statistics was not fitted to.
        n_features_in_: Number of columns, or of channels.
    """

    def __init__(
        self,
        model: Any = None,  # noqa: ANN401
        *,
        contamination: float = 0.1,
        max_steps: int = 3000,
        random_state: Any = 0,  # noqa: ANN401
    ) -> None:
        self.model = model
        self.contamination = contamination
        self.max_steps = max_steps
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Learn what is usual; ``y`` is ignored."""
        share: object = self.contamination  # such as "auto", which other detectors allow
        if not (isinstance(share, int | float | np.floating) and 0 < share <= 0.5):
            raise InputError(
                f"contamination: must be a number above 0 and at most 0.5, got {share!r}"
            )
        if self.model is None:
            x = validate_data(self, X, dtype=np.float64, ensure_min_samples=3, allow_nd=True)
            _check_table(x)
            density = DiffusionDensity(max_steps=self.max_steps, random_state=self.random_state)
            self.fitted_: Any = _Table(density.fit(x))
            scores = self.fitted_.score_samples(x)
        else:
            x = validate_data(self, X, dtype=None, ensure_min_samples=2, allow_nd=True)
            model = _opened(self.model)
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            detector = fit_detector(model, _images(x, model), seed=seed)
            self.fitted_ = _Images(model, detector)
            scores = -detector.known  # of images that nothing was fitted to
        self.offset_ = float(np.quantile(scores, self.contamination))
        return self

    def score_samples(self, X: ArrayLike) -> Matrix:
        """Log-density of each row or image, up to a constant for images; lower is more unusual."""
        check_is_fitted(self)
        kind = np.float64 if self.model is None else None
        x = validate_data(self, X, dtype=kind, reset=False, allow_nd=True)
        found: Matrix = self.fitted_.score_samples(x)
        return found

    def decision_function(self, X: ArrayLike) -> Matrix:
        """Scores above the offset; negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """1 for usual rows, -1 for outliers."""
        return np.where(self.decision_function(X) >= 0, 1, -1)


class _Table:
    """Rows of a table by their density."""

    def __init__(self, density: DiffusionDensity) -> None:
        self.density = density

    def score_samples(self, x: Matrix) -> Matrix:
        _check_table(x)
        return self.density.score_samples(x)


class _Images:
    """Images by the statistics of a model."""

    def __init__(self, model: DiffusionODE, detector: Any) -> None:  # noqa: ANN401
        self.model, self.detector = model, detector

    def score_samples(self, x: NDArray[Any]) -> Matrix:
        values = measure(self.model, _images(x, self.model), self.detector.levels)
        return np.asarray(-self.detector.normal.score(values))


def _check_table(x: NDArray[Any]) -> None:
    if x.ndim != 2:
        raise InputError(
            f"got an array of shape {x.shape}: tables are (n, d); for images pass a trained "
            "model, such as model='pretrained:cifar10-small' or a run folder"
        )


def _opened(model: Any) -> DiffusionODE:  # noqa: ANN401
    found = model if isinstance(model, DiffusionODE) else load(model, device="cpu")
    check_model(found)
    return found


def _images(x: NDArray[Any], model: DiffusionODE) -> Pixels:
    """Rows of pixels as images, checked against the model."""
    shape = check_model(model)
    if x.ndim == 2 and x.shape[1] == int(np.prod(shape)):
        x = x.reshape(len(x), *shape)
    if x.dtype.kind == "f" and np.isfinite(x).all() and (x == np.round(x)).all():
        x = x.astype(np.int64)
    return read_images(x, model).pixels
