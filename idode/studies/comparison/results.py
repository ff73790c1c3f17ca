"""The result of one run: its measured values and failures, stored as a file in the run folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from idode.errors import InputError
from idode.storage import read_json, write_atomically
from idode.studies.comparison.plan import Entry
from idode.studies.comparison.settings import MeasurementSettings

__all__ = ["PARTS", "RESULT", "Result", "measured_with", "read_result", "write_result"]

PARTS = ("training", "sde", "ode", "sampling")
RESULT = "result.json"
LARGEST = 1e300


@dataclass(frozen=True)
class Result:
    """Measured values of a run by metric. Each part is done, has failed, or is missing."""

    entry: Entry
    measurement: MeasurementSettings
    values: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)  # by part that is done
    failures: Mapping[str, str] = field(default_factory=dict)  # reasons by part that failed
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Parts still to be done; none where training failed, since nothing can be measured."""
        if "training" in self.failures:
            return ()
        return tuple(p for p in PARTS if p not in self.seconds and p not in self.failures)

    def done(
        self, part: str, seconds: float, values: Mapping[str, float], notes: tuple[str, ...] = ()
    ) -> Result:
        """The result with one more part done."""
        return replace(
            self,
            values={**self.values, **values},
            seconds={**self.seconds, part: seconds},
            notes=(*self.notes, *notes),
        )

    def failed(self, part: str, reason: str) -> Result:
        """The result with one more part failed."""
        return replace(self, failures={**self.failures, part: reason})

    def training_only(self, measurement: MeasurementSettings) -> Result:
        """What remains if the run is measured with other settings: its training."""
        return Result(
            self.entry,
            measurement,
            seconds={p: s for p, s in self.seconds.items() if p == "training"},
            failures={p: reason for p, reason in self.failures.items() if p == "training"},
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), allow_nan=False))
        return found


def read_result(folder: Path, entry: Entry, measurement: MeasurementSettings) -> Result:
    """The result in a run folder, or an empty one.

    Values that were measured with other settings are left out; the training remains.
    """
    path, found = folder / RESULT, _stored(folder)
    if found is None:
        return Result(entry, measurement)
    if found.entry != entry:
        raise InputError(
            f"{path} is of {found.entry.name} seed {found.entry.seed}, not of {entry.name} seed "
            f"{entry.seed}: remove it to measure again"
        )
    return found if found.measurement == measurement else found.training_only(measurement)


def measured_with(folder: Path) -> MeasurementSettings | None:
    """How the values in a run folder were measured; ``None`` if there are none."""
    found = _stored(folder)
    return None if found is None or not found.values else found.measurement


def _stored(folder: Path) -> Result | None:
    path = folder / RESULT
    if not path.exists():
        return None
    try:
        fields = read_json(path)
        if not isinstance(fields, dict):
            raise TypeError("it is no table of names")
        if "effort" in fields:  # its name in version 0.1.0
            fields["measurement"] = fields.pop("effort")
        found = Result(
            **{
                **fields,
                "entry": Entry(**fields["entry"]),
                "measurement": MeasurementSettings(**fields["measurement"]),
                "notes": tuple(fields["notes"]),
            }
        )
        _check_kinds(found)
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} cannot be read ({error}): remove it to measure again") from None


def _check_kinds(found: Result) -> None:
    """Refuse values of other types than are written, as a file may hold any."""
    numbers = [*found.values.values(), *found.seconds.values()]
    if not all(type(x) in (int, float) and abs(x) < LARGEST for x in numbers):
        raise ValueError("a value is not a finite number")
    if not all(isinstance(x, str) for x in (*found.failures.values(), *found.notes)):
        raise ValueError("a text is of another kind")


def write_result(folder: Path, result: Result) -> None:
    """Write the result of a run atomically."""
    try:
        write_atomically(folder / RESULT, json.dumps(result.to_json(), indent=1) + "\n")
    except OSError as error:
        raise InputError(
            f"cannot write {folder / RESULT} ({error.strerror}): make room and run it again"
        ) from None
