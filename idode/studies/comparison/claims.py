"""Claims of the paper, tested by paired differences over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from idode.runs.systems import COMPARED
from idode.studies.comparison.plan import BASELINE, FINETUNED
from idode.studies.comparison.table import Outcome

__all__ = ["Claim", "Verdict", "claims", "t_quantile", "verdicts"]

CONFIDENCE = 0.95  # two-sided: 2.5% in either tail
WORDS = {
    "sde": "SDE bound",
    "tn": "ODE truncated normal",
    "uniform": "ODE uniform",
    "least_steps": f"steps to the final bound of {BASELINE}",
    "sampling_nfe": "NFE of dopri5",
    "fid": "FID*",
}


@dataclass(frozen=True)
class Claim:
    """One value is less than another, or less than ``factor`` times it."""

    less: tuple[str, str]  # name of a row, metric
    more: tuple[str, str]
    source: str  # in the paper
    factor: float = 1.0

    def __str__(self) -> str:
        (a, metric), (b, other) = self.less, self.more
        times = "" if self.factor == 1 else f"{self.factor:g} x "
        if metric == other:
            return f"{WORDS[metric]}: {a} < {times}{b}"
        return f"{a}: {WORDS[metric]} < {times}{WORDS[other]}"


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, by the mean of ``less - factor * more`` over seeds with both."""

    claim: Claim
    difference: float
    standard_error: float | None  # None for a single seed
    seeds: int

    @property
    def word(self) -> str:
        """Holds, does not hold, or not decided: the 95% interval of Student's t includes zero."""
        if self.standard_error is None:
            return "not decided"
        if abs(self.difference) < t_quantile(self.seeds - 1) * self.standard_error:
            return "not decided"
        return "holds" if self.difference < 0 else "does not hold"

    def texts(self) -> list[str]:
        """The cells of the printed table."""
        bar = "" if self.standard_error is None else f"{self.standard_error:.3g}"
        difference = f"{self.difference:+.3g}"
        return [str(self.claim), difference, bar, str(self.seeds), self.word, self.claim.source]


def t_quantile(freedom: int) -> float:
    """The 97.5% quantile of Student's t distribution for a whole number of degrees of freedom.

    The probability of |t| < sqrt(freedom) tan(angle) is a finite sum, inverted by bisection.

    >>> [round(t_quantile(n), 3) for n in (1, 2, 9)]
    [12.706, 4.303, 2.262]
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (low, angle) if _within(angle, freedom) > CONFIDENCE else (angle, high)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    odd = freedom % 2
    term = math.sin(angle) * (math.cos(angle) if odd else 1.0)
    total = 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= k / (k + 1) * math.cos(angle) ** 2
    return 2 / math.pi * (angle + total) if odd else total


def claims() -> list[Claim]:
    """The comparative statements of the paper, for systems that a table may have."""
    found = [
        Claim(("idode-vp", "least_steps"), (BASELINE, "least_steps"), "test curves"),
        Claim(("idode-vp", "least_steps"), (BASELINE, "least_steps"), "2x to 3x faster", 0.5),
        Claim(("idode-sp", "least_steps"), (BASELINE, "least_steps"), "test curves"),
        *(Claim(("idode-vp", m), (BASELINE, m), "ablation table") for m in ("tn", "uniform")),
        Claim(("idode-vp", "sde"), (BASELINE, "sde"), "test curves"),
        Claim(("idode-sp", "sde"), (BASELINE, "sde"), "test curves"),
        # The paper's own models are not the better ones everywhere.
        *(
            Claim((BASELINE, m), ("idode-vp", m), "ablation table")
            for m in ("sampling_nfe", "fid")
        ),
        Claim(("idode-vp-uniform", "sde"), (BASELINE, "sde"), "ablation, velocity"),
        Claim(("idode-vp", "sde"), ("idode-vp-uniform", "sde"), "ablation, designed sampling"),
        Claim(("idode-vp-adaptive", "sde"), ("idode-vp", "sde"), "ablation, adaptive sampling"),
        Claim(("idode-vp", "uniform"), ("idode-sp", "uniform"), "table of bounds"),
        Claim(("idode-vp", "tn"), ("idode-sp", "tn"), "table of bounds, ImageNet-32"),
        Claim(("idode-vp", "fid"), ("idode-sp", "fid"), "main table"),
        # MuLAN came later: the claim is that of its own paper.
        *(Claim(("mulan", m), (BASELINE, m), "Sahoo et al. 2024") for m in ("sde", "tn")),
    ]
    others = [name for name in COMPARED if name not in (BASELINE, *FINETUNED)]
    found += [
        Claim((mine, "tn"), (other, "tn"), "main table") for other in others for mine in FINETUNED
    ]
    found += [
        Claim((name, "tn"), (name, "uniform"), "ablation table") for name in (BASELINE, *FINETUNED)
    ]
    for name in FINETUNED:
        tuned = f"{name}+finetune"
        found += [
            Claim((tuned, metric), (before, metric), "ablation, fine-tuning")
            for metric in ("tn", "sampling_nfe")
            for before in (name, f"{name}+control")
        ]
    return found


def verdicts(found: Sequence[Outcome], asked: Iterable[Claim] | None = None) -> list[Verdict]:
    """A verdict on each claim that the runs have values for."""
    values = {(o.entry.name, o.entry.seed): o.values for o in found}
    seeds = sorted({o.entry.seed for o in found})
    answers = []
    for claim in claims() if asked is None else asked:
        (a, metric), (b, other) = claim.less, claim.more
        pairs = [
            (values[a, s][metric], values[b, s][other])
            for s in seeds
            if metric in values.get((a, s), {}) and other in values.get((b, s), {})
        ]
        if pairs:
            answers.append(_verdict(claim, [x - claim.factor * y for x, y in pairs]))
    return answers


def _verdict(claim: Claim, differences: Sequence[float]) -> Verdict:
    n = len(differences)
    error = statistics.stdev(differences) / math.sqrt(n) if n > 1 else None
    return Verdict(claim, statistics.fmean(differences), error, n)
