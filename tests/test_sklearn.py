"""Estimators by the rules of scikit-learn and PyOD, and densities against the truth."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from idode.sklearn import DiffusionDensity, DiffusionOutlierDetector


@parametrize_with_checks([DiffusionDensity(max_steps=0), DiffusionOutlierDetector(max_steps=0)])
def test_the_rules_of_scikit_learn(estimator, check) -> None:
    check(estimator)
