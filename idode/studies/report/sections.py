"""The sections of a report: figures and tables of the measurements, with their captions."""

from __future__ import annotations

import math

from idode import __version__
from idode.evaluation.evaluate import IMPORTANCES
from idode.likelihood.bits_per_dim import BitsPerDim
from idode.ode import PROBES
from idode.runs.config import Config
from idode.sampling.pictures import grid
from idode.sampling.pictures import png as picture_png
from idode.studies.report import figures
from idode.studies.report.measurements import Measurements
from idode.studies.report.page import Section, Table

__all__ = ["facts", "footer", "sections", "summary"]

# A picture's key is listed in idode.runs.folder.REPORT_PICTURES too.
NAMES = {"uniform": "uniform", "variational": "variational", "tn": "truncated normal"}


def facts(m: Measurements, config: Config) -> dict[str, str]:
    """The first table: the model, its training, its data and the solver."""
    model, train = config.model, config.train
    last = max((step for step, _ in m.curve.loss), default=None)
    done = 0 if last is None else max(0, last - m.curve.finetuned_after)
    steps = f"{done:,} of {train.steps:,}" if done else f"{train.steps:,}"
    origin = {} if m.parent is None else {m.parent.relation: str(m.parent)}
    trained = {} if m.trained_on in (None, m.identity) else {"trained on": str(m.trained_on)}
    own = {
        "preset": m.name,
        "model": f"{model.schedule} schedule, predicts {model.predictor}, "
        f"{m.parameters:,} parameters",
        "training": f"{steps} steps, batch {train.batch_size}, density "
        f"{config.objective.density}, order {config.objective.order}, seed {train.seed}",
    }
    adapted = {"model": f"{m.description}; {m.parameters:,} parameters"}
    return {
        **(adapted if m.description else own),
        "data": str(m.identity),
        **trained,
        **origin,
        "solver": f"Adams, {m.likelihoods.nfe} evaluations on one grid, calibrated on "
        f"{min(m.settings.pilot_images, m.identity.test_size)} test images to "
        f"{m.settings.tolerance} bits/dim rms for an image; the error of their mean is "
        f"{m.likelihoods.calibration.solver_mean:+.4f}",
    }


def summary(m: Measurements) -> str:
    """The bits/dim of the run in a sentence or two."""
    value, sde = _value(m.likelihoods.test), m.likelihoods.sde
    shown = f"on the first {len(m.likelihoods.test.per_image)} test images."
    if sde is None:
        return f"{value} bits/dim by the ODE, {shown}"
    return (
        f"{value} bits/dim by the ODE, {sde.mean:.3f} ± {sde.standard_error:.3f} by the SDE, "
        f"{shown} ODE and SDE are two models: neither value bounds the other."
    )


def footer(m: Measurements) -> str:
    """Version, time and seed."""
    return (
        f"idode {__version__}, computed in {m.seconds:.0f} s with seed {m.settings.seed}. Every ± "
        "is one standard error of the mean over images, noise and probes."
    )


def sections(m: Measurements) -> list[Section]:
    """All sections that apply to this run and its data."""
    return [
        *_training(m),
        *_noise(m),
        *_starts(m),
        _bounds(m),
        _costs(m),
        _histogram(m),
        _samples(m),
    ]


def _value(value: BitsPerDim) -> str:
    if math.isnan(value.standard_error):
        return f"{value.mean:.3f}"
    return f"{value.mean:.3f} ± {value.standard_error:.3f}"


def _gamma(gamma: float) -> str:
    """With a minus sign instead of a hyphen, and no line break inside."""
    return f"γ\u00a0=\u00a0{gamma:.2f}".replace("-", "−")


def _kind(value: BitsPerDim) -> str:
    way = value.settings.dequantization
    assert way is not None
    return way.name


def _dequantization(m: Measurements) -> str:
    return NAMES.get(_kind(m.likelihoods.test), "no")


def _training(m: Measurements) -> list[Section]:
    if not m.curve.loss:
        return []
    end = f" It ends at {m.curve.held_out[-1][1]:.3f} bits/dim." if m.curve.held_out else ""
    term = "; the objective has the second-order term from there on" if m.second_order else ""
    tuned = (
        f" Fine-tuning begins at the dashed line, after step {m.curve.finetuned_after:,}{term}."
        if m.curve.finetuned_after
        else ""
    )
    section = Section(
        "training",
        "Training and test curves",
        "Grey: the objective, averaged over each interval of training, without the prior and "
        "reconstruction terms. Blue: the variational bound of the SDE on held-out images, of the "
        f"averaged weights, always with the same noise.{end}{tuned} Values of the first tenth of "
        "training may lie above the axis.",
        figures.png(figures.training(m.curve)),
    )
    return [section]


def _noise(m: Measurements) -> list[Section]:
    noise = m.noise
    made = f"{noise.images} test images, {noise.draws} draws of the noise for each"
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
            "Mean square error per dimension of the same network as a predictor of the noise and "
            "of the normalised velocity. A flat curve is a balanced task. From "
            f"{made}, at {len(noise.gamma)} levels.",
            figures.png(figures.squared_errors(noise)),
        ),
    ]


def _starts(m: Measurements) -> list[Section]:
    if not m.likelihoods.starts or m.identity.levels is None:
        return []
    best = min(m.likelihoods.starts, key=lambda value: value.mean)
    way = best.settings.dequantization
    start = 0.0 if way is None or way.start is None else way.start
    section = Section(
        "uniform-starts",
        "Uniform dequantization against its start",
        f"Bits/dim (K = 1, one draw) on the first {len(best.per_image)} test images when the "
        "ODE starts at γ. Images, noise and probes are the same at every start, so differences "
        "are known better than the bars, one standard error, suggest. Best here: "
        f"{_gamma(start)} with {_value(best)}. Dashed: the default, where the model's noise has "
        "the variance of a bin.",
        figures.png(figures.uniform_starts(m.likelihoods.starts, m.identity.levels)),
    )
    return [section]


def _bounds(m: Measurements) -> Section:
    first = m.likelihoods.bounds[0]
    n, draws = len(first.per_image), first.groups * first.settings.n_importance
    columns = IMPORTANCES if m.identity.levels is not None else (1,)
    rows = []
    for lo in range(0, len(m.likelihoods.bounds), len(columns)):
        group = m.likelihoods.bounds[lo : lo + len(columns)]
        name = NAMES.get(_kind(group[0]), "none (continuous data)")
        error = f"{float(group[0].solver_error.mean()):.3f}"
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
        f"Bits/dim of the first {n} test images, {draws} draws of the noise each, one "
        f"{PROBES.name_of(first.settings.probe)} probe for each image. All K use the same draws, "
        "so values can only fall along a row. NFE: evaluations of the network for one solve, "
        "averaged over images, some of which are solved again on a finer grid. Solver error: its "
        "likely size for one image, in bits/dim. These are few images: use idode evaluate for a "
        "number to quote.",
        table=Table(header, tuple(rows)),
    )


def _costs(m: Measurements) -> Section:
    rows = tuple(
        (s.name, _value(s.value), f"{s.likelihood_nfe}", f"{s.sampling_nfe:.0f}") for s in m.costs
    )
    title, compared = "", "of this run"
    if m.tuned:
        title, compared = ", before and after fine-tuning", "before (first row) and after it"
    elif len(rows) > 1:
        title, compared = " by two runs", "of the run compared with (first row) and of this one"
    n, drawn = len(m.likelihoods.test.per_image), m.settings.samples
    return Section(
        "evaluations",
        "Evaluations needed" + title,
        f"Cost {compared}. Bits/dim with {_dequantization(m)} "
        f"dequantization, K = 1, on the first {n} test images; NFE of the likelihood on a grid "
        f"calibrated to {m.settings.tolerance} bits/dim; NFE of sampling {drawn} images together "
        "by adaptive Dormand-Prince with both tolerances 1e-5, the paper's measure.",
        table=Table(("run", "bits/dim", "NFE, likelihood", "NFE, sampling"), rows),
    )


def _histogram(m: Measurements) -> Section:
    return Section(
        "histogram",
        "Test images by their likelihood",
        f"Bits/dim of each of the first {len(m.likelihoods.test.per_image)} test images "
        f"({_dequantization(m)} dequantization, K = 1, one draw, one "
        "probe), with the most and the least likely of them below it and their values above each.",
        figures.png(figures.histogram(m.likelihoods.test, m.likelihoods.data, m.identity.levels)),
    )


def _samples(m: Measurements) -> Section:
    levels, data = m.identity.levels, m.samples.data
    made = (
        f"{len(data)} samples by Dormand-Prince at 1e-5 with {m.samples.nfe:.0f} evaluations, "
        f"seed {m.settings.seed}, not selected."
    )
    if levels is None or data.ndim != 4 or data.shape[1] not in (1, 3):
        return Section(
            "samples", "Samples", made, figures.png(figures.points(data, m.likelihoods.data))
        )
    return Section("samples", "Samples", made, picture_png(grid(data, levels)), pixelated=True)
