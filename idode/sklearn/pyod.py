"""``PyODDetector``: the same detector by the conventions of PyOD, which is not needed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erf
from scipy.stats import binom
from sklearn.base import BaseEstimator
from sklearn.metrics import precision_score, roc_auc_score
from sklearn.utils.validation import check_is_fitted

from idode.errors import InputError, choose
from idode.sklearn.columns import Matrix
from idode.sklearn.outliers import DiffusionOutlierDetector

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PyODDetector"]


class PyODDetector(BaseEstimator):  # type: ignore[misc]
    """Outliers of a table or of images; higher scores are more unusual, labels are 0 and 1.

    Args:
        contamination: Share of the rows given to ``fit`` that are labelled 1.
        model: As for :class:`DiffusionOutlierDetector`; ``None`` for tables.
        max_steps: Of training, for tables.
        random_state: Seed of everything random.

    Attributes:
        decision_scores_: Scores of the rows given to ``fit``.
        threshold_: Scores above it are labelled 1.
        labels_: Of the rows given to ``fit``.
    """

    def __init__(
        self,
        contamination: float = 0.1,
        model: Any = None,  # noqa: ANN401
        max_steps: int = 3000,
        random_state: Any = 0,  # noqa: ANN401
    ) -> None:
        self.contamination = contamination
        self.model = model
        self.max_steps = max_steps
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Learn what is usual; ``y`` is ignored."""
        self.detector_ = DiffusionOutlierDetector(
            self.model,
            contamination=self.contamination,
            max_steps=self.max_steps,
            random_state=self.random_state,
        ).fit(X)
        self.decision_scores_ = -self.detector_.score_samples(X)
        self.threshold_ = float(np.quantile(self.decision_scores_, 1 - self.contamination))
        self.labels_ = (self.decision_scores_ > self.threshold_).astype(int)
        self._mu = float(self.decision_scores_.mean())
        self._sigma = float(self.decision_scores_.std())
        self.n_features_in_ = self.detector_.n_features_in_
        self._classes = 2
        return self

    def decision_function(self, X: ArrayLike) -> Matrix:
        """Scores ``(n,)``; higher is more unusual."""
        check_is_fitted(self, ["decision_scores_", "threshold_", "labels_"])
        return -self.detector_.score_samples(X)

    def predict(
        self,
        X: ArrayLike,
        return_confidence: bool = False,
    ) -> Any:  # noqa: ANN401
        """1 for outliers, else 0; with ``return_confidence`` also :meth:`predict_confidence`."""
        labels = (self.decision_function(X) > self.threshold_).astype(int)
        return (labels, self.predict_confidence(X)) if return_confidence else labels

    def predict_proba(
        self,
        X: ArrayLike,
        method: str = "linear",
        return_confidence: bool = False,
    ) -> Any:  # noqa: ANN401
        """Chances of being usual and of being an outlier, ``(n, 2)``.

        Args:
            X: Rows or images.
            method: ``linear`` scales scores to those seen in ``fit``; ``unify`` takes them as
                normal.
            return_confidence: Return :meth:`predict_confidence` as well.
        """
        scale = choose("method", method, {"linear": self._linear, "unify": self._unify})
        outlier = np.clip(scale(self.decision_function(X)), 0, 1)
        chances = np.column_stack([1 - outlier, outlier])
        return (chances, self.predict_confidence(X)) if return_confidence else chances

    def _linear(self, scores: Matrix) -> Matrix:
        low, high = self.decision_scores_.min(), self.decision_scores_.max()
        return np.asarray((scores - low) / max(high - low, 1e-300))

    def _unify(self, scores: Matrix) -> Matrix:
        return np.asarray(erf((scores - self._mu) / (max(self._sigma, 1e-300) * np.sqrt(2))))

    def predict_confidence(self, X: ArrayLike) -> Matrix:
        """Chance that the label stays the same for another training set of this size, ``(n,)``.

        The share of scores below a row is estimated with one row more on either side; the label
        is 1 when that many of the training rows are.
        """
        scores = self.decision_function(X)
        n = len(self.decision_scores_)
        below = np.searchsorted(np.sort(self.decision_scores_), scores, side="right")
        share = (1 + below) / (2 + n)
        sure = 1 - binom.cdf(n - int(n * self.contamination), n, share)
        return np.asarray(np.where(scores > self.threshold_, sure, 1 - sure))

    def predict_rank(self, X: ArrayLike, normalized: bool = False) -> Matrix:
        """Rank of each row among those of ``fit``; higher is more unusual."""
        scores = self.decision_function(X)
        rank = np.searchsorted(np.sort(self.decision_scores_), scores).astype(np.float64)
        return np.asarray(rank / len(self.decision_scores_) if normalized else rank)

    def fit_predict(self, X: ArrayLike, y: object = None) -> NDArray[np.int64]:
        """The labels of the rows it is fitted to."""
        labels: NDArray[np.int64] = self.fit(X, y).labels_
        return labels

    def fit_predict_score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        scoring: str = "roc_auc_score",
    ) -> float:
        """Fit, and compare the scores of the same rows with their labels ``y``."""
        self.fit(X)
        truth = np.asarray(y)
        if scoring == "roc_auc_score":
            return float(roc_auc_score(truth, self.decision_scores_))
        if scoring == "prc_n_score":
            count = int(truth.sum())
            top = np.argsort(-self.decision_scores_)[:count]
            labels = np.zeros(len(truth), dtype=int)
            labels[top] = 1
            return float(precision_score(truth, labels))
        raise InputError(f"scoring: must be 'roc_auc_score' or 'prc_n_score', got {scoring!r}")
