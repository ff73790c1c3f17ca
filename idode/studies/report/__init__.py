"""A run as one page: every figure of the paper for this model, with the numbers behind it."""

from __future__ import annotations

from idode.studies.report.effort import FAST, FULL, Effort
from idode.studies.report.measurements import Measurements, measure, plain
from idode.studies.report.page import write
from idode.studies.report.sections import sections

__all__ = ["FAST", "FULL", "Effort", "Measurements", "measure", "plain", "sections", "write"]
