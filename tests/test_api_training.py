"""Training from Python: networks, data, settings, interruptions and refusals."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor, nn

import idode
from idode.data.memory import from_arrays, spec_of
from idode.nets.config import CustomNetConfig
from idode.progress import Bar
from idode.runs.importing import import_checkpoint
from idode.runs.presets import PRESETS
from idode.runs.run import load, open_run
from idode.training.dequantizer import fit_dequantizer
from idode.training.train import finetune, train

ARRAYS = tiny.images()[:-8], tiny.images()[-8:]
VECTORS = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
FEW = [*tiny.SETTINGS, "train.steps=4", "train.evaluate_count=4"]


class Network(nn.Module):
    """A network of a user's own, with a tied weight and a buffer, which files must survive."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(size + 1, size + 1), nn.Linear(size + 1, size)
        self.again = self.first
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = torch.cat([x.flatten(1), t[:, None]], dim=1)
        if self.training:
            self.calls += 1
        return x + self.second(torch.tanh(self.again(torch.tanh(self.first(h))))).view_as(x)


class Flagged(Network):
    def forward(self, x: Tensor, t: Tensor, flag: Tensor | None = None) -> Tensor:
        scale = 1.0 if flag is None else 1 + flag[:, None, None, None]
        return super().forward(x, t) * scale


def digits(out: Path, config: object = "digits", **more: object) -> idode.Run:
    given = {"data": ARRAYS, "settings": FEW, "progress": False, "device": "cpu", **more}
    return train(config, out=out, **given)  # type: ignore[arg-type]


def interrupt_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C when the bar shows a step."""

    def progress(bar: Bar, done: int, metrics: object) -> None:
        if done == step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Bar, "progress", progress)


def state(run: idode.Run, step: int = 4) -> bytes:
    return (run.checkpoints / f"step-{step:09d}" / "state.safetensors").read_bytes()


class TestData:
    def test_arrays_train_a_model_that_records_them(self, tmp_path: Path) -> None:
        run = digits(tmp_path / "run")
        assert run == open_run(tmp_path / "run")
        assert (run.config.data, run.config.model.shape) == ("memory", (1, 4, 4))
        assert run.config.model.levels == 256
        assert run.identity == from_arrays(*ARRAYS).identity
        assert load(run, device="cpu").levels == 256

    def test_vectors_and_tensors_are_arrays_too(self, tmp_path: Path) -> None:
        pair = torch.from_numpy(VECTORS[:48]), torch.from_numpy(VECTORS[48:])
        few = ["train.steps=2", "train.batch_size=8", "net.width=8", "train.evaluate_count=4"]
        run = train("vectors", out=tmp_path, data=pair, settings=few, progress=False, device="cpu")
        assert run.config.model.shape == (2,)
        assert run.config.model.levels is None

    def test_a_data_set_is_taken_as_it_is(self, tmp_path: Path) -> None:
        run = digits(tmp_path / "run", data=tiny.dataset())
        assert (run.config.data, run.config.model.levels) == ("memory", 4)

    def test_a_published_set_keeps_its_name(self) -> None:
        data = idode.data.load("digits")
        assert (spec_of(data), spec_of(tiny.dataset()), spec_of("npy:x.npy")) == (
            "digits",
            "memory",
            "npy:x.npy",
        )

    def test_what_was_in_memory_must_be_given_again(self, tmp_path: Path) -> None:
        run = digits(tmp_path / "run")
        for again in (
            lambda: digits(run.path, data=None, resume=True, steps=6),
            lambda: finetune(run, out=tmp_path / "more", steps=1, progress=False, device="cpu"),
        ):
            with pytest.raises(idode.InputError, match="trained on arrays in memory"):
                again()
        with pytest.raises(idode.InputError, match="began with other data"):
            digits(run.path, data=(ARRAYS[0][::-1], ARRAYS[1]), resume=True, steps=6)
        assert digits(run.path, resume=True, steps=6).config.train.steps == 6

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (tiny.images(), "data is a ndarray: give a spec such as 'cifar10'"),
            ((tiny.images(), VECTORS), "give samples of one kind"),
            ((tiny.images() / 4, tiny.images() / 4), "images must be integers"),
            ((tiny.images()[:0], tiny.images()), "the training data is uint8 of shape"),
            ((np.array(["a"]), np.array(["b"])), "give integer images"),
            ("digist", "digist"),
        ],
    )
    def test_other_data_is_refused(self, tmp_path: Path, data: object, message: str) -> None:
        with pytest.raises(idode.InputError, match=message):
            digits(tmp_path / "run", data=data)
        assert not (tmp_path / "run").exists()


class TestSettings:
    def test_a_preset_and_its_configuration_train_the_same(self, tmp_path: Path) -> None:
        first = digits(tmp_path / "a", seed=5)
        second = digits(tmp_path / "b", config=PRESETS["digits"], seed=5)
        assert first.config == second.config
        assert state(first) == state(second)

    def test_a_configuration_resumes_its_own_run_only(self, tmp_path: Path) -> None:
        config = PRESETS["digits"]
        digits(tmp_path / "run", config=config)
        run = digits(tmp_path / "run", config=config, resume=True, steps=6)
        assert run.config.train.steps == 6
        other = replace(config, model=replace(config.model, schedule="sp"))
        with pytest.raises(idode.InputError, match="has other settings than are given"):
            digits(tmp_path / "run", config=other, resume=True, steps=6)

    def test_a_system_is_applied(self, tmp_path: Path) -> None:
        run = digits(tmp_path / "run", system="vdm")
        assert run.config.model.predictor == "noise"

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"settings": ["train.lr"]}, "write NAME=VALUE, such as train.lr=1e-3"),
            ({"settings": ["train.lr=fast"]}, "^train.lr=fast: must be a number$"),
            ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
            ({"resume": True, "force": True}, "give one of them"),
            ({"config": "digit"}, "no preset called 'digit'"),
            ({"config": None}, "no preset is given: choose one of digits"),
            ({"system": "gan"}, "no system called 'gan'"),
        ],
    )
    def test_bad_input_is_the_sentence_of_the_program(
        self, tmp_path: Path, more: dict, message: str
    ) -> None:
        with pytest.raises(idode.InputError, match=message):
            digits(tmp_path / "run", **more)
        assert not (tmp_path / "run").exists()

    def test_a_folder_in_use_is_refused_and_force_replaces_it(self, tmp_path: Path) -> None:
        before = state(digits(tmp_path / "run"))
        with pytest.raises(idode.InputError, match="replace the run in it, or --resume"):
            digits(tmp_path / "run", seed=1)
        assert state(digits(tmp_path / "run", seed=1, force=True)) != before


class TestOutput:
    def test_without_progress_it_is_silent_and_with_it_shows_a_bar(self, tmp_path, capsys) -> None:
        digits(tmp_path / "quiet")
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == ("", "")
        digits(tmp_path / "run", progress=True)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "4/4" in captured.err

    def test_ctrl_c_saves_and_then_raises(self, tmp_path: Path, monkeypatch) -> None:
        whole = digits(tmp_path / "whole")
        with monkeypatch.context() as patch:
            interrupt_at(2, patch)
            with pytest.raises(
                KeyboardInterrupt, match="parts is saved after step 3; .* --resume"
            ):
                digits(tmp_path / "parts")
        assert state(digits(tmp_path / "parts", resume=True)) == state(whole)


class TestOwnNetwork:
    def test_it_trains_and_its_file_says_whose_it_is(self, tmp_path: Path) -> None:
        net = Network()
        before = {name: value.clone() for name, value in net.state_dict().items()}
        run = digits(tmp_path / "run", net=net, settings=FEW[4:])
        assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
        stored = json.loads((run.path / "config.json").read_text())["config"]["net"]
        assert stored == {"kind": "custom", "name": "Network"}
        model = load(run, net=Network(), device="cpu")
        assert model.net.calls == 4
        assert not torch.equal(model.net.second.weight, net.second.weight)
        assert np.isfinite(run.metrics.read_text().count("held_out"))

    def test_it_resumes_bit_for_bit_with_a_learned_distribution(
        self, tmp_path: Path, monkeypatch
    ) -> None:
        settings = [*FEW[4:], "objective.density=adaptive"]
        whole = digits(tmp_path / "whole", net=Network(), settings=settings)
        with monkeypatch.context() as patch:
            interrupt_at(1, patch)
            with pytest.raises(KeyboardInterrupt, match="step 2"):
                digits(tmp_path / "parts", net=Network(), settings=settings)
        parts = train(
            out=tmp_path / "parts",
            data=ARRAYS,
            net=Network(),
            resume=True,
            progress=False,
            device="cpu",
        )
        assert state(parts) == state(whole)

    def test_it_is_fine_tuned(self, tmp_path: Path) -> None:
        run = digits(tmp_path / "run", net=Network(), settings=FEW[4:])
        given = {"data": ARRAYS, "steps": 2, "progress": False, "device": "cpu"}
        tuned = finetune(run, out=tmp_path / "tuned", net=Network(), **given)
        assert tuned.config.net == CustomNetConfig("Network")
        assert tuned.config.objective.order == 2
        with pytest.raises(idode.InputError, match="network of your own, Network: pass an inst"):
            finetune(run, out=tmp_path / "other", **given)

    def test_without_it_or_with_another_it_is_refused(self, tmp_path: Path) -> None:
        digits(tmp_path / "run", net=Network(), settings=FEW[4:])
        for net, message in ((None, "pass an instance"), (Flagged(), "and Flagged is given")):
            with pytest.raises(idode.InputError, match=message):
                digits(tmp_path / "run", net=net, resume=True, settings=[], steps=6)
        digits(tmp_path / "plain")
        with pytest.raises(idode.InputError, match="leave net out"):
            digits(tmp_path / "plain", net=Network(), resume=True, settings=[], steps=6)
        frozen = Network().requires_grad_(False)
        with pytest.raises(idode.InputError, match="no parameter of Network requires a gradient"):
            digits(tmp_path / "frozen", net=frozen, settings=FEW[4:])

    def test_augmentation_needs_its_flag(self, tmp_path: Path) -> None:
        settings = [*FEW[4:], "objective.augment=true"]
        with pytest.raises(idode.InputError, match="and Network takes no flag"):
            digits(tmp_path / "run", net=Network(), settings=settings)
        assert digits(tmp_path / "run", net=Flagged(), settings=settings).config.objective.augment


class TestFinetune:
    def test_it_starts_from_a_run_a_folder_or_a_name(self, tmp_path: Path) -> None:
        run = digits(tmp_path / "run")
        given = {"data": ARRAYS, "steps": 2, "progress": False, "device": "cpu"}
        first = finetune(run, out=tmp_path / "a", ratio=0.3, probes=2, **given)
        second = finetune(str(run.path), out=tmp_path / "b", ratio=0.3, probes=2, **given)
        assert first.parent == second.parent
        assert first.parent is not None
        assert first.parent.run == str(run.path.resolve())
        assert state(first, 2) == state(second, 2)

    def test_bad_input_is_the_sentence_of_the_program(self, tmp_path: Path) -> None:
        run = digits(tmp_path / "run")
        with pytest.raises(idode.InputError, match="is the run to start from"):
            finetune(run, out=run.path)
        with pytest.raises(idode.InputError, match="probes: must be at least 2 with unbiased"):
            finetune(run, out=tmp_path / "a", probes=1, unbiased=True)
        with pytest.raises(idode.InputError, match="there is no run folder nowhere"):
            finetune("nowhere", out=tmp_path / "a")


def test_a_published_checkpoint_becomes_a_run(tmp_path: Path) -> None:
    file = Path(__file__).parent / "reference" / "tiny.flax"
    run = import_checkpoint(file, out=tmp_path / "run", schedule="sp")
    assert (run.config.model.schedule, run.identity) == ("sp", None)
    assert run == open_run(tmp_path / "run")
    with pytest.raises(idode.InputError, match="is not empty"):
        import_checkpoint(str(file), out=str(tmp_path / "run"))
    assert run.config.model.shape[1:] == (32, 32)
    with pytest.raises(idode.InputError, match="leave out the size"):
        import_checkpoint(file, out=tmp_path / "other", data="digits", size=64)


def test_a_dequantizer_is_fitted_to_data_in_memory(tmp_path: Path, capsys) -> None:
    run = digits(tmp_path / "run")
    given = {"steps": 2, "batch_size": 4, "progress": False, "device": "cpu"}
    fitted = fit_dequantizer(run, out=tmp_path / "copy", data=ARRAYS, **given)
    assert (fitted.steps, fitted.identity) == (2, run.identity)
    assert (fitted.run.path / "dequantizer.safetensors").exists()
    with pytest.raises(idode.InputError, match="trained on arrays in memory"):
        fit_dequantizer(run, **given)
    with pytest.raises(idode.InputError, match="no base called 'tent'"):
        fit_dequantizer(run, data=ARRAYS, base="tent", **given)
    assert capsys.readouterr().err == ""
