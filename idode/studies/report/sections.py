"""Measurements in words, tables and figures: what a report says, and how each number was made."""

from __future__ import annotations

import math

from idode import __version__
from idode.evaluation.evaluate import IMPORTANCES
from idode.runs.config import Config
from idode.sampling.pictures import grid
from idode.sampling.pictures import png as picture_png
from idode.studies.report import figures
from idode.studies.report.measurements import Measurements
from idode.studies.report.page import HTML, MARKDOWN, Section, Table
from idode.studies.report.values import Value

__all__ = ["FILES", "facts", "lead", "note", "sections"]

PICTURES = (
    "training",
    "time-densities",
    "squared-errors",
    "uniform-starts",
    "histogram",
    "samples",
)
FILES = (HTML, MARKDOWN, *(f"{key}.png" for key in PICTURES))  # all that a report can have
NAMES = {"uniform": "uniform", "variational": "variational", "tn": "truncated normal"}


def facts(m: Measurements, config: Config) -> dict[str, str]:
    """What was trained, on what, and on what it is shown."""
    model, train = config.model, config.train
    last = max((step for step, _ in m.curve.loss), default=None)
    done = 0 if last is None else max(0, last - m.curve.begun)
    steps = f"{done:,} of {train.steps:,}" if done else f"{train.steps:,}"
    origin = {} if m.parent is None else {"fine-tuned from": str(m.parent)}
    trained = {} if m.trained_on in (None, m.identity) else {"trained on": str(m.trained_on)}
    return {
        "preset": m.name,
        "data": str(m.identity),
        **trained,
        **origin,
        "model": f"{model.schedule} schedule, predicts {model.predictor}, "
        f"{m.parameters:,} parameters",
        "training": f"{steps} steps, batch {train.batch_size}, density "
        f"{config.objective.density}, order {config.objective.order}, seed {train.seed}",
        "solver": f"Adams, {m.likelihoods.nfe} evaluations on one grid, tuned on "
        f"{min(m.effort.pilot, m.identity.test_size)} test images to {m.effort.tolerance} "
        f"bits/dim rms for an image; their mean is off by {m.likelihoods.pilot.solver_mean:+.4f}",
    }


def lead(m: Measurements) -> str:
    """The two values of the run in a sentence."""
    n = len(m.likelihoods.test.per_image)
    ode = f"{_value(m.likelihoods.test)} bits/dim by the ODE"
    sde = (
        ""
        if m.likelihoods.sde is None
        else f", {m.likelihoods.sde.mean:.3f} ± {m.likelihoods.sde.standard_error:.3f} by the SDE"
    )
    two = (
        ""
        if m.likelihoods.sde is None
        else " They are two models: neither value bounds the other."
    )
    return f"{ode}{sde}, on the first {n} test images.{two}"


def note(m: Measurements) -> str:
    """How the page came about."""
    return (
        f"idode {__version__}, computed in {m.seconds:.0f} s with seed {m.effort.seed}. Every ± "
        "is one standard error of the mean over images, noise and probes."
    )


def sections(m: Measurements) -> list[Section]:
    """All figures of the paper that this run has."""
    return [
        *_training(m),
        *_noise(m),
        *_starts(m),
        _bounds(m),
        _smoothness(m),
        _histogram(m),
        _samples(m),
    ]


def _value(value: Value) -> str:
    if math.isnan(value.standard_error):
        return f"{value.mean:.3f}"
    return f"{value.mean:.3f} ± {value.standard_error:.3f}"


def _gamma(gamma: float) -> str:
    """With a real minus sign, and in one piece at the end of a line."""
    return f"γ\u00a0=\u00a0{gamma:.2f}".replace("-", "−")


def _way(m: Measurements) -> str:
    return NAMES.get(m.likelihoods.test.settings.dequantization, "no")


def _training(m: Measurements) -> list[Section]:
    if not m.curve.loss:
        return []
    end = f" It ends at {m.curve.held_out[-1][1]:.3f} bits/dim." if m.curve.held_out else ""
    term = "; what is minimised has the second-order term from there on" if m.second_order else ""
    tuned = (
        f" Fine-tuning begins at the dashed line, after step {m.curve.begun:,}{term}."
        if m.curve.begun
        else ""
    )
    section = Section(
        "training",
        "Training and test curves",
        "Grey: what is minimised, the mean over each interval of training, without the prior and "
        "reconstruction terms. Blue: the variational bound of the SDE on held-out images, of the "
        f"averaged weights, always with the same noise.{end}{tuned} Values of the first tenth of "
        "training may lie above the axis.",
        figures.png(figures.training(m.curve)),
    )
    return [section]


def _noise(m: Measurements) -> list[Section]:
    noise = m.noise
    made = f"{noise.samples} test images, {noise.noises} draws of the noise for each"
    peaks = "; ".join(
        f"{c.name} peaks at {_gamma(float(noise.gamma[c.variance.argmax()]))}"
        for c in noise.densities
    )
    return [
        Section(
            "time-densities",
            "Importance sampling of the noise level",
            "(a) The inverse distribution function of each density over noise levels. (b) The "
            "variance of one draw of the loss over its density, at each level; the legend has the "
            f"total over data, noise and level in nats². {peaks}. From {made}, at "
            f"{len(noise.gamma)} levels, the same for all densities.",
            figures.png(figures.time_densities(noise)),
        ),
        Section(
            "squared-errors",
            "Noise against velocity prediction",
            "Mean square error of a dimension for the same network read as a predictor of the "
            "noise and of the normalised velocity. An even curve is a balanced task. From "
            f"{made}, at {len(noise.gamma)} levels.",
            figures.png(figures.squared_errors(noise)),
        ),
    ]


def _starts(m: Measurements) -> list[Section]:
    if not m.likelihoods.starts or m.identity.levels is None:
        return []
    best = min(m.likelihoods.starts, key=lambda value: value.mean)
    section = Section(
        "uniform-starts",
        "Uniform dequantization against its start",
        f"Bits/dim (K = 1, one draw) on the first {len(best.per_image)} test images when the "
        "pixels enter the clock at γ. The images, noise and probes are the same at every start, "
        "so the differences are better known than the bars, which are one standard error. Best "
        f"here: {_gamma(best.settings.start or 0)} with {_value(best)}. Dashed: the "
        "default, where the model's noise has the variance of a bin.",
        figures.png(figures.uniform_starts(m.likelihoods.starts, m.identity.levels)),
    )
    return [section]


def _bounds(m: Measurements) -> Section:
    first = m.likelihoods.bounds[0]
    n = len(first.per_image)
    columns = IMPORTANCES if m.identity.levels is not None else (1,)
    rows = []
    for lo in range(0, len(m.likelihoods.bounds), len(columns)):
        group = m.likelihoods.bounds[lo : lo + len(columns)]
        name = NAMES.get(group[0].settings.dequantization, "none (continuous data)")
        error = f"{group[0].solver_error:.3f}"
        rows.append((name, *(_value(v) for v in group), f"{group[0].nfe:.0f}", error))
    if m.likelihoods.sde is not None:
        blank = ("–",) * (len(columns) - 1)
        some = m.likelihoods.sde.per_image[:n]
        bar = f" ± {float(some.std()) / math.sqrt(n):.3f}" if n > 1 else ""
        row = (f"{float(some.mean()):.3f}{bar}", *blank, f"{m.likelihoods.sde.nfe}", "–")
        rows.append(("SDE bound, for comparison", *row))
    header = ("dequantization", *(f"K = {k}" for k in columns), "NFE", "solver error")
    return Section(
        "bounds",
        "Bounds: three dequantizations by importance samples",
        f"Bits/dim of the first {n} test images, {first.draws} draws of the noise each, one "
        f"{first.settings.probe} probe for each image. All K share the same draws, so a row can "
        "only fall. NFE: evaluations of the network for one solve; the few images that are solved "
        "again on a finer grid count as if their whole batch were. Solver error: "
        "its likely size for one image, in bits/dim. Images are few: for a number to quote run "
        "idode evaluate.",
        table=Table(header, tuple(rows)),
    )


def _smoothness(m: Measurements) -> Section:
    rows = tuple(
        (s.name, _value(s.value), f"{s.likelihood_nfe}", f"{s.sampling_nfe:.0f}")
        for s in m.smoothness
    )
    title, compared = "", "of this run"
    if m.tuned:
        title, compared = ", before and after fine-tuning", "before (first row) and after it"
    elif len(rows) > 1:
        title, compared = " by two runs", "of the run compared with (first row) and of this one"
    n, drawn = len(m.likelihoods.test.per_image), m.effort.samples
    return Section(
        "smoothness",
        "Evaluations needed" + title,
        f"Cost {compared}. Bits/dim with {_way(m)} "
        f"dequantization, K = 1, on the first {n} test images; NFE of the likelihood on a grid "
        f"tuned to {m.effort.tolerance} bits/dim; NFE of sampling {drawn} images together by "
        "adaptive Dormand-Prince with both tolerances 1e-5, the paper's measure.",
        table=Table(("run", "bits/dim", "NFE, likelihood", "NFE, sampling"), rows),
    )


def _histogram(m: Measurements) -> Section:
    return Section(
        "histogram",
        "Test images by their likelihood",
        f"Bits/dim of each of the first {len(m.likelihoods.test.per_image)} test images "
        f"({_way(m)} dequantization, K = 1, one draw, one "
        "probe), with the most and the least likely of them below it and their values above each.",
        figures.png(
            figures.histogram(m.likelihoods.test, m.likelihoods.pixels, m.identity.levels)
        ),
    )


def _samples(m: Measurements) -> Section:
    levels, data = m.identity.levels, m.samples.data
    made = (
        f"{len(data)} samples by Dormand-Prince at 1e-5 with {m.samples.nfe:.0f} evaluations, "
        f"seed {m.effort.seed}, not selected."
    )
    if levels is None or data.ndim != 4 or data.shape[1] not in (1, 3):
        return Section(
            "samples", "Samples", made, figures.png(figures.points(data, m.likelihoods.pixels))
        )
    return Section("samples", "Samples", made, picture_png(grid(data, levels)), pixelated=True)
