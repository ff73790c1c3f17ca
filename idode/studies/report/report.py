"""``idode.report``: a trained run as one page with the paper's figures."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from idode.data.memory import Data
from idode.errors import InputError
from idode.progress import LateBar
from idode.runs import SHIPPED
from idode.runs.distributed import best_device
from idode.runs.run import REPORT, Run, open_run
from idode.studies.report.measurements import Measurements, measure, stages
from idode.studies.report.page import check_folder, write_page
from idode.studies.report.sections import facts, footer, sections, summary
from idode.studies.report.settings import FAST, FULL, ReportSettings

__all__ = ["Report", "report"]


@dataclass(frozen=True)
class Report:
    """Where a report is, and the numbers in it."""

    page: Path  # the HTML file, which needs no other file
    measurements: Measurements

    def __str__(self) -> str:
        return f"{self.page}\n{summary(self.measurements)}\n{self.measurements.identity}"

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain values."""
        return self.measurements.to_json()


def report(
    run: Run | Path | str,
    *,
    out: Path | str | None = None,
    data: Data | None = None,
    before: Run | Path | str | None = None,
    limit: int | None = None,
    full: bool = False,
    seed: int = 0,
    net: nn.Module | None = None,
    force: bool = False,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> Report:
    """Write one page with the paper's figures for a trained run.

    Args:
        run: A run folder, a :class:`~idode.runs.run.Run`, or ``pretrained:NAME``.
        out: Folder of the report; by default ``RUN/report``.
        data: A spec, a data set, or a pair of arrays; by default that of the run.
        before: A run to compare with; by default the one this run was fine-tuned from, if it is
            still there.
        limit: Test images in the table of bounds; by default those of the settings,
            :data:`~idode.studies.report.settings.FAST` or, with ``full``, ``FULL``.
        full: Use the paper's numbers of draws and more images, which takes far longer.
        seed: Seed of all random numbers.
        net: An instance of the user's own network, for a run that was trained with one.
        force: Replace the report in the folder.
        device: By default the best one there is.
        progress: Whether to show a progress bar.

    Returns:
        The page and its numbers.
    """
    folder, opened = _folder(run, out), open_run(run)
    check_folder(folder, force)
    settings = _settings(limit, full, seed)
    chosen, place = opened.load_data(data), best_device(device)
    compared = _before(opened, before, progress)
    parts = stages(compared is not None)
    with LateBar("part", not progress, len(parts)) as late:

        def begin(stage: str) -> None:
            late.bar.set_description(stage)
            late.update(min(1, parts.index(stage)))

        found = measure(
            opened, chosen, settings, before=compared, net=net, device=place, progress=begin
        )
        late.update(1)
    title = f"Report on {opened.path.resolve().name}"
    about = facts(found, opened.config)
    page = write_page(folder, title, summary(found), about, sections(found), footer(found))
    return Report(page, found)


def _folder(run: Run | Path | str, out: Path | str | None) -> Path:
    if out is not None:
        return Path(out)
    if not isinstance(run, Run) and str(run).startswith(SHIPPED):
        raise InputError(f"{run} is part of the package: give another folder for its report")
    return open_run(run).path / REPORT


def _settings(limit: int | None, full: bool, seed: int) -> ReportSettings:
    settings = dataclasses.replace(FULL if full else FAST, seed=seed)
    if limit is None:
        return settings
    if limit < 1:
        raise InputError(f"limit must be at least 1, got {limit}")
    return dataclasses.replace(settings, bounds_images=limit, images=max(limit, settings.images))


def _before(run: Run, before: Run | Path | str | None, progress: bool) -> Run | None:
    """The run to compare with: the one asked for, else the one ``run`` was fine-tuned from."""
    if before is not None:
        return open_run(before)
    if run.parent is None or run.parent.width is not None:
        return None
    try:
        found = open_run(run.parent.run)
        if run.parent.has(found):
            return found
        state = "has changed since"
    except (InputError, OSError):
        state = "no longer exists"
    if progress:
        text = f"note: {run.parent.run}, which this run was fine-tuned from, {state}"
        print(text, file=sys.stderr)
    return None
