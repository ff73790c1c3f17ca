"""A run as one page: every figure of the paper for this model, with the numbers behind it."""

from __future__ import annotations

from idode.report.effort import FAST, FULL, Effort
from idode.report.measurements import Measurements, measure, plain
from idode.report.page import write
from idode.report.sections import sections

__all__ = ["FAST", "FULL", "Effort", "Measurements", "measure", "plain", "sections", "write"]
