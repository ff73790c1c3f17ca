"""``idode report`` before it measures anything: what it refuses, and what it compares with."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from idode.cli.main import main
from idode.runs.run import Parent, Run, build_net, save_model
from idode.storage import checksum


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose network has not learned anything, on data of its own."""
    monkeypatch.setenv("IDODE_DATA", str(tmp_path / "data"))
    np.save(tmp_path / "x.npy", tiny.images())
    return new(tmp_path / "run", None)


def new(path: Path, parent: Parent | None) -> Path:
    config = replace(tiny.config(), data=f"npy:{path.parent / 'x.npy'}?levels=4")
    Run(path, config, None, parent).write_config()
    save_model(path, build_net(config, torch.Generator().manual_seed(0)).state_dict())
    return path


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    return said.err


def test_wrong_input_is_one_sentence_before_any_bar(run: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(run, tmp_path / "young")
    (tmp_path / "young" / "model.safetensors").unlink()
    (tmp_path / "empty").mkdir()
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(b"no picture")
    for words, said in (
        ([tmp_path / "none"], "there is no run folder"),
        ([tmp_path / "empty"], "not the folder of a run"),
        ([tmp_path / "young"], "has no model.safetensors: training stopped before"),
        ([run, "--before", tmp_path / "none"], "there is no run folder"),
        ([run, "--before", tmp_path / "young"], "go on by `idode train --resume"),
        ([run, "--before", "pretrained:digits"], "choose data of its kind"),
        ([run, "--data", "digits"], "choose data of its kind"),
        ([run, "--data", f"folder:{tmp_path / 'pictures'}"], "a.png is not a readable image"),
        ([run, "--limit", "-1"], "--limit: must be at least 1, got -1"),
        ([run, "--device", "abacus"], "(there is no such kind): use cpu"),
        (["pretrained:digits"], "part of the package: give another folder"),
        (["pretrained:digit", "--out", tmp_path / "out"], "no pretrained model called 'digit'"),
        ([run, "--json", tmp_path / "x.npy"], "exists"),
        (
            [run, "--out", tmp_path / "pictures", "--force"],
            "holds a.png, which is not part of a report",
        ),
    ):
        assert main(["report", *map(str, words)]) == 2
        assert said in refused(capsys)
    assert not (run / "report").exists()


class Measured(Exception):
    """Thrown in place of the measurements, with the run to compare with."""


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch, capsys):
    def measure(run, data, settings, *, before, net, device, progress):
        for stage in ("noise levels", "samples"):
            progress(stage)
        raise Measured(before and str(before.path))

    monkeypatch.setattr("idode.studies.report.report.measure", measure)

    def asked(*words: object) -> tuple[str | None, str]:
        with pytest.raises(Measured) as caught:
            main(["report", *map(str, words)])
        return caught.value.args[0], capsys.readouterr().err

    return asked


def test_a_fine_tuned_run_is_compared_with_where_it_came_from(
    run: Path, tmp_path: Path, compared
) -> None:
    weights = run / "model.safetensors"
    tuned = new(tmp_path / "tuned", Parent(str(run), 7, checksum(weights)))
    before, shown = compared(tuned)
    assert before == str(run)
    assert "/6 " in shown  # parts, with the one before fine-tuning
    averaged = new(tmp_path / "averaged", Parent(str(run), 7, checksum(weights), width=0.1))
    for alone in (run, averaged):
        before, shown = compared(alone)
        assert before is None
        assert "/5 " in shown
    assert compared(run, "--before", tuned)[0] == str(tuned)
    save_model(run, {"other": torch.zeros(1)})
    before, shown = compared(tuned)
    assert before is None
    assert "has changed since" in shown
    shutil.rmtree(run)
    before, shown = compared(tuned)
    assert before is None
    assert "no longer exists" in shown
    assert "note" not in compared(tuned, "--quiet")[1]
