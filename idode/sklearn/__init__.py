"""Estimators for users of scikit-learn and PyOD: a density, and detectors of outliers.

>>> from idode.sklearn import DiffusionDensity
>>> DiffusionDensity(max_steps=50).get_params()["max_steps"]
50
"""

from __future__ import annotations

from idode.sklearn.density import DiffusionDensity
from idode.sklearn.outliers import DiffusionOutlierDetector
from idode.sklearn.pyod import PyODDetector

__all__ = ["DiffusionDensity", "DiffusionOutlierDetector", "PyODDetector"]
