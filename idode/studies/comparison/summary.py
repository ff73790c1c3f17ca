"""A comparison: the results of all runs put together."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from idode import __version__
from idode.data.identity import Identity
from idode.runs.run import open_run
from idode.studies.comparison.claims import Verdict, verdicts
from idode.studies.comparison.curves import learning_curve
from idode.studies.comparison.experiment import Experiment
from idode.studies.comparison.folder import HTML
from idode.studies.comparison.plan import Plan
from idode.studies.comparison.table import Outcome, Row, outcomes, rows

__all__ = ["Comparison", "summarise"]


@dataclass(frozen=True)
class Comparison:
    """The results of all systems."""

    out: Path  # folder of the runs and of the page
    plan: Plan
    identity: Identity  # of the data
    outcomes: tuple[Outcome, ...]  # one for each run
    rows: tuple[Row, ...]  # one for each system, averaged over seeds
    verdicts: tuple[Verdict, ...]  # on claims of the paper
    features: str  # name of the features that the Fréchet distance uses
    test_images_fid: float  # that distance for as many test images as there are samples
    images: int  # of the SDE bound
    steps: int

    @property
    def page(self) -> Path:
        """The HTML file, which needs no other file."""
        return self.out / HTML

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "idode": __version__,
            "plan": {**self.plan.shared(), "measurement": asdict(self.plan.measurement)},
            "data": self.identity.to_json(),
            "features": self.features,
            "fid_of_test_images": self.test_images_fid,
            "systems": {row.name: self._row_json(row) for row in self.rows},
            "orderings": [
                {
                    "claim": str(v.claim),
                    "source": v.claim.source,
                    "difference": v.difference,
                    "standard_error": v.standard_error,
                    "seeds": v.seeds,
                    "verdict": v.word,
                }
                for v in self.verdicts
            ],
        }

    def _row_json(self, row: Row) -> dict[str, Any]:
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
            for o in self.outcomes
            if o.entry.name == row.name
        }
        cells = {
            name: {"mean": cell.mean, "standard_error": cell.standard_error, "count": cell.count}
            for name, cell in row.cells.items()
        }
        return {"mean": cells, "seeds": runs, "failures": list(row.failures)}


def summarise(experiment: Experiment) -> Comparison:
    """Put together the results of an experiment whose runs have all been carried out."""
    plan, identity = experiment.plan, experiment.data.identity
    entries = plan.entries()
    found = outcomes(
        (experiment.result(entry), learning_curve(open_run(entry.folder(experiment.out))))
        for entry in entries
    )
    train = plan.config(entries[0], identity).train
    features, fid = experiment.test_images_fid()
    return Comparison(
        out=experiment.out,
        plan=plan,
        identity=identity,
        outcomes=tuple(found),
        rows=tuple(rows(plan.names(), found)),
        verdicts=tuple(verdicts(found)),
        features=features,
        test_images_fid=fid,
        images=min(train.evaluate_count, identity.test_size),
        steps=train.steps,
    )
