"""A comparison as one page: the table, learning curves, and which claims of the paper hold."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from idode import __version__
from idode.runs.systems import SYSTEMS
from idode.studies.comparison.folder import HTML, MARKDOWN
from idode.studies.comparison.plan import BASELINE
from idode.studies.comparison.summary import Comparison
from idode.studies.comparison.table import METRICS, Outcome, Row
from idode.studies.report import figures
from idode.studies.report.figures import Band
from idode.studies.report.page import Section, Table, write_page

__all__ = ["CLAIMS_HEADER", "HEADER", "legend", "write_comparison"]

HEADER = ("system", *(metric.title for metric in METRICS.values()))
CLAIMS_HEADER = ("claim", "difference", "s.e.", "seeds", "verdict", "in the paper")
KINDS = ("uniform", "sde", "tn")


def legend(c: Comparison) -> list[str]:
    """Explanations of the columns."""
    settings = c.plan.measurement
    ode = min(settings.limit, c.identity.test_size)
    return [
        "Every value is a mean over seeds ± its standard error (none for one seed). Images and "
        "noise of the evaluation are the same for all runs, so differences are known better than "
        "values.",
        f"SDE: variational bound of {c.images} test images. ODE: bits/dim of {ode} by the ODE, "
        f"K = 1, with truncated-normal and uniform dequantization, on a grid calibrated to "
        f"{settings.tolerance} bits/dim rms.",
        "NFE: evaluations of the network for one likelihood; NFE dopri5: for "
        f"{settings.samples} samples drawn together by Dormand-Prince at 1e-5, the paper's "
        "measure.",
        f"FID*: Fréchet distance of those samples to the training images by "
        f"{c.features} features; as many test images have {c.test_images_fid:.2f}.",
        f"steps to {BASELINE}, s to {BASELINE}: steps and seconds of training until the held-out "
        f"SDE bound first reaches the final value of {BASELINE} with the same seed, without the "
        "time of evaluation.",
        *(
            f"{row.name}: a code of each image costs {row.cells['code'].text(4)} bits/dim of its "
            "SDE bound, and all its values are bounds over such codes, with their cost."
            for row in c.rows
            if "code" in row.cells
        ),
    ]


def write_comparison(c: Comparison) -> Path:
    """Write the page and its pictures to the folder of the comparison; the path of the page."""
    title = f"{len(c.rows)} systems on {c.identity.name}"
    return write_page(
        c.out, title, _lead(c), _facts(c), _sections(c), f"idode {__version__}",
        about="The comparison", names=(HTML, MARKDOWN),
    )  # fmt: skip


def _lead(c: Comparison) -> str:
    known = [row for row in c.rows if "tn" in row.cells]
    seeds = f"{len(c.plan.seeds)} seed" + ("s" if len(c.plan.seeds) > 1 else "")
    done = f"Every system has the same network, data and {c.steps:,} steps; {seeds}."
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
        caption = "Mean over seeds; bars are one standard error over seeds. Lower is better."
        drawn = figures.png(figures.dots(values, "bits/dim of test images"))
        found.append(Section("values", "Bits per dimension", caption, drawn))
    if c.verdicts:
        claims = Table(CLAIMS_HEADER, tuple(tuple(v.texts()) for v in c.verdicts))
        caption = (
            "Differences are left minus right side, paired by seed, with their standard error "
            "over seeds. A claim is not decided with a single seed, or if the 95% interval of "
            "Student's t includes zero. A run "
            f"that never reached the final bound of {BASELINE} counts with all its steps."
        )
        found.append(
            Section("orderings", "Which orderings of the paper hold", caption, table=claims)
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
            "mean and range over seeds. The first values, and systems far above the others, are "
            "outside the axis."
        )
        title = f"Convergence against {label}"
        found.append(Section(f"curves-{key}", title, caption, figures.png(drawn)))
    return found


def _bands(outcomes: Sequence[Outcome], key: str) -> Mapping[str, Band]:
    """Mean and range of the curves of each system, as far as its shortest curve goes."""
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
