"""A comparison as one page: curves, values, the table, and what it says about the paper."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from idode import __version__
from idode.data import Identity
from idode.runs.systems import SYSTEMS
from idode.studies.comparison.orderings import Verdict
from idode.studies.comparison.plan import BASELINE, Plan
from idode.studies.comparison.table import METRICS, Outcome, Row
from idode.studies.report import figures
from idode.studies.report.figures import Band
from idode.studies.report.page import Section, Table, write

__all__ = ["HEADER", "JUDGED", "Comparison", "legend", "plain", "write_page"]

NAMES = ("compare.html", "compare.md")
HEADER = ("system", *(metric.title for metric in METRICS.values()))
JUDGED = ("claim", "difference", "s.e.", "seeds", "verdict", "in the paper")
KINDS = ("uniform", "sde", "tn")


@dataclass(frozen=True)
class Comparison:
    """All that there is to say."""

    plan: Plan
    identity: Identity
    outcomes: tuple[Outcome, ...]
    rows: tuple[Row, ...]
    verdicts: tuple[Verdict, ...]
    features: str  # whose features the Fréchet distance sees
    yardstick: float  # that distance for as many test images
    images: int  # of the SDE bound
    steps: int


def legend(c: Comparison) -> list[str]:
    """How to read the columns."""
    effort = c.plan.effort
    ode = min(effort.limit, c.identity.test_size)
    return [
        "Every value is a mean over seeds ± its standard error (none for one seed); images and "
        "noise of the evaluation are the same for all, so differences are better known than each "
        "value.",
        f"SDE: variational bound of {c.images} test images. ODE: bits/dim of {ode} by the ODE, "
        f"K = 1, with truncated-normal and uniform dequantization, on a grid tuned to "
        f"{effort.tolerance} bits/dim rms.",
        "NFE: evaluations of one likelihood; NFE dopri5: of "
        f"{effort.samples} samples drawn together by Dormand-Prince at 1e-5, the paper's measure.",
        f"FID*: Fréchet distance of those samples to the training images by "
        f"{c.features} features; as many test images have {c.yardstick:.2f}.",
        f"steps to {BASELINE}, s to {BASELINE}: of training until the held-out SDE bound first "
        f"reaches the final value of {BASELINE} with the same seed; seconds without evaluation.",
    ]


def plain(c: Comparison) -> dict[str, Any]:
    """Everything as plain values for JSON."""
    return {
        "idode": __version__,
        "plan": {**c.plan.shared(), "effort": asdict(c.plan.effort)},
        "data": c.identity.to_json(),
        "features": c.features,
        "fid_of_test_images": c.yardstick,
        "systems": {row.name: _plain_row(c, row) for row in c.rows},
        "orderings": [
            {
                "claim": str(v.claim),
                "source": v.claim.source,
                "difference": v.difference,
                "standard_error": v.standard_error,
                "seeds": v.seeds,
                "verdict": v.word,
            }
            for v in c.verdicts
        ],
    }


def _plain_row(c: Comparison, row: Row) -> dict[str, Any]:
    runs = {
        str(o.entry.seed): {
            "values": dict(o.values),
            "failures": dict(o.failures),
            "curve": None
            if o.curve is None
            else {
                "steps": list(o.curve.steps),
                "seconds": list(o.curve.seconds),
                "held_out": list(o.curve.bits),
            },
        }
        for o in c.outcomes
        if o.entry.name == row.name
    }
    cells = {
        name: {"mean": cell.mean, "standard_error": cell.standard_error, "count": cell.count}
        for name, cell in row.cells.items()
    }
    return {"mean": cells, "seeds": runs, "failures": list(row.failures)}


def write_page(out: Path, c: Comparison) -> Path:
    """Write ``compare.html``, ``compare.md`` and the pictures; the path of the page."""
    title = f"{len(c.rows)} systems on {c.identity.name}"
    return write(
        out, title, _lead(c), _facts(c), _sections(c), f"idode {__version__}",
        force=True, about="The comparison", names=NAMES,
    )  # fmt: skip


def _lead(c: Comparison) -> str:
    known = [row for row in c.rows if "tn" in row.cells]
    seeds = f"{len(c.plan.seeds)} seed" + ("s" if len(c.plan.seeds) > 1 else "")
    done = f"The same network, data and {c.steps:,} steps for every system, {seeds}."
    if not known:
        return done
    best = min(known, key=lambda row: row.cells["tn"].mean)
    return f"{done} Lowest bits/dim by the ODE: {best.name}, {best.cells['tn'].text(3)}."


def _facts(c: Comparison) -> dict[str, str]:
    plan = c.plan
    rows = [row.name for row in c.rows]
    facts = {"data": str(c.identity), "preset": plan.preset, "steps": f"{c.steps:,}"}
    facts["seeds"] = ", ".join(map(str, plan.seeds))
    if plan.settings:
        facts["changed settings"] = ", ".join(plan.settings)
    if plan.finetune:
        facts["fine-tuning"] = f"{plan.finetune:,} further steps"
    return facts | {name: SYSTEMS[name].summary for name in rows if name in SYSTEMS}


def _sections(c: Comparison) -> list[Section]:
    table = Table(HEADER, tuple(tuple(row.texts()) for row in c.rows))
    failures = [failure for row in c.rows for failure in row.failures]
    failed = ["Failed: " + "; ".join(failures) + "."] if failures else []
    found = [Section("table", "All systems", " ".join([*legend(c), *failed]), table=table)]
    found += _curves(c)
    values = {row.name: _values(row) for row in c.rows if _values(row)}
    if values:
        caption = "Mean over seeds; bars are one standard error over seeds. Less is better."
        drawn = figures.png(figures.dots(values, "bits/dim of test images"))
        found.append(Section("values", "Bits per dimension", caption, drawn))
    if c.verdicts:
        judged = Table(JUDGED, tuple(tuple(v.texts()) for v in c.verdicts))
        caption = (
            "Differences are left minus right side, paired by seed, with their standard error "
            "over seeds; zero within the 95% interval of Student's t, or a single seed, is not "
            "decided. A run "
            f"that never reached the final bound of {BASELINE} counts with all its steps."
        )
        found.append(
            Section("orderings", "Which orderings of the paper hold", caption, table=judged)
        )
    return found


def _values(row: Row) -> dict[str, tuple[float, float]]:
    cells = {k: row.cells[k] for k in KINDS if k in row.cells}
    return {METRICS[k].title: (c.mean, c.standard_error or 0.0) for k, c in cells.items()}


def _curves(c: Comparison) -> list[Section]:
    level = None
    for row in c.rows:
        if row.name == BASELINE and "held_out" in row.cells:
            level = row.cells["held_out"].mean
    found = []
    for key, label in (("steps", "optimiser steps"), ("seconds", "seconds of training")):
        bands = _bands(c.outcomes, key)
        if not bands:
            return []
        drawn = figures.convergence(bands, label, level, f"final {BASELINE}")
        caption = (
            "SDE bound on held-out images of the averaged weights, always with the same noise: "
            "mean over seeds, and the range they span. The first values, and systems far above "
            "the others, lie outside the axis."
        )
        title = f"Convergence against {label}"
        found.append(Section(f"curves-{key}", title, caption, figures.png(drawn)))
    return found


def _bands(outcomes: Sequence[Outcome], key: str) -> Mapping[str, Band]:
    """Curves of equal steps, averaged; a run that stopped early ends the mean of its system."""
    grouped: dict[str, list[Outcome]] = {}
    for o in outcomes:
        if o.curve is not None:
            grouped.setdefault(o.entry.name, []).append(o)
    bands = {}
    for name, runs in grouped.items():
        curves = [o.curve for o in runs if o.curve is not None]
        n = min(len(curve.steps) for curve in curves)
        x = [[float(v) for v in getattr(curve, key)[:n]] for curve in curves]
        bits = list(zip(*(curve.bits[:n] for curve in curves), strict=True))
        bands[name] = Band(
            tuple(statistics.fmean(values) for values in zip(*x, strict=True)),
            tuple(statistics.fmean(values) for values in bits),
            tuple(min(values) for values in bits),
            tuple(max(values) for values in bits),
        )
    return bands
