"""Systems compared on equal terms: the same network, data, steps and seeds, one table."""

from __future__ import annotations

from idode.studies.comparison.experiment import Bench
from idode.studies.comparison.orderings import Claim, Verdict, verdicts
from idode.studies.comparison.page import Comparison, legend, plain, write_page
from idode.studies.comparison.plan import Effort, Entry, Plan, check_folder, store
from idode.studies.comparison.summary import summarise

__all__ = [
    "Bench",
    "Claim",
    "Comparison",
    "Effort",
    "Entry",
    "Plan",
    "Verdict",
    "check_folder",
    "legend",
    "plain",
    "store",
    "summarise",
    "verdicts",
    "write_page",
]
