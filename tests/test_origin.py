"""Where a run comes from: fresh weights, a checkpoint, or the model it is fine-tuned from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from forking import forks

from idode.cli.main import main
from idode.errors import InputError
from idode.runs.config import override
from idode.runs.run import Parent, Run, open_run
from idode.training import checkpoint
from idode.training.finetuning import finetuned
from idode.training.train import train
from idode.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDODE_DATA", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 20 steps on images in a file."""
    folder = tmp_path_factory.mktemp("trained")
    np.save(folder / "x.npy", tiny.images())
    words = ["train", "digits", "--data", f"npy:{folder / 'x.npy'}?levels=4", *tiny.FLAGS]
    assert main([*words, "--out", str(folder / "run"), "--quiet"]) == 0
    return folder / "run"


def finetune(run: Path, out: Path, *more: str) -> list[str]:
    books = ["--set", "train.checkpoint_every=4", "--set", "net.dropout=0"]
    return ["finetune", str(run), "--out", str(out), "--steps", "12", *books, "--quiet", *more]


def state(run: Path, step: int = 12) -> bytes:
    return (run / "checkpoints" / f"step-{step:09d}" / "state.safetensors").read_bytes()


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    return captured.err


def half_written(run: Path, out: Path) -> None:
    """What a death before the first checkpoint leaves."""
    assert main(finetune(run, out)) == 0
    shutil.rmtree(out / "checkpoints")
    (out / "model.safetensors").unlink()


class TestParent:
    def test_a_fine_tuned_run_knows_it(self, trained: Path, tmp_path: Path) -> None:
        assert open_run(trained).parent is None
        assert main(finetune(trained, tmp_path / "more")) == 0
        parent = open_run(tmp_path / "more").parent
        digest = hashlib.sha256((trained / "model.safetensors").read_bytes()).hexdigest()
        assert parent == Parent(str(trained.resolve()), 20, digest)
        assert str(parent) == f"{trained.resolve()} after step 20 ({digest[:12]})"

    def test_a_shipped_one_is_known_by_its_name(self, tmp_path: Path) -> None:
        words = ["finetune", "pretrained:digits", "--out", str(tmp_path / "more"), "--quiet"]
        few = ["--steps", "1", "--set", "train.batch_size=2", "--set", "train.evaluate_count=2"]
        assert main([*words, *few, "--set", "train.sample_every=0"]) == 0
        parent = open_run(tmp_path / "more").parent
        assert parent is not None
        assert (parent.run, parent.step) == ("pretrained:digits", None)

    def test_it_stays_when_the_run_is_resumed(self, trained: Path, tmp_path: Path) -> None:
        out = tmp_path / "more"
        assert main(finetune(trained, out)) == 0
        parent = open_run(out).parent
        assert main(["train", "--resume", "--out", str(out), "--steps", "13", "--quiet"]) == 0
        assert open_run(out).parent == parent

    def test_it_survives_the_file_and_older_files_have_none(self, tmp_path: Path) -> None:
        run = dataclasses.replace(tiny.new_run(tmp_path), parent=Parent("a", 3, "0" * 64))
        run.write_config()
        assert open_run(tmp_path) == run
        path = tmp_path / "config.json"
        fields = json.loads(path.read_text())
        assert fields["parent"].keys() == {"run", "step", "sha256"}  # as version 0.2 reads it
        for wrong in ({"run": "a"}, {**fields["parent"], "width": "wide"}):
            path.write_text(json.dumps({**fields, "parent": wrong}))
            with pytest.raises(InputError, match="is damaged"):
                open_run(tmp_path)
        del fields["parent"]
        path.write_text(json.dumps(fields))
        assert open_run(tmp_path).parent is None

    def test_another_one_is_refused(self, trained: Path, tmp_path: Path, capsys) -> None:
        assert main(finetune(trained, tmp_path / "more")) == 0
        moved = tmp_path / "moved"
        shutil.copytree(trained, moved)
        assert main(finetune(moved, tmp_path / "more", "--resume")) == 0  # the same weights
        parent = open_run(tmp_path / "more").parent
        assert parent is not None
        assert parent.run == str(moved.resolve())
        assert main(["train", "--resume", "--out", str(moved), "--steps", "22", "--quiet"]) == 0
        before = (tmp_path / "more" / "config.json").read_bytes()
        assert main(finetune(moved, tmp_path / "more", "--resume")) == 2
        said = refused(capsys)
        assert "after step 20" in said
        assert "after step 22" in said
        assert f"`idode train --resume --out {tmp_path / 'more'}`" in said
        assert (tmp_path / "more" / "config.json").read_bytes() == before


class TestHalfWritten:
    def test_train_does_not_begin_it_from_random_weights(
        self, trained: Path, tmp_path: Path, capsys
    ) -> None:
        out = tmp_path / "more"
        half_written(trained, out)
        assert main(["train", "--resume", "--out", str(out)]) == 2
        assert f"make it again by `idode finetune {trained.resolve()} --resume --out {out}`" in (
            refused(capsys)
        )
        assert not (out / "checkpoints").exists()

    def test_nor_when_all_its_checkpoints_are_damaged(
        self, trained: Path, tmp_path: Path, capsys
    ) -> None:
        out = tmp_path / "more"
        assert main(finetune(trained, out)) == 0
        for path in out.glob("checkpoints/*/state.safetensors"):
            path.write_bytes(b"")
        assert main(["train", "--resume", "--out", str(out), "--quiet"]) == 2
        *warnings, said = capsys.readouterr().err.splitlines()
        assert all("is damaged" in line for line in warnings)
        assert "make it again by `idode finetune" in said

    def test_finetune_begins_it_again_with_the_same_outcome(
        self, trained: Path, tmp_path: Path
    ) -> None:
        assert main(finetune(trained, tmp_path / "whole")) == 0
        half_written(trained, tmp_path / "half")
        assert main(finetune(trained, tmp_path / "half", "--resume")) == 0
        assert state(tmp_path / "half") == state(tmp_path / "whole")

    def test_a_parent_without_a_checkpoint_is_no_obstacle_once_there_is_one(
        self, tmp_path: Path
    ) -> None:
        run = tiny.new_run(tmp_path, "train.steps=4")
        Trainer(run, tiny.dataset(), tiny.CPU).train()
        tuned = Run(tmp_path, tiny.config("train.steps=6"), run.identity, Parent("a", 1, "0" * 64))
        assert Trainer(tuned, tiny.dataset(), tiny.CPU).train().step == 6


def test_killed_fine_tuning_goes_on_bit_for_bit_by_either_command(
    trained: Path, tmp_path: Path
) -> None:
    assert main(finetune(trained, tmp_path / "whole")) == 0
    for name in ("finetune", "train"):
        out = tmp_path / name
        ended = forks().run(
            *finetune(trained, out), root=tmp_path, kill_when=f"{name}/checkpoints/step-*4"
        )
        assert ended.codes == [-signal.SIGKILL], ended.text
        assert max(checkpoint.steps(out / "checkpoints")) < 12
        words = ["train", "--resume", "--out", str(out), "--quiet"]
        assert main(finetune(trained, out, "--resume") if name == "finetune" else words) == 0
        assert state(out) == state(tmp_path / "whole")


class TestNew:
    def test_resume_of_nothing_says_that_a_new_run_starts(
        self, trained: Path, tmp_path: Path, capsys
    ) -> None:
        words = ["train", "digits", "--data", open_run(trained).config.data or "", *tiny.FLAGS]
        words += ["--out", str(tmp_path / "run"), "--steps", "1", "--resume"]
        told = f"there is no run in {tmp_path / 'run'} to resume: a new one starts"
        assert main(words) == 0
        assert capsys.readouterr().err.count(told) == 1
        assert main([*words, "--steps", "2"]) == 0
        said = capsys.readouterr().err
        assert told not in said
        assert "resuming after step 1" in said

    def test_import_gives_no_advice_it_cannot_take(self, tmp_path: Path, capsys) -> None:
        file = Path(__file__).parent / "reference" / "tiny.flax"
        assert main(["import", str(file), "--out", str(tmp_path / "run"), "--quiet"]) == 0
        assert main(["import", str(file), "--out", str(tmp_path / "run")]) == 2
        said = refused(capsys)
        assert "is not empty: give another folder, or --force to replace the run in it" in said
        assert "resume" not in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "digits", "--steps", "0"], "--steps: must be at least 1, got 0"),
        (["train", "digits", "--seed", "-1"], "--seed: must be at least 0, got -1"),
        (["train", "digits", "--set", "train.steps=0"], "steps: must be at least 1, got 0"),
        (["train", "digits", "--set", "model.levels =16"], "model.levels follows from the data"),
        (["finetune", "RUN", "--set", "train.hold_out=2"], "hold_out=2"),
        (["finetune", "RUN", "--set", "train.hold_out=2", "--dry-run"], "hold_out=2"),
        (["finetune", "RUN", "--data", "digits", "--dry-run"], "choose data of its kind"),
        (["train", "digits", "--data", "npy:nosuch.npy", "--dry-run"], "nosuch.npy"),
        (["finetune", "RUN", "--data", "npy:nosuch.npy", "--dry-run"], "nosuch.npy"),
        (["finetune", "RUN", "--steps", "-2"], "--steps: must be at least 1, got -2"),
        (["finetune", "RUN", "--ratio", "-0.5"], "--ratio: must be at least 0, got -0.5"),
        (["finetune", "RUN", "--probes", "0"], "--probes: must be at least 1, got 0"),
        (
            ["finetune", "RUN", "--probes", "1", "--unbiased"],
            "probes: must be at least 2 with unbiased, got 1",
        ),
    ],
)
def test_a_flag_is_called_by_its_name(
    trained: Path, tmp_path: Path, capsys, words: list[str], message: str
) -> None:
    given = [str(trained) if word == "RUN" else word for word in words]
    assert main([*given, "--out", str(tmp_path / "out")]) == 2
    assert message in refused(capsys)
    assert not (tmp_path / "out").exists()


def test_images_that_were_trained_on_are_not_held_out_later(trained: Path, capsys) -> None:
    before = (trained / "config.json").read_bytes()
    words = ["train", "--resume", "--out", str(trained), "--steps", "30"]
    assert main([*words, "--set", "train.hold_out=2"]) == 2
    assert "hold_out=2" in refused(capsys)
    assert (trained / "config.json").read_bytes() == before


def test_other_data_may_be_held_out_and_resumed(trained: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "other.npy", tiny.images()[::-1])
    data = f"npy:{tmp_path / 'other.npy'}?levels=4"
    words = finetune(trained, tmp_path / "out", "--set", "train.hold_out=2")
    assert main([*words, "--data", data]) == 0
    assert main([*words, "--resume"]) == 0


def test_a_dry_run_is_of_the_data_that_is_given(trained: Path, capsys) -> None:
    data = open_run(trained).config.data or ""
    for words in (["train", "digits"], ["finetune", str(trained)]):
        assert main([*words, "--data", data, "--dry-run", "--quiet"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["data"], shown["net"]["levels"]) == (data, 4)


def test_a_rate_of_zero_can_be_fine_tuned(trained: Path) -> None:
    config = override(open_run(trained).config, ["train.lr=0", "finetune.lr=1e-3"])
    assert finetuned(config).train.matrix_lr == config.train.matrix_lr


@pytest.mark.parametrize("wrong", [{"steps": "5"}, {"seed": 0.5}, {"steps": 0}])
def test_numbers_in_python_are_numbers(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(wrong))} must be a whole number"):
        train("digits", out=tmp_path / "run", progress=False, **wrong)
    assert not (tmp_path / "run").exists()


def test_the_help_of_finetune_says_whose_values_are_the_defaults(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["finetune", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "preset's" not in shown
    assert "optimiser steps in all [START's finetune.steps]" in shown
    assert "estimate the square with two different probes; needs at least 2" in shown


def test_a_refused_run_opens_no_bar(trained: Path, tmp_path: Path, capsys) -> None:
    words = ["train", "digits", "--set", "train.decay=slow", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "no decay called 'slow'" in refused(capsys)
