"""What came of one run, as a file beside it: everything that was measured, and what failed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from idode.errors import InputError
from idode.storage import write_atomically
from idode.studies.comparison.plan import Effort, Entry

__all__ = ["PARTS", "RESULT", "Result", "measured_with", "read_result", "write_result"]

PARTS = ("training", "sde", "ode", "sampling")
RESULT = "result.json"


@dataclass(frozen=True)
class Result:
    """The measured values of a run by metric; a part is done or has failed for a reason."""

    entry: Entry
    effort: Effort
    values: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)  # by part that is done
    failures: Mapping[str, str] = field(default_factory=dict)  # by part that is not
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Parts that are still to be done; nothing can be measured where training failed."""
        if "training" in self.failures:
            return ()
        return tuple(p for p in PARTS if p not in self.seconds and p not in self.failures)

    def done(
        self, part: str, seconds: float, values: Mapping[str, float], notes: tuple[str, ...] = ()
    ) -> Result:
        """The same with one more part."""
        return replace(
            self,
            values={**self.values, **values},
            seconds={**self.seconds, part: seconds},
            notes=(*self.notes, *notes),
        )

    def failed(self, part: str, reason: str) -> Result:
        """The same with the reason why a part has no values."""
        return replace(self, failures={**self.failures, part: reason})

    def trained(self, effort: Effort) -> Result:
        """What stays with another effort: the training, which has no values."""
        own = PARTS[:1]
        return Result(
            self.entry,
            effort,
            seconds={p: s for p, s in self.seconds.items() if p in own},
            failures={p: reason for p, reason in self.failures.items() if p in own},
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), allow_nan=False))
        return plain


def read_result(folder: Path, entry: Entry, effort: Effort) -> Result:
    """The result in a run folder, or a fresh one; of another effort, its training alone."""
    path, found = folder / RESULT, _stored(folder)
    if found is None:
        return Result(entry, effort)
    if found.entry != entry:
        raise InputError(
            f"{path} is of {found.entry.name} seed {found.entry.seed}, not of {entry.name} seed "
            f"{entry.seed}: remove it to measure again"
        )
    return found if found.effort == effort else found.trained(effort)


def measured_with(folder: Path) -> Effort | None:
    """The effort that the values in a run folder were measured with; ``None`` without values."""
    found = _stored(folder)
    return None if found is None or not found.values else found.effort


def _stored(folder: Path) -> Result | None:
    path = folder / RESULT
    if not path.exists():
        return None
    try:
        fields = json.loads(path.read_text())
        return Result(
            **{
                **fields,
                "entry": Entry(**fields["entry"]),
                "effort": Effort(**fields["effort"]),
                "notes": tuple(fields["notes"]),
            }
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}): remove it to measure again") from None


def write_result(folder: Path, result: Result) -> None:
    """Store a result whole or not at all."""
    try:
        write_atomically(folder / RESULT, json.dumps(result.to_json(), indent=1) + "\n")
    except OSError as error:
        raise InputError(
            f"cannot write {folder / RESULT} ({error.strerror}): make room and run it again"
        ) from None
