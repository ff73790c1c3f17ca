"""Systems compared on equal terms: the same network, data, steps and seeds, one table."""

from __future__ import annotations

from idode.comparison.experiment import Bench
from idode.comparison.orderings import Claim, Verdict, verdicts
from idode.comparison.page import Comparison, legend, plain, write_page
from idode.comparison.plan import Effort, Entry, Plan, check_folder, store
from idode.comparison.summary import summarise

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
