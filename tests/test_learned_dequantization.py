"""The learned dequantization: a density, a bound, a file, and a command."""

from __future__ import annotations

import json
import math
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from conftest import ALL_SCHEDULES, f64
from torch import Tensor

from idode import random
from idode.cli.main import main
from idode.diffusion import exact
from idode.diffusion.schedules import Schedule, VariancePreserving, start_gamma
from idode.errors import InputError
from idode.evaluation.likelihood import bits_per_dim
from idode.likelihood.dequantization import Bins, Dequantization, TruncatedNormal, Uniform
from idode.likelihood.estimator import LikelihoodSettings
from idode.likelihood.learned_dequantization import BASES, Learned
from idode.likelihood.state_bound import Fading, state_bound
from idode.nets.bin_flow import BinFlow, BinFlowConfig
from idode.nets.splines import spline
from idode.numerics import log_mean_exp
from idode.ode.adams import Adams
from idode.progress import Bar
from idode.runs.dequantizer_file import (
    DEQUANTIZER,
    has_dequantizer,
    load_dequantizer,
    save_dequantizer,
)
from idode.runs.run import open_run
from idode.training.flow_fitting import fit_flow, untrained_dequantizer
from idode.training.settings import DequantizerSettings

VP = VariancePreserving()
SHAPES = [(1, 8, 8), (3, 5, 7), (1, 1, 1), (2, 1, 3), (6,)]


def bent_flow(channels: int = 1, size: float = 0.15, seed: int = 0, **more: int) -> BinFlow:
    """A flow far from the identity, in float64."""
    g = torch.Generator().manual_seed(seed)
    flow = BinFlow(BinFlowConfig(channels, width=8, **more), g).double()
    for parameter in flow.parameters():
        parameter.data += size * torch.randn(parameter.shape, generator=g, dtype=torch.float64)
    return flow.requires_grad_(False)


def uniform(*shape: int, seed: int = 1) -> Tensor:
    return random.uniform(shape, torch.Generator().manual_seed(seed))


class TestSpline:
    def test_noughts_are_the_identity(self) -> None:
        y, log_slope = spline(torch.zeros(9, 13, dtype=torch.float64))(uniform(9))
        torch.testing.assert_close(y, uniform(9), atol=1e-15, rtol=0)
        assert log_slope.abs().max() < 1e-14

    def test_it_increases_from_0_to_1_with_the_slope_it_claims_and_back(self) -> None:
        raw = 2 * torch.randn(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        curve = spline(raw.expand(1001, 16))
        x = torch.linspace(0, 1, 1001, dtype=torch.float64, requires_grad=True)
        y, log_slope = curve(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
        assert y[0] == 0
        assert y[-1] == 1
        assert (y.diff() > 0).all()
        torch.testing.assert_close(log_slope[1:-1], slope.log()[1:-1])  # the ends are clamped
        back, at = curve.inverse(y.detach())
        torch.testing.assert_close(back, x.detach(), atol=1e-12, rtol=0)
        torch.testing.assert_close(at, log_slope.detach(), atol=1e-9, rtol=0)


class TestFlow:
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_it_is_inverted_for_every_shape(self, shape: tuple[int, ...]) -> None:
        flow = bent_flow(shape[0] if len(shape) == 3 else 1)
        v, image = uniform(4, *shape), 2 * uniform(4, *shape, seed=2) - 1
        bent, log_det = flow(v, image)
        assert bent.shape == v.shape
        assert (bent > 0).all()
        assert (bent < 1).all()
        assert (bent - v).abs().max() > 0.01
        back, same = flow.inverse(bent, image)
        torch.testing.assert_close(back, v, atol=1e-10, rtol=0)
        torch.testing.assert_close(same, log_det, atol=1e-9, rtol=0)

    @pytest.mark.parametrize("shape", [(1, 3, 3), (2, 2, 3)], ids=str)
    def test_its_log_determinant_is_that_of_the_autograd_jacobian(
        self, shape: tuple[int, ...]
    ) -> None:
        flow, v, image = bent_flow(shape[0]), uniform(1, *shape), uniform(1, *shape, seed=2)
        jacobian = torch.autograd.functional.jacobian(lambda u: flow(u, image)[0], v)
        dim = math.prod(shape)
        _, log_det = torch.linalg.slogdet(jacobian.reshape(dim, dim))
        torch.testing.assert_close(flow(v, image)[1][0], log_det, atol=1e-10, rtol=0)

    @pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 2)], ids=str)
    def test_its_density_integrates_to_one(self, shape: tuple[int, ...]) -> None:
        flow, n = bent_flow(size=0.3), 100 if math.prod(shape) == 2 else 4000
        middle = (torch.arange(n, dtype=torch.float64) + 0.5) / n
        grid = torch.cartesian_prod(*[middle] * math.prod(shape)).reshape(-1, *shape)
        density = torch.exp(-flow.inverse(grid, torch.full_like(grid, 0.3))[1])
        assert density.std() > 0.1
        assert density.mean().item() == pytest.approx(1, abs=1e-3)  # a midpoint rule

    def test_its_noise_depends_on_the_image_and_on_the_other_pixels(self) -> None:
        flow, v, image = bent_flow(), uniform(1, 1, 4, 4), uniform(1, 1, 4, 4, seed=2)
        other_image, other_v = image.clone(), v.clone()
        other_image[0, 0, 0, 0] = -1
        other_v[0, 0, 0, 0] = 0.01
        bent = flow(v, image)[0]
        assert (flow(v, other_image)[0] != bent).sum() > 4
        assert (flow(other_v, image)[0] != bent).sum() > 4

    def test_another_number_of_channels_is_refused(self) -> None:
        with pytest.raises(InputError, match="for 3 channels, the data has 1"):
            bent_flow(3)(uniform(1, 1, 4, 4), uniform(1, 1, 4, 4))

    def test_an_empty_size_is_refused(self) -> None:
        with pytest.raises(InputError, match="layers must be 1 to 1024, got 0"):
            BinFlowConfig(1, layers=0)


class TestLearned:
    @pytest.mark.parametrize("plain", [TruncatedNormal(-8.0), Uniform(-7.0)])
    def test_a_fresh_one_is_its_base(self, plain: Dequantization) -> None:
        pixels, v, bins = torch.arange(17).repeat(2, 1), uniform(2, 17), Bins(VP, -7.5, 17)
        learned = Learned(plain, BinFlow(BinFlowConfig(1)), 17)
        drawn, expected = learned.draw(pixels, v, bins), plain.draw(pixels, v, bins)
        torch.testing.assert_close(drawn.x, expected.x, atol=1e-14, rtol=0)
        torch.testing.assert_close(drawn.weight, expected.weight, atol=1e-11, rtol=0)
        assert learned.start == plain.start

    @pytest.mark.parametrize("name", ["tn", "uniform"])
    def test_its_weight_is_minus_the_log_density_of_its_draw(self, name: str) -> None:
        """The volume by which noise is stretched, all the way from noise to state."""
        bins = Bins(VP, start_gamma(5), 5)
        learned = Learned(BASES[name](), bent_flow(), 5)
        pixels, v = torch.tensor([[[[0, 4], [2, 1]]]]), uniform(1, 1, 2, 2)
        jacobian = torch.autograd.functional.jacobian(lambda u: learned.draw(pixels, u, bins).x, v)
        _, volume = torch.linalg.slogdet(jacobian.reshape(4, 4))
        weight = learned.draw(pixels, v, bins).weight[0]
        torch.testing.assert_close(weight, volume, atol=1e-10, rtol=0)

    def test_scaled_images_and_unknown_bases_are_refused(self) -> None:
        with pytest.raises(InputError, match="pass the uint8 images"):
            Learned(Uniform(), bent_flow(), 17).draw(
                uniform(1, 3), uniform(1, 3), Bins(VP, -7.0, 17)
            )
        with pytest.raises(InputError, match="no base called 'tent'"):
            untrained_dequantizer(TestTraining.lattice.ode(VP, start_gamma(4), 7.0), (2,), "tent")


class TestStateBound:
    @ALL_SCHEDULES
    def test_for_the_exact_model_it_has_the_mean_of_minus_log_p_and_its_gradient(
        self, schedule: Schedule
    ) -> None:
        oracle = exact.mixture([0.6, 0.4], [[0.5, -0.3], [-0.2, 0.4]], [0.01, 0.04])
        start, end, n = -6.0, 9.0, 40_000
        g = torch.Generator().manual_seed(0)
        state = f64(0.45, -0.2)[None].requires_grad_()
        truth = -oracle.log_prob(state, f64(start)[0], schedule)
        (slope,) = torch.autograd.grad(truth.sum(), state)
        x = state.detach().repeat(n, 1).requires_grad_()
        eps = torch.randn(n, 2, generator=g, dtype=torch.float64)
        times = Fading(start, end).draw(n, g)
        value = state_bound(oracle.ode(schedule, start, end), x, eps, times, start)
        (gradient,) = torch.autograd.grad(value.sum(), x)
        # Low discrepancy makes the true error smaller than this standard error.
        assert abs(value.mean() - truth) < 4 * value.std() / n**0.5
        assert ((gradient.mean(0) - slope[0]).abs() < 4 * gradient.std(0) / n**0.5).all()

    def test_the_fading_density_is_one(self) -> None:
        density = Fading(-8.0, 5.0)
        gamma = torch.linspace(-8, 5, 4001, dtype=torch.float64)
        assert torch.trapezoid(density.density(gamma), gamma).item() == pytest.approx(1, abs=1e-6)
        torch.testing.assert_close(density.isf(density.sf(gamma)), gamma)
        torch.testing.assert_close(density.sf(f64(-8, 5)), f64(1, 0))


class TestTraining:
    points = torch.tensor([[0, 1], [2, 2], [3, 0], [1, 1]])
    chances = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    lattice = exact.Lattice(points, chances, 4)

    def value(self, chosen: Dequantization, k: int, seed: int = 5) -> tuple[float, float]:
        """Mean excess over the true code length, nats, and its standard error: exact model."""
        g = torch.Generator().manual_seed(seed)
        pixels, truth = self.lattice.sample(1000, g)
        model = self.lattice.ode(VP, start_gamma(4), 7.0)
        gamma = torch.tensor(chosen.gamma(model), dtype=torch.float64)
        log_w = []
        for _ in range(k):
            drawn = chosen.states(model, pixels, random.uniform(pixels.shape, g))
            log_w.append(self.lattice.mixture.log_prob(drawn.x, gamma, VP) + drawn.weight)
        excess = truth - log_mean_exp(torch.stack(log_w))
        return excess.mean().item(), excess.std().item() / 1000**0.5

    def test_on_an_exact_model_it_beats_uniform_and_never_the_truth(self) -> None:
        model = self.lattice.ode(VP, start_gamma(4), 7.0)
        pixels, _ = self.lattice.sample(2000, torch.Generator().manual_seed(0))
        fresh = untrained_dequantizer(model, (2,), "uniform")
        before = fresh.flow.state_dict()["look.into.weight"].clone()
        rows = pixels.numpy().astype(np.uint8)
        settings = DequantizerSettings(steps=80, batch_size=32, lr=1e-2)
        trained = fit_flow(model, fresh, rows[:1800], rows[1800:], settings)
        plain, _ = self.value(fresh, 1)
        one, error = self.value(trained.learned, 1)
        twenty, _ = self.value(trained.learned, 20)
        tn, _ = self.value(TruncatedNormal(model.gamma_min), 1)
        assert plain > 0.8  # uniform noise at the model's own start: 0.63 nats a dimension
        assert one < tn + 0.1  # most of that is gone
        assert -4 * error < twenty < one + 4 * error
        assert one > 0
        assert trained.gain > 5 * trained.gain_error > 0
        assert (fresh.flow.state_dict()["look.into.weight"] == before).all()

    def test_the_same_seed_teaches_the_same(self) -> None:
        model = self.lattice.ode(VP, start_gamma(4), 7.0)
        rows = self.points.numpy().astype(np.uint8).repeat(5, 0)
        made = [
            fit_flow(
                model,
                untrained_dequantizer(model, (2,), "tn"),
                rows,
                rows,
                DequantizerSettings(steps=3, batch_size=8),
            ).learned.flow.state_dict()
            for _ in range(2)
        ]
        assert all((made[0][name] == made[1][name]).all() for name in made[0])

    @pytest.mark.parametrize(
        ("values", "message"),
        [({"steps": 0}, "steps must be"), ({"lr": math.nan}, "lr must be positive, got nan")],
    )
    def test_impossible_settings_are_refused(self, values: dict, message: str) -> None:
        with pytest.raises(InputError, match=message):
            DequantizerSettings(**values)

    def test_continuous_data_needs_none(self) -> None:
        with pytest.raises(InputError, match="continuous data"):
            untrained_dequantizer(self.lattice.mixture.ode(VP, -8.0, 5.0), (2,), "tn")


class TestEvaluation:
    lattice = TestTraining.lattice

    def test_bits_per_dim_with_a_fresh_one_are_those_of_its_base(self) -> None:
        model = self.lattice.ode(VP, start_gamma(4), 7.0)
        pixels, _ = self.lattice.sample(6, torch.Generator().manual_seed(0))
        learned = untrained_dequantizer(model, (2,), "tn")
        exact_solve = {"n_probes": 0, "solver": Adams(tolerance=0.05)}
        plain = bits_per_dim(model, pixels, LikelihoodSettings(**exact_solve))
        fresh = bits_per_dim(model, pixels, LikelihoodSettings(learned, **exact_solve))
        torch.testing.assert_close(fresh.per_image, plain.per_image, atol=1e-6, rtol=0)

    def test_it_must_fit_the_model(self) -> None:
        model = self.lattice.ode(VP, start_gamma(4), 7.0)
        learned = untrained_dequantizer(model, (2,), "tn")
        other = replace(learned, levels=5)
        with pytest.raises(InputError, match="train one for these"):
            bits_per_dim(model, self.lattice.pixels, LikelihoodSettings(other))
        with pytest.raises(InputError, match="no closed-form entropy"):
            LikelihoodSettings(learned, closed_form=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dequantize")
    np.save(folder / "images.npy", tiny.images())
    spec = f"npy:{folder / 'images.npy'}?levels=4"
    words = ["--data", spec, "--out", str(folder / "run"), "--quiet", *tiny.FLAGS]
    assert main(["train", "digits", *words]) == 0
    return folder / "run"


def dequantize(run: Path | str, *more: str) -> int:
    return main(["dequantize", str(run), "--steps", "2", "--batch-size", "4", "--quiet", *more])


class TestCommand:
    def test_a_run_without_one_says_what_to_do(self, run: Path, capsys) -> None:
        assert main(["evaluate", str(run), "--dequantization", "learned", "--quiet"]) == 2
        error = capsys.readouterr().err
        assert "train one by `idode dequantize" in error
        assert error.count("\n") == 1

    def test_it_is_trained_stored_and_evaluated(self, run: Path, tmp_path: Path, capsys) -> None:
        copy, out = tmp_path / "copy", tmp_path / "r.json"
        assert dequantize(run, "--out", str(copy)) == 0
        assert not (run / DEQUANTIZER).exists()
        words = ["--limit", "1", "--quiet", "--steps", "8", "--json", str(out)]
        assert main(["evaluate", str(copy), "--dequantization", "learned", *words]) == 0
        (result,) = json.loads(out.read_text())["results"]
        assert result["settings"]["dequantization"]["kind"] == "learned"
        assert "ODE learned" in capsys.readouterr().out
        assert main(["evaluate", str(copy), "--bounds", *words, "--force"]) == 0
        cells = [r["settings"] for r in json.loads(out.read_text())["results"]]
        learned = [c for c in cells if c["dequantization"]["kind"] == "learned"]
        assert [c["n_importance"] for c in learned] == [1, 5, 20]

    def test_it_survives_the_disk_and_is_refused_for_other_weights(
        self, run: Path, tmp_path: Path, capsys
    ) -> None:
        copy = tmp_path / "copy"
        assert dequantize(run, "--out", str(copy), "--base", "uniform") == 0
        opened = open_run(copy)
        learned = load_dequantizer(opened)
        bent = Learned(learned.base, bent_flow(layers=2).float(), learned.levels)
        save_dequantizer(copy, bent, 7)
        again = load_dequantizer(opened)
        pixels, v = torch.from_numpy(tiny.images()[:3]), uniform(3, 1, 4, 4)
        assert isinstance(again.base, Uniform)
        model = opened.model()
        found, expected = (one.states(model, pixels, v) for one in (again, bent))
        assert (found.x == expected.x).all()
        assert (found.weight == expected.weight).all()

        weights = bytearray((copy / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (copy / "model.safetensors").write_bytes(weights)
        with pytest.raises(InputError, match="other weights"):
            load_dequantizer(opened)
        (copy / DEQUANTIZER).write_bytes(b"\x10torn")
        with pytest.raises(InputError, match="cannot be read"):
            load_dequantizer(opened)

    def test_nothing_is_replaced_without_force(self, run: Path, tmp_path: Path, capsys) -> None:
        copy = tmp_path / "copy"
        assert dequantize(run, "--out", str(copy)) == 0
        before = (copy / DEQUANTIZER).read_bytes()
        assert dequantize(copy, "--seed", "3") == 2
        assert "--force replaces it" in capsys.readouterr().err
        assert (copy / DEQUANTIZER).read_bytes() == before
        assert dequantize(copy, "--seed", "3", "--force") == 0
        assert (copy / DEQUANTIZER).read_bytes() != before
        assert dequantize("pretrained:digits", "--out", str(copy), "--force") == 2
        assert "has another run" in capsys.readouterr().err

    @pytest.mark.parametrize("more", [[], ["--force"]])
    def test_a_folder_of_other_files_keeps_them(
        self, run: Path, tmp_path: Path, more: list[str], capsys
    ) -> None:
        mine = tmp_path / "model.safetensors"
        mine.write_text("of another program")
        assert dequantize(run, "--out", str(tmp_path), *more) == 2
        error = capsys.readouterr().err
        assert "is not empty and holds no run: give another folder" in error
        assert error.count("\n") == 1
        assert [p.name for p in tmp_path.iterdir()] == [mine.name]
        assert mine.read_text() == "of another program"

    def test_a_copy_is_a_run_only_once_it_has_its_model(
        self, run: Path, tmp_path: Path, monkeypatch, capsys
    ) -> None:
        def full(path: Path, content: bytes) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("idode.training.dequantizer.write_atomically", full)
            assert dequantize(run, "--out", str(tmp_path / "copy")) == 2
        assert "No space left on device): make room" in capsys.readouterr().err
        assert dequantize(run, "--out", str(tmp_path / "copy")) == 0

    def test_a_copy_cut_short_after_its_model_can_be_made_again(
        self, run: Path, tmp_path: Path, monkeypatch, capsys
    ) -> None:
        def full(path: Path, content: str) -> None:
            raise OSError(28, "No space left on device")

        copy = tmp_path / "copy"
        with monkeypatch.context() as patch:
            patch.setattr("idode.runs.run.write_atomically", full)
            assert dequantize(run, "--out", str(copy)) == 2
        assert "No space left on device" in capsys.readouterr().err
        assert not copy.exists()
        copy.mkdir()
        shutil.copy(run / "model.safetensors", copy)  # as after a kill
        assert dequantize(run, "--out", str(copy)) == 0
        assert has_dequantizer(open_run(copy))

    def test_an_interrupt_leaves_the_one_that_force_would_replace(
        self, run: Path, tmp_path: Path, monkeypatch, capsys
    ) -> None:
        def press(bar: Bar, step: int, metrics: object) -> None:
            signal.raise_signal(signal.SIGINT)

        kept, first = tmp_path / "kept", tmp_path / "first"
        assert dequantize(run, "--out", str(kept)) == 0
        before = (kept / DEQUANTIZER).read_bytes()
        monkeypatch.setattr(Bar, "progress", press)
        assert dequantize(kept, "--seed", "3", "--force") == 130
        assert "keeps the dequantizer it had" in capsys.readouterr().err
        assert (kept / DEQUANTIZER).read_bytes() == before
        assert dequantize(run, "--out", str(first)) == 130
        assert "has the dequantizer of 1 steps" in capsys.readouterr().err
        assert (first / DEQUANTIZER).exists()

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["nowhere"], "there is no run folder nowhere"),
            (["pretrained:digits"], "give a folder for a copy of it as out"),
            (["RUN", "--steps", "0"], "--steps: must be at least 1, got 0"),
            (["RUN", "--data", "digits"], " is for data of shape (1, 4, 4)"),
        ],
    )
    def test_bad_input_is_one_sentence_and_exit_code_2(
        self, run: Path, arguments: list[str], sentence: str, capsys
    ) -> None:
        given = [str(run) if word == "RUN" else word for word in arguments]
        assert main(["dequantize", *given, "--quiet"]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1
        assert not (run / DEQUANTIZER).exists()
