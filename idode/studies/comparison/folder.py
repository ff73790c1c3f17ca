"""The folder of a comparison.

::

    DIR/plan.json                    what all trainings have in common
    DIR/SYSTEM/seed-S/               a run like any other, with result.json
    DIR/compare.{json,md,html}       the comparison, with its pictures as PNG files
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idode.data.identity import Identity, same_data
from idode.errors import InputError
from idode.runs.config import Config, override, to_json
from idode.runs.folder import clear
from idode.runs.run import holds_run, open_run
from idode.storage import read_json, write_atomically
from idode.studies.comparison.plan import Plan
from idode.studies.comparison.results import RESULT

__all__ = ["HTML", "JSON", "MARKDOWN", "check_folder", "clear_folder", "write_plan"]

PLAN = "plan.json"
HTML, MARKDOWN, JSON = "compare.html", "compare.md", "compare.json"
PICTURES = ("curves-steps.png", "curves-seconds.png", "values.png")


def stored_plan(out: Path) -> dict[str, Any] | None:
    """The plan stored in a folder; ``None`` if it has none, or the plan.json of something else."""
    try:
        stored = read_json(out / PLAN)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        raise InputError(f"{out / PLAN} cannot be read: give another folder") from None
    return stored if isinstance(stored, dict) and {"preset", "finetune"} <= stored.keys() else None


def check_folder(out: Path, plan: Plan, identity: Identity) -> None:
    """Refuse a folder of something else, or of a comparison with other settings."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give a folder for the comparison")
    if not out.exists() or not any(not p.name.startswith(".") for p in out.iterdir()):
        return
    stored = stored_plan(out)
    if stored is None:
        raise InputError(f"{out} is not empty and holds no comparison: give another folder")
    stored.pop("effort", None)  # version 0.1.0 stored how runs were measured
    _check_same(out, stored, plan.shared())
    for entry in plan.entries():
        folder = entry.folder(out)
        if holds_run(folder):
            run = open_run(folder)
            _check_same(folder, _planned(run.config), _planned(plan.config(entry, identity)))
            began = run.identity
            if began is not None and not same_data(began, identity):
                raise InputError(
                    f"{folder} was trained on other data ({began}) than is given ({identity}): "
                    "give its own, or another folder"
                )


def _planned(config: Config) -> dict[str, Any]:
    """Settings without the number of pieces, which a run chooses where memory runs out."""
    return to_json(override(config, ["train.accumulate=1"]))


def _check_same(folder: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse settings that differ, and name them."""
    before, now = _flat(stored), _flat(wanted)
    differ = [k for k in sorted(before.keys() | now.keys()) if before.get(k) != now.get(k)]
    if differ:
        name, others = differ[0], len(differ) - 1
        more = f", and {others} more" if others else ""
        raise InputError(
            f"{folder} was started with other settings ({name}: {before.get(name)} there, "
            f"{now.get(name)} here{more}): give the same, another folder, or --force to start over"
        )


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted names."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            found |= _flat(item, f"{prefix}{key}.")
        else:
            found[prefix + key] = item
    return found


def write_plan(out: Path, plan: Plan) -> None:
    """Create the folder, if need be, and store what its trainings share."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / PLAN, json.dumps(plan.shared(), indent=1) + "\n")
    except OSError as error:
        raise InputError(
            f"cannot write to {out} ({error.strerror}): give a folder you may write to"
        ) from None


def clear_folder(out: Path) -> None:
    """Remove the comparison in a folder, and no file that idode did not write."""
    if stored_plan(out) is None:
        return
    for folder in filter(holds_run, out.glob("*/seed-*")):
        if folder.is_symlink() or folder.parent.is_symlink():
            continue  # what a link points to is not ours to remove
        (folder / RESULT).unlink(missing_ok=True)  # first: without its run it would count as done
        clear(folder)
        with contextlib.suppress(OSError):  # it holds other files, which stay
            folder.rmdir()
            folder.parent.rmdir()
    for name in (JSON, MARKDOWN, HTML, *PICTURES):
        (out / name).unlink(missing_ok=True)
    (out / PLAN).unlink()  # last: after a kill on the way, the rest can still be replaced
