"""The systems the paper compares, each as a difference from a preset: one line of settings.

A system is a schedule, a predictor, a weighting, a time density and an objective; network, data
and optimisation come from the preset it is applied to, so that systems compare on equal terms.
All learn quantization, as they do in their papers.
The least noise is the preset's, since bounds on integers need noise that fits a bin; so is the
most, but for systems whose paper ends its clock elsewhere (math.md: their-ends).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from idode.errors import choose
from idode.nets.config import NO_PATH
from idode.runs.config import Config, ObjectiveConfig, override

__all__ = ["COMPARED", "LATER", "SYSTEMS", "System", "apply", "distinct"]

SCORE_SDE_END = "model.gamma_max=10.05"  # t = 1 of linear beta, 0.1 to 20
EDM_END = "model.gamma_max=8.764"  # sigma = 80
VE_END = "model.gamma_max=9.21"  # sigma = 50 on pixels in [0, 1] is 100 on ours


@dataclass(frozen=True)
class System:
    """What makes a system, in the words of ``--set``; a part it does not name is i-DODE's."""

    summary: str
    settings: tuple[str, ...]


def system(summary: str, schedule: str, predictor: str, density: str, *more: str) -> System:
    """A line of :data:`COMPARED`; ``more`` is what is neither default nor of every system."""
    parts = {
        "model.schedule": schedule,
        "model.predictor": predictor,
        "objective.density": density,
    }
    return System(summary, (*(f"{name}={value}" for name, value in parts.items()), *more))


SIMPLE, UNIFORM = "objective.weighting=simple", "objective.data=uniform"
# The network adds its input, so it is asked for the velocity towards noise; the papers that have
# data at time 1 have the same loss with the other sign.
STRAIGHT, TURNING = "straight", "trigonometric"

COMPARED: dict[str, System] = {
    "vdm": system("VDM: noise, likelihood, uniform gamma", "vp", "noise", "uniform-gamma"),
    "scoresde": system(
        "ScoreSDE: noise, simple weighting, uniform time",
        *("vp", "noise", "uniform-time:linear-beta", SIMPLE, SCORE_SDE_END),
    ),
    "scoreflow": system(
        "ScoreFlow: likelihood, its importance sampling, uniformly dequantized data",
        *("vp", "noise", "uniform-gamma", UNIFORM, SCORE_SDE_END),
    ),
    "soft-truncation": system(
        "Soft Truncation: ScoreFlow above a random smallest time",
        *("vp", "noise", "uniform-gamma", UNIFORM, SCORE_SDE_END, "objective.truncation=1"),
    ),
    "flow-matching": system(
        "Flow Matching: optimal-transport path, its velocity, uniform time",
        *("sp", f"velocity:{STRAIGHT}", f"uniform-time:{STRAIGHT}", SIMPLE),
    ),
    "stochastic-interpolant": system(
        "Stochastic Interpolants: trigonometric path, its velocity, uniform time",
        *("vp", f"velocity:{TURNING}", f"uniform-time:{TURNING}", SIMPLE),
    ),
    "rectified-flow": system(
        "Rectified Flow before reflow: straight path, its velocity, uniform time",
        *("sp", f"velocity:{STRAIGHT}", f"uniform-time:{STRAIGHT}", SIMPLE),
    ),
    "high-order-dsm": system(
        "Lu et al. 2022: denoising score matching to the second order",
        *("ve", "noise-of-scaled", "uniform-gamma", VE_END),
        *("objective.order=2", "objective.second=score-matching", "objective.ratio=1"),
    ),
    "ffjord": system(
        "FFJORD: free velocity on a unit time, maximum likelihood through the solver",
        *("vp", f"velocity:{TURNING}", f"uniform-time:{TURNING}", UNIFORM),
        "objective.method=simulation",
    ),
    "edm": system(
        "EDM: preconditioned denoiser, unit weight on its network, log-normal noise",
        *("ve", "preconditioned", "normal-gamma", SIMPLE, EDM_END),
    ),
    "idode-vp": system(
        "i-DODE: normalised velocity, designed density, variance preserving",
        *("vp", "normalized-velocity", "designed"),
    ),
    "idode-sp": system(
        "i-DODE: normalised velocity, designed density, straight path",
        *("sp", "normalized-velocity", "designed"),
    ),
}

LATER: dict[str, System] = {  # than the paper, whose claims say nothing of them
    "mulan": system(
        "MuLAN: VDM with a learned noise level for each dimension, by a code of the image",
        *("vp", "noise", "uniform-gamma", "path.bits=50"),
    ),
}

TECHNIQUES = {
    "noise": ("without the velocity", "noise", "designed"),
    "uniform": ("without importance sampling", "normalized-velocity", "uniform-gamma"),
    "adaptive": ("with learned importance sampling", "normalized-velocity", "adaptive"),
}
SYSTEMS: dict[str, System] = (
    COMPARED
    | LATER
    | {
        f"idode-{path}-{name}": system(f"i-DODE {path.upper()} {summary}", path, *parts)
        for path in ("vp", "sp")
        for name, (summary, *parts) in TECHNIQUES.items()
    }
)


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """The names without those that are the same training as an earlier one.

    >>> distinct(["vdm", "flow-matching", "rectified-flow"])
    ('vdm', 'flow-matching')
    """
    first: dict[tuple[str, ...], str] = {}
    for name in names:
        first.setdefault(choose("system", name, SYSTEMS).settings, name)
    return tuple(first.values())


def apply(base: Config, name: str) -> Config:
    """The preset ``base`` with the parts of the system called ``name``."""
    chosen = choose("system", name, SYSTEMS)
    plain, ours = ObjectiveConfig(), base.objective
    parts = ("order", "weighting", "data", "truncation", "second", "method")
    objective = replace(ours, **{part: getattr(plain, part) for part in parts})
    model = replace(base.model, quantization="learned")
    fresh = replace(base, objective=objective, path=NO_PATH, model=model)
    return override(fresh, chosen.settings)
