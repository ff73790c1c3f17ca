"""From the folders of finished runs to a comparison."""

from __future__ import annotations

from idode.runs.run import open_run
from idode.studies.comparison.curves import learning_curve
from idode.studies.comparison.experiment import Bench
from idode.studies.comparison.orderings import verdicts
from idode.studies.comparison.page import Comparison
from idode.studies.comparison.table import outcomes, rows

__all__ = ["summarise"]


def summarise(bench: Bench) -> Comparison:
    """Everything that the runs of a bench say; they must all have been carried out."""
    plan, identity = bench.plan, bench.data.identity
    entries = plan.entries()
    found = outcomes(
        (bench.result(entry), learning_curve(open_run(entry.folder(bench.out))))
        for entry in entries
    )
    train = plan.config(entries[0], identity).train
    features, yardstick = bench.yardstick()
    return Comparison(
        plan=plan,
        identity=identity,
        outcomes=tuple(found),
        rows=tuple(rows(plan.names(), found)),
        verdicts=tuple(verdicts(found)),
        features=features,
        yardstick=yardstick,
        images=min(train.evaluate_count, identity.test_size),
        steps=train.steps,
    )
