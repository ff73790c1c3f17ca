"""``PyODDetector``: the same detector by the conventions of PyOD, which is not needed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erf
from scipy.stats import beta, binom
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from idode.detection.conformal import check_share
from idode.detection.separation import auroc
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

    def predict_with_rejection(
        self, X: ArrayLike, T: float = 32, return_stats: bool = False, delta: float = 0.1,
        c_fp: float = 1, c_fn: float = 1, c_r: float = -1,
    ) -> Any:  # noqa: ANN401  # fmt: skip
        """1 for outliers, 0 for usual rows, -2 where another training set may say otherwise.

        A label is kept if its confidence is outside of :math:`[e^{-T}, 1 - e^{-T}]`, after Perini
        and Davis (2023). With ``return_stats`` also three numbers: the share of rows expected to
        be rejected, a bound on it that holds with a chance of ``1 - delta`` (the inequality of
        Dvoretzky, Kiefer and Wolfowitz for both ends), and a bound on the expected cost.

        Args:
            X: Rows or images.
            T: Higher rejects more.
            return_stats: Return those numbers as well.
            delta: Chance that the bound fails.
            c_fp: Cost of a usual row labelled 1.
            c_fn: Cost of an outlier labelled 0.
            c_r: Cost of a rejection; the contamination if negative.
        """
        labels, sure = self.predict(X, return_confidence=True)
        labels = np.where(np.minimum(sure, 1 - sure) >= np.exp(-T), -2, labels)
        if not return_stats:
            return labels
        check_share("delta", delta)
        n, share = len(self.decision_scores_), self.contamination
        outliers = max(1, int(n * share))
        # The shares of rows above a score at which the label is the same with a chance of e^-T.
        low, high = beta.ppf([np.exp(-T), -np.expm1(-T)], outliers, n - outliers + 1)
        rejected = float(high - low)
        bound = min(1.0, rejected + 2 * float(np.sqrt(np.log(2 / delta) / (2 * n))))
        kept = min(share, low) * c_fp + min(share, 1 - high) * c_fn
        return labels, [rejected, bound, float(kept + rejected * (share if c_r < 0 else c_r))]

    def predict_rank(self, X: ArrayLike, normalized: bool = False) -> Matrix:
        """Rank of each row among those of ``fit``; higher is more unusual."""
        scores = self.decision_function(X)
        rank = np.searchsorted(np.sort(self.decision_scores_), scores).astype(np.float64)
        return np.asarray(rank / len(self.decision_scores_) if normalized else rank)

    _predict_rank = predict_rank  # what PyOD's combinations of detectors call

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
        """Fit, and compare the scores of the same rows with their labels ``y``, 0 or 1."""
        truth = np.asarray(y)
        if not (np.isin(truth, (0, 1)).all() and truth.min() < truth.max()):
            raise InputError(
                f"y: labels must be 0 for usual rows and 1 for outliers, and both must occur, got "
                f"{np.unique(truth)[:5].tolist()}"
            )
        if scoring not in SCORINGS:
            raise UnknownScoring(f"scoring: must be one of {', '.join(SCORINGS)}, got {scoring!r}")
        self.fit(X)
        return SCORINGS[scoring](truth, self.decision_scores_)


class UnknownScoring(InputError, NotImplementedError):
    """PyOD raises the second of these."""


def _area(truth: NDArray[Any], scores: Matrix) -> float:
    return auroc(scores[truth == 0], scores[truth == 1])


def _precision_at_n(truth: NDArray[Any], scores: Matrix) -> float:
    """Share of outliers among the rows with the highest scores, as many as there are outliers."""
    top = np.argsort(-scores, kind="stable")[: int(truth.sum())]
    return float(truth[top].mean())


SCORINGS = {"roc_auc_score": _area, "prc_n_score": _precision_at_n}
