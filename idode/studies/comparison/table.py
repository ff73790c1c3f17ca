"""Results of many runs as one table: mean and standard error over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from idode.studies.comparison.curves import Curve
from idode.studies.comparison.plan import BASELINE, Entry
from idode.studies.comparison.results import PARTS, Result

__all__ = ["METRICS", "Cell", "Metric", "Outcome", "Row", "outcomes", "rows"]


@dataclass(frozen=True)
class Metric:
    """A column of the table: its heading, its digits, and the part of a run that measures it."""

    title: str
    digits: int
    part: str
    time: bool = False  # a cost and not a quality
    timed: str | None = None  # "never" is shown for a run that has this value but not the metric


METRICS: dict[str, Metric] = {
    "sde": Metric("SDE", 3, "sde"),
    "tn": Metric("ODE tn", 3, "ode"),
    "uniform": Metric("ODE uniform", 3, "ode"),
    "likelihood_nfe": Metric("NFE", 0, "ode"),
    "sampling_nfe": Metric("NFE dopri5", 0, "sampling"),
    "fid": Metric("FID*", 2, "sampling"),
    "steps_to_baseline": Metric(f"steps to {BASELINE}", 0, "training", True, "least_steps"),
    "seconds_to_baseline": Metric(f"s to {BASELINE}", 0, "training", True, "least_steps"),
    "train_seconds": Metric("train s", 0, "training", True),
    "evaluation_seconds": Metric("eval s", 0, "sampling", True),
}


@dataclass(frozen=True)
class Outcome:
    """All values of one run by metric, its failures and its learning curve."""

    entry: Entry
    values: Mapping[str, float]
    failures: Mapping[str, str]
    curve: Curve | None


@dataclass(frozen=True)
class Cell:
    """Mean over the seeds that have a value; one seed has no standard error."""

    mean: float
    standard_error: float | None
    count: int
    of: int  # number of seeds

    def text(self, digits: int) -> str:
        """The cell as text, with the number of seeds if some have no value."""
        bar = "" if self.standard_error is None else f" ± {self.standard_error:.{digits}f}"
        some = "" if self.count == self.of else f" ({self.count} of {self.of})"
        return f"{self.mean:.{digits}f}{bar}{some}"


@dataclass(frozen=True)
class Row:
    """A system: a cell for each metric that one of its runs has, and its failures."""

    name: str
    seeds: int
    cells: Mapping[str, Cell]
    failures: tuple[str, ...]  # one sentence each
    failed: frozenset[str]  # parts that failed for all seeds

    def texts(self) -> list[str]:
        """The cells of the printed table."""
        return [self.name, *(self._text(name, metric) for name, metric in METRICS.items())]

    def _text(self, name: str, metric: Metric) -> str:
        if name in self.cells:
            return self.cells[name].text(metric.digits)
        if {"training", metric.part} & self.failed:
            return "failed"
        return "never" if metric.timed in self.cells else "–"


def outcomes(pairs: Iterable[tuple[Result, Curve]]) -> list[Outcome]:
    """Results and curves, with the time to reach the final value of the baseline of the same seed.

    Second stages and failed trainings are not timed. ``least_steps`` is the number of steps, or
    all steps of a run that never reached the value.
    """
    found = list(pairs)
    finals = {
        result.entry.seed: curve.bits[-1]
        for result, curve in found
        if result.entry.name == BASELINE and curve.bits and not _training_failed(result)
    }
    return [_outcome(result, curve, finals.get(result.entry.seed)) for result, curve in found]


def _training_failed(result: Result) -> bool:
    return "training" in result.failures


def _outcome(result: Result, curve: Curve, final: float | None) -> Outcome:
    values = dict(result.values)
    if set(PARTS[1:]) <= result.seconds.keys():
        values["evaluation_seconds"] = sum(result.seconds[part] for part in PARTS[1:])
    learned = bool(curve.bits) and not _training_failed(result)
    if learned:
        values["train_seconds"] = curve.seconds[-1]
        values["held_out"] = curve.bits[-1]
    if learned and final is not None and not result.entry.stage:
        reached = curve.first_below(final)
        values["least_steps"] = float(curve.steps[-1]) if reached is None else reached[0]
        if reached is not None:
            values["steps_to_baseline"], values["seconds_to_baseline"] = reached
    shown = curve if curve.bits and not result.entry.stage else None
    return Outcome(result.entry, values, result.failures, shown)


def rows(names: Sequence[str], found: Sequence[Outcome]) -> list[Row]:
    """A row for each name, in this order."""
    return [_row(name, [o for o in found if o.entry.name == name]) for name in names]


def _row(name: str, runs: Sequence[Outcome]) -> Row:
    cells = {}
    for metric in (*METRICS, "held_out", "least_steps", "code"):
        values = [o.values[metric] for o in runs if metric in o.values]
        if values:
            cells[metric] = _cell(values, len(runs))
    failures = tuple(
        f"{name} seed {o.entry.seed}, {part}: {reason}"
        for o in runs
        for part, reason in o.failures.items()
    )
    failed = frozenset(p for p in PARTS if runs and all(p in o.failures for o in runs))
    return Row(name, len(runs), cells, failures, failed)


def _cell(values: Sequence[float], of: int) -> Cell:
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Cell(statistics.fmean(values), error, len(values), of)
