"""Averages of weights whose width is chosen after training."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file

import idode
from idode.cli.main import main
from idode.data import load
from idode.errors import DataWarning, InputError
from idode.runs.run import Run, open_run
from idode.training.averaging import CHOICES, LARGE
from idode.training.held_out import DRAWS
from idode.training.optimisation import Average
from idode.training.power_average import LARGEST, WIDTHS, combination, exponent, power_rate
from idode.training.resolve import origin
from idode.training.snapshots import combined, snapshot_steps, write_snapshot
from idode.training.trainer import Trainer

STEPS = 640
EVERY = ("train.snapshot_every=4", "train.sample_every=0", "train.hold_out=8")


def profile(width: float, steps: int) -> np.ndarray:
    """What the weights of each step count for, in closed form."""
    edges = (np.arange(steps + 1) / steps) ** (exponent(width) + 1)
    return np.diff(edges)


def path() -> np.ndarray:
    """Weights that approach a limit, as weights do."""
    return np.exp(-np.arange(1, STEPS + 1) / 150) + 0.3


class TestProfile:
    @pytest.mark.parametrize("width", [0.01, 0.05, 0.1, LARGEST])
    def test_the_width_is_the_standard_deviation(self, width: float) -> None:
        share = (np.arange(200_000) + 0.5) / 200_000
        weights = profile(width, len(share))
        mean = weights @ share
        assert weights.sum() == pytest.approx(1)
        assert np.sqrt(weights @ (share - mean) ** 2) == pytest.approx(width, rel=1e-4)

    @pytest.mark.parametrize("width", WIDTHS)
    def test_the_recursion_gives_each_step_its_share(self, width: float) -> None:
        net = torch.nn.Linear(1, 1, bias=False).double()
        average = Average(net, power_rate(width))
        for step, value in enumerate(path()[:50]):
            with torch.no_grad():
                net.weight.fill_(value)
            average.update(net, step)
        expected = profile(width, 50) @ path()[:50]
        assert float(average.net.weight) == pytest.approx(expected, rel=1e-12)

    def test_a_width_that_is_none_is_refused(self) -> None:
        for width in (0.0, 0.29, float("nan")):
            with pytest.raises(InputError, match="give a share of the training"):
                exponent(width)


class TestReconstruction:
    steps = tuple(range(10, STEPS + 1, 10))

    @pytest.mark.parametrize("width", [0.03, 0.05, 0.07, 0.1, 0.14])
    def test_snapshots_give_the_average_of_another_width(
        self, tmp_path: Path, width: float
    ) -> None:
        def kept(step: int) -> dict[float, dict[str, torch.Tensor]]:
            values = {w: profile(w, step) @ path()[:step] for w in WIDTHS}
            return {
                w: {"w": torch.tensor([x]), "n": torch.tensor(step)} for w, x in values.items()
            }

        for step in self.steps:
            write_snapshot(tmp_path, step, kept(step))
        weights, found = combined(tmp_path, width)
        direct = profile(width, STEPS) @ path()
        assert float(weights["w"]) == pytest.approx(direct, abs=1e-6)
        assert int(weights["n"]) == STEPS
        assert sum(found.factors) == pytest.approx(1, abs=1e-9)

    def test_the_error_is_that_of_the_profile(self) -> None:
        few = [(w, s) for s in (160, 320, 480, 640) for w in WIDTHS]
        found = combination(few, 0.03, STEPS)
        made = np.zeros(STEPS)
        for (width, step), factor in zip(few, found.factors, strict=True):
            made[:step] += factor * profile(width, step)
        direct = profile(0.03, STEPS)
        error = np.linalg.norm(made - direct) / np.linalg.norm(direct)
        assert found.error == pytest.approx(error, rel=0.02)  # sums in place of integrals
        assert 0.1 < error < 1
        assert combination(few, 0.05, STEPS).error < 1e-6  # it is one of them


class TestCommand:
    def test_a_run_has_averages_of_any_width(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        np.save(tmp_path / "data.npy", tiny.images())
        data = f"npy:{tmp_path / 'data.npy'}?levels=4"
        words = ["--set", "train.snapshot_every=4", "--set", "train.hold_out=8"]
        run, out = tmp_path / "run", tmp_path / "averaged"
        begin = ["train", "digits", "--data", data, "--out", str(run), *tiny.FLAGS]
        assert main([*begin, "--set", "train.sample_every=0", *words]) == 0
        assert "the last 8 training samples were held out" in capsys.readouterr().out
        assert snapshot_steps(run) == [4, 8, 12, 16, 20]
        assert main(["average", str(run), "--width", "0.05", "--out", str(out)]) == 0
        last = load_file(run / "snapshots" / "step-000000020.safetensors")
        for name, x in load_file(out / "model.safetensors").items():
            torch.testing.assert_close(x, last[f"0.05/{name}"])
        capsys.readouterr()
        assert main(["average", str(run), "--out", str(out), "--force"]) == 0
        printed = capsys.readouterr().out.splitlines()
        values = [line.split("SDE bound ")[1].split()[0] for line in printed if "bound" in line]
        *bounds, own = map(float, values)
        steps = range(4, 21, 4)
        kept = [(w, s) for s in steps for w in WIDTHS]
        fit = [w for w in CHOICES if combination(kept, w, 20).error <= LARGE]
        assert 0 < len(fit) < len(CHOICES)
        left = [line.split()[1] for line in printed if "left out" in line]
        assert left == [f"{w:g}" for w in CHOICES if w not in fit]
        best = fit[bounds.index(min(bounds))]
        assert f"average of width {best:g}" in printed[-1]
        assert ("no width is better" in printed[-2]) == (own <= min(bounds))
        assert idode.load(out).shape == (1, 4, 4)
        held = idode.load(run).sde_bound(load(data).train[-8:], draws=DRAWS)
        assert own == pytest.approx(held.mean, abs=1e-4)

    def test_a_run_says_that_it_is_an_average(self, tmp_path: Path) -> None:
        run = tiny.train(tmp_path / "run", "train.snapshot_every=4").run
        made = idode.average(run, width=0.07, out=tmp_path / "averaged").run
        assert open_run(made.path).parent == made.parent
        assert made.parent is not None
        assert made.parent.relation == "average of width 0.07 of"
        again = f"idode average {run.path} --width 0.07 --force --out {made.path}"
        assert made.parent.command(made.path) == f"`{again}`"
        (made.path / "model.safetensors").unlink()
        with pytest.raises(InputError, match="it was lost; make it again by `idode average"):
            made.model()
        assert main(again.split()[1:]) == 0
        assert open_run(made.path) == made
        for parent in (None, dataclasses.replace(made.parent, width=None)):
            with pytest.raises(InputError, match="holds an average of the weights"):
                origin(made, parent)
        again = f"is average of width 0.07 of {run.path.resolve()} and has no checkpoint"
        with pytest.raises(InputError, match=again):
            Trainer(made, tiny.dataset(), tiny.CPU)

    def test_too_few_snapshots_for_a_width_are_told(self, tmp_path: Path) -> None:
        run = tiny.train(tmp_path / "run", "train.snapshot_every=10").run
        with pytest.warns(DataWarning, match=r"not of width 0\.02: .*; take more"):
            made = idode.average(run, width=0.02, out=tmp_path / "narrow")
        assert made.error > 0.1
        assert idode.average(run, width=0.05, out=tmp_path / "kept").error < 1e-6

    def test_what_is_held_out_is_not_trained_on(self, tmp_path: Path) -> None:
        images = tiny.images()
        other = images.copy()
        other[32:40] = 0  # the last eight of the training images
        for name, values in (("a", images), ("b", other)):
            data = tiny.dataset(values)
            run = Run(tmp_path / name, tiny.config(*EVERY, "train.steps=10"), data.identity)
            Trainer(run, data, tiny.CPU).train()
        first, second = (load_file(tmp_path / n / "model.safetensors") for n in "ab")
        assert all(torch.equal(first[n], second[n]) for n in first)

    def test_a_resumed_run_has_the_same_snapshots(self, tmp_path: Path) -> None:
        tiny.train(tmp_path / "whole", *EVERY)
        parts = tmp_path / "parts"
        shutil.copytree(tmp_path / "whole", parts)
        shutil.rmtree(parts / "checkpoints" / "step-000000020")
        for step in (12, 17):  # of an attempt that got further than its last checkpoint
            (parts / "snapshots" / f"step-{step:09d}.safetensors").write_bytes(b"")
        tiny.train(parts, *EVERY)
        assert snapshot_steps(parts) == [4, 8, 12, 16, 20]
        for step in (4, 8, 12, 16, 20):
            name = f"snapshots/step-{step:09d}.safetensors"
            assert (parts / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    def test_refusals(self, tmp_path: Path) -> None:
        run = tiny.train(tmp_path / "run", "train.steps=1", "train.snapshot_every=1").run
        with pytest.raises(InputError, match="trained on all training images"):
            idode.average(run, out=tmp_path / "out")
        with pytest.raises(InputError, match="is the run itself"):
            idode.average(run, width=0.1, out=tmp_path / "run", force=True)
        assert snapshot_steps(run.path) == [1]
        plain = tiny.train(tmp_path / "plain", "train.steps=1").run
        with pytest.raises(InputError, match="has no snapshots: train with"):  # before any width
            idode.average(plain, out=tmp_path / "out")
        with pytest.raises(InputError, match="has no snapshots: train with"):
            idode.average(plain, width=0.1, out=tmp_path / "out")
        assert not (tmp_path / "out").exists()
