"""Grids of samples drawn while training."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from forking import forks
from PIL import Image
from test_training import Notes

from idode.runs.config import fit, override
from idode.runs.presets import PRESETS
from idode.runs.run import Run, open_run
from idode.training.grids import sample_grid
from idode.training.metrics import MetricsLog
from idode.training.trainer import Trainer

EVERY = "train.sample_every=10"


def pictures(run: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((run / "samples").glob("*"))}


def test_they_come_at_intervals_and_at_the_end_and_are_of_the_averaged_weights(
    tmp_path: Path,
) -> None:
    tiny.train(tmp_path, "train.sample_every=8")
    assert [*pictures(tmp_path)] == [f"step-{n:09d}.png" for n in (8, 16, 20)]
    run = open_run(tmp_path)
    expected = sample_grid(run.model(), run.config)
    drawn = np.asarray(Image.open(run.sample_grid(20)))
    assert np.array_equal(drawn, expected[..., 0])
    assert len(np.unique(drawn)) > 2  # pictures, and not one grey


def test_the_noise_is_always_the_same(tmp_path: Path) -> None:
    tiny.train(tmp_path, EVERY, "train.lr=0", "train.weight_decay=0")
    first, second = pictures(tmp_path).values()
    assert first == second


def test_training_does_not_notice_them(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    for name, every in {"none": 0, "some": 3}.items():
        tiny.train(tmp_path / name, "net.dropout=0.3", f"train.sample_every={every}")
    assert torch.equal(torch.get_rng_state(), before)
    none, some = (
        (tmp_path / n / "checkpoints" / "step-000000020" / "state.safetensors").read_bytes()
        for n in ("none", "some")
    )
    assert none == some
    assert not (tmp_path / "none" / "samples").exists()


def test_a_resumed_run_has_the_same_pictures(tmp_path: Path) -> None:
    tiny.train(tmp_path / "whole", EVERY)
    tiny.train(tmp_path / "parts", EVERY, reporter=Notes(interrupt_at=12))
    (tmp_path / "parts" / "samples" / "step-000000020.png").write_bytes(b"of a dead life")
    tiny.train(tmp_path / "parts", EVERY)
    assert pictures(tmp_path / "whole") == pictures(tmp_path / "parts")


def test_of_two_processes_one_draws(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", tiny.images())
    words = ["train", "digits", "--data", f"npy:{tmp_path / 'x.npy'}?levels=4", *tiny.FLAGS]
    words += ["--set", EVERY, "--out", str(tmp_path / "run"), "--quiet"]
    ended = forks().run(*words, root=tmp_path, ranks=2)
    assert ended.codes == [0, 0], ended.text
    assert len(pictures(tmp_path / "run")) == 2


def test_a_grid_that_cannot_be_drawn_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("idode.training.grids.write_atomically", full)
    notes = Notes()
    trainer = tiny.train(tmp_path, EVERY, reporter=notes)
    assert trainer.state.step == 20
    assert len(notes.texts) == 2
    assert "warning: no grid of samples step-000000010.png" in notes.texts[0]
    assert "No space left" in notes.texts[0]


def test_vectors_have_none_and_are_told_so(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    data = tiny.dataset(rows, levels=None)
    settings = ["train.steps=2", "train.batch_size=8", "net.width=8", "train.evaluate_count=5"]
    assert PRESETS["vectors"].train.sample_every == 0
    config = fit(override(PRESETS["vectors"], [*settings, "train.sample_every=1"]), None, (2,))
    run, notes = Run(tmp_path, config, data.identity), Notes()
    Trainer(run, data, tiny.CPU, notes).train()
    assert notes.texts == ["no grids of samples: the data is not images of 1 or 3 colours"]
    assert not (tmp_path / "samples").exists()


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="idode[tensorboard] is not installed"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_the_numbers_and_the_pictures(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tiny.train(tmp_path, EVERY)
    (folder,) = {p.parent for p in (tmp_path / "tensorboard").rglob("events*")}
    found = EventAccumulator(str(folder))
    found.Reload()
    assert [e.step for e in found.Scalars("loss")] == [5, 10, 15, 20]
    assert [e.step for e in found.Scalars("held_out")] == [10, 20]
    assert [e.step for e in found.Images("samples")] == [10, 20]


def test_without_a_board_a_picture_goes_nowhere() -> None:
    with MetricsLog(None, 0) as log:
        log.show("samples", np.zeros((4, 4, 1), np.uint8), 3)
