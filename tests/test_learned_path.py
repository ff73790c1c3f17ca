"""Noise levels of single dimensions: MuLAN's path, its bound, and what it costs."""

from __future__ import annotations

import copy
import itertools
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from idode.batches import Batch
from idode.diffusion.clocks import GammaTime
from idode.diffusion.learned_path import LearnedPath, PathNet
from idode.diffusion.model import DiffusionODE
from idode.diffusion.noise_levels import UniformGamma
from idode.diffusion.objectives import first_order, second_order, second_order_score
from idode.diffusion.predictors import NOISE
from idode.diffusion.schedules import SCHEDULES
from idode.errors import InputError
from idode.evaluation.evaluate import evaluate
from idode.evaluation.likelihood import bits_per_dim, sde_bound
from idode.evaluation.run_store import model_hash
from idode.likelihood.estimator import LikelihoodSettings, LogWeightEstimator
from idode.nets.config import NO_PATH
from idode.numerics import nats_to_bits
from idode.ode.dormand_prince import Dopri5
from idode.runs.config import ObjectiveConfig, from_json, override, to_json
from idode.runs.presets import PRESETS
from idode.runs.run import Run, build_net, diffusion_ode
from idode.runs.systems import apply
from idode.sampling.ancestral import Ancestral
from idode.sampling.dpm import DPM
from idode.sampling.samples import sample
from idode.studies.report.noise_levels import measure_noise_levels
from idode.training.objective import Batch as TrainingBatch
from idode.training.objective import Objective, build_density
from idode.training.trainer import Trainer

VP = SCHEDULES["vp"]
ENDS = -6.0, 18.0
MEAN, STD = torch.tensor([[0.3, -0.2, 0.5], [0.5, 1.0, 0.2]], dtype=torch.float64)
BITS = 4
CODES = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=BITS)), dtype=torch.float64)
SETTINGS = ("path.bits=4", "path.width=8", "model.predictor=noise")


def bent(seed: int = 0) -> LearnedPath:
    """A path that is far from a line, in float64."""
    path = LearnedPath((3,), *ENDS, BITS, 8).double()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in path.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=p.dtype))
    return path.requires_grad_(False)


def exact_model(path: LearnedPath) -> DiffusionODE:
    """Of independent normals; its noise is the best guess at the level of each dimension."""

    def net(x: Tensor, clock: Tensor, code: Tensor) -> Tensor:
        gamma = path.at(clock, {"code": code}).level
        alpha, sigma = VP.alpha(gamma), VP.sigma(gamma)
        return sigma * (x - alpha * MEAN) / ((alpha * STD) ** 2 + sigma**2)

    return DiffusionODE(net, VP, *ENDS, NOISE, GammaTime(), shape=(3,), path=path)


def exact_log_prob(x: Tensor) -> Tensor:
    """Of states at the start of the clock."""
    start = torch.tensor(ENDS[0], dtype=torch.float64)
    alpha, sigma = VP.alpha(start), VP.sigma(start)
    std = ((alpha * STD) ** 2 + sigma**2).sqrt()
    return torch.distributions.Normal(alpha * MEAN, std).log_prob(x).sum(1)


class TestLevels:
    def test_all_dimensions_share_both_ends_and_rise_in_between(self) -> None:
        path, clock = bent(), torch.linspace(*ENDS, 101, dtype=torch.float64)
        for code in CODES:
            level = path.at(clock, {"code": code.expand(101, -1)}).level
            ends = torch.tensor(ENDS, dtype=torch.float64)[:, None].expand(2, 3)
            torch.testing.assert_close(level[[0, -1]], ends)
            assert bool((level.diff(dim=0) > 0).all())
        assert float((level - clock[:, None]).abs().max()) > 1  # not the clock itself

    def test_the_slope_is_the_derivative_by_the_clock(self) -> None:
        path = bent()
        clock = torch.linspace(-5.9, 17.9, 16, dtype=torch.float64).requires_grad_()
        point = path.at(clock, {"code": CODES})
        assert point.slope is not None
        for i in range(3):
            (found,) = torch.autograd.grad(point.level[:, i].sum(), clock, retain_graph=True)
            torch.testing.assert_close(point.slope[:, i], found)

    def test_a_fresh_path_is_the_clock_and_its_code_costs_nothing(self) -> None:
        path = LearnedPath((3,), *ENDS, BITS, 8)
        clock = torch.linspace(*ENDS, 16, dtype=torch.float64)
        level = path.at(clock, {"code": CODES}).level
        torch.testing.assert_close(level, clock[:, None].expand(-1, 3))
        drawn = path.encode(torch.randn(16, 3), lambda n: torch.rand(16, n))
        torch.testing.assert_close(drawn.mean_weight, torch.zeros(16, dtype=torch.float64))
        torch.testing.assert_close(drawn.weight, torch.zeros(16, dtype=torch.float64))

    @pytest.mark.parametrize("what", ["velocity", "noise", "first_order"])
    def test_the_path_is_found_once_for_each_evaluation_of_the_network(self, what: str) -> None:
        path, x, clock = bent(), torch.zeros(16, 3).double(), torch.zeros(16).double()
        model, calls = DiffusionODE(lambda x, t, code: x, VP, *ENDS, NOISE, path=path), []
        path.bend.register_forward_hook(lambda *_: calls.append(1))
        if what == "first_order":
            first_order(model, x, x, clock, condition={"code": CODES})
        else:
            getattr(model, what)(x, clock, code=CODES)
        assert len(calls) == 1


class TestBounds:
    @pytest.mark.parametrize("code", [0, 6, 15])
    def test_the_diffusion_term_of_independent_normals_is_that_of_any_path(
        self, code: int
    ) -> None:
        model, given = exact_model(bent()), CODES[[code]].expand(4, -1)
        # Two points have the moments of a normal, and the error is linear in data and noise.
        signs = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
        x0, eps = MEAN + STD * signs[:, :1], signs[:, 1:].expand(-1, 3)
        nodes, weights = np.polynomial.legendre.leggauss(200)
        middle, half = sum(ENDS) / 2, (ENDS[1] - ENDS[0]) / 2
        total = 0.0
        for node, weight in zip(nodes, weights, strict=True):
            gamma = torch.full((4,), middle + half * node, dtype=torch.float64)
            nats = first_order(model, x0, eps, gamma, condition={"code": given})
            total += half * weight * float(nats.mean())
        # E(eps - eps_hat)² is the share of the data in the variance, s²/(s² + e^gamma).
        ends = torch.tensor(ENDS, dtype=torch.float64)[:, None]
        known = (ends - torch.log(STD**2 + torch.exp(ends))).diff(dim=0).sum() / 2
        assert total == pytest.approx(float(known), rel=1e-9)

    def test_the_log_density_of_independent_normals_is_exact_on_a_bent_path(self) -> None:
        model, x = exact_model(bent()), torch.linspace(-1, 1, 48).double().reshape(16, 3)
        found = model.log_prob(x, solver=Dopri5(1e-8), n_probes=0, code=CODES)
        # The prior forgets the mean only in the limit: alpha(18) = 1e-4.
        torch.testing.assert_close(found, exact_log_prob(x), rtol=0, atol=2e-3)
        other = model.log_prob(x, solver=Dopri5(1e-8), n_probes=0, code=CODES.flip(0))
        torch.testing.assert_close(found, other, rtol=0, atol=2e-3)

    def test_the_divergence_is_the_sum_over_all_codes(self) -> None:
        path, x0 = bent(), torch.linspace(-1, 1, 6).double().reshape(2, 3)
        logits = path.encoder(x0)
        share = torch.sigmoid(logits[:, None] * CODES).prod(2)  # (2, 16) of each code
        torch.testing.assert_close(share.sum(1), torch.ones(2, dtype=torch.float64))
        known = (share * torch.log(share * len(CODES))).sum(1)
        many, g = 4000, torch.Generator().manual_seed(0)
        drawn = path.encode(
            x0.repeat_interleave(many, 0), lambda n: torch.rand(2 * many, n, generator=g).double()
        )
        torch.testing.assert_close(-drawn.mean_weight[::many], known)
        code = drawn.condition["code"].reshape(2, many, BITS)
        place = ((code > 0) * torch.tensor([8, 4, 2, 1])).sum(2)
        own = torch.gather(share, 1, place)
        torch.testing.assert_close(drawn.weight.reshape(2, many), -torch.log(own * len(CODES)))
        for row in range(2):
            seen = torch.bincount(place[row], minlength=16) / many
            assert float((seen - share[row]).abs().max()) < 4 * 0.5 / math.sqrt(many)

    def test_the_ode_bound_is_the_density_plus_the_divergence(self) -> None:
        path = bent()
        model, x0 = exact_model(path), torch.linspace(-1, 1, 9).double().reshape(3, 3)
        how = {"n_probes": 0, "solver": Dopri5(1e-6)}
        closed = bits_per_dim(
            model, x0, LikelihoodSettings(closed_form=True, **how), dtype=torch.float64
        )
        start = torch.tensor(ENDS[0], dtype=torch.float64)
        density = exact_log_prob(VP.alpha(start) * x0) + 3 * VP.log_alpha(start)
        cost = -path.encode(x0, lambda n: torch.full((3, n), 0.5)).mean_weight
        assert float(cost.min()) > 0.1
        known = nats_to_bits(cost - density, 3)
        torch.testing.assert_close(closed.per_image, known, rtol=0, atol=2e-3)
        assert any("bound over it" in note for note in closed.notes)
        # Inside of a logarithm each draw has the weight of its own code.
        settings = LikelihoodSettings(n_importance=2, **how).for_model(model)
        estimator, batch = (
            LogWeightEstimator(model, settings, torch.float64),
            Batch(x0, [0, 1, 2], {}),
        )
        drawn = estimator.draws(batch, Dopri5(1e-6))
        x0 = estimator.clean(batch.values)
        weights = torch.stack([estimator.code(batch, x0, k)[1] for k in range(2)])
        assert not torch.equal(weights[0], weights[1])
        torch.testing.assert_close(drawn.log_w, density + weights, rtol=0, atol=5e-3)

    def test_the_sde_bound_contains_the_divergence_and_shows_it(self) -> None:
        model = tiny_model()
        pixels = torch.from_numpy(tiny.images()[:5].astype(np.int32))
        bound = sde_bound(model, pixels, draws=4)
        parts = bound.reconstruction + bound.prior + bound.diffusion + bound.code
        assert bound.mean == pytest.approx(parts)
        x0 = (2 * pixels + 1) / 4 - 1
        cost = -model.path.encode(x0, lambda n: torch.rand(5, n)).mean_weight
        assert bound.code == pytest.approx(float(nats_to_bits(cost, 16).mean()), rel=1e-5)
        assert bound.code > 0.01


def tiny_model(*settings: str) -> DiffusionODE:
    """A model of 4x4 images whose path and codes are far from the fresh ones."""
    config = tiny.config(*SETTINGS, *settings)
    net, g = build_net(config), torch.Generator().manual_seed(0)
    assert isinstance(net, PathNet)
    with torch.no_grad():
        for p in net.path.parameters():
            p.copy_(torch.randn(p.shape, generator=g))
    return diffusion_ode(net.eval().requires_grad_(False), config)


class TestTraining:
    def test_mulan_is_the_weighted_noise_error_in_its_own_time(self) -> None:
        config = override(apply(PRESETS["vectors"], "mulan"), ["model.gamma_min=-6"])
        path = bent()

        class Smooth(torch.nn.Module):
            def forward(self, x: Tensor, t: Tensor, code: Tensor) -> Tensor:
                return torch.tanh(x + 0.3 * x.roll(1, -1)) * (t[:, None] + code[:, :1])

        path.gamma_max = config.model.gamma_max
        model = diffusion_ode(PathNet(Smooth(), path), config)
        g = torch.Generator().manual_seed(1)
        objective = Objective(config.objective, build_density(config.objective.density, model, g))
        t = torch.tensor([0.03, 0.2, 0.41, 0.6, 0.83, 0.99], dtype=torch.float64)
        x0, eps = torch.randn(2, 6, 3, generator=g, dtype=torch.float64)
        times = objective.density.at(t)
        uniforms = torch.rand(6, BITS, generator=g)
        batch = TrainingBatch(x0, eps, times, {}, (), times, uniforms)
        losses = objective.losses(model, batch)
        drawn = path.encode(x0, lambda n: uniforms)

        code = drawn.condition["code"]
        a, b, d = path.bend(code).reshape(6, 3, 3).unbind(1)
        d, t = d + 1, t[:, None].requires_grad_()
        f, whole = (
            a**2 * u**5 / 5 + a * b * u**4 / 2 + (b**2 + 2 * a * d) * u**3 / 3
            + b * d * u**2 + (d**2 + 1e-3) * u
            for u in (t, torch.ones_like(t))
        )  # fmt: skip
        gamma = -6 + (config.model.gamma_max + 6) * f / whole
        slope = torch.cat([torch.autograd.grad(gamma[:, i].sum(), t, retain_graph=True)[0]
                           for i in range(3)], dim=1)  # fmt: skip
        z = torch.sigmoid(-gamma).sqrt() * x0 + torch.sigmoid(gamma).sqrt() * eps
        error = eps - model.net(z, t[:, 0], code=code)
        theirs = (slope * error**2).sum(1) / 2 - drawn.mean_weight
        torch.testing.assert_close(losses.first / times.density, theirs)

    def test_codes_belong_to_rows_of_the_global_batch_and_pairs_share_theirs(self) -> None:
        pixels, density = torch.from_numpy(tiny.images()[:8]), UniformGamma(*ENDS)
        for antithetic in (False, True):
            config = ObjectiveConfig(antithetic=antithetic)
            objective = Objective(config, density, bits=BITS)
            g, again = (torch.Generator().manual_seed(0) for _ in range(2))
            whole = objective.draw(pixels, 4, g).uniforms
            part = objective.draw(pixels[4:], 4, again, first=4, count=8).uniforms
            assert torch.equal(part, whole[4:])
            assert torch.equal(whole[::2], whole[1::2]) == antithetic

    def test_a_step_moves_the_network_the_path_and_the_encoder(self, tmp_path: Path) -> None:
        trainer = tiny.train(tmp_path, *SETTINGS, "train.steps=10")
        fresh = build_net(trainer.run.config).state_dict()
        for name, value in trainer.state.net.state_dict().items():
            if name.startswith("path.") and value.ndim == 2:
                assert not torch.equal(value, fresh[name]), name
        loaded = trainer.run.model()
        assert isinstance(loaded.path, LearnedPath)
        torch.testing.assert_close(
            loaded.path.state_dict(), trainer.average.path.state_dict(), rtol=0, atol=0
        )

    def test_a_run_that_was_cut_short_goes_on_bit_for_bit(self, tmp_path: Path) -> None:
        more = (*SETTINGS, "objective.density=uniform-gamma", "train.accumulate=2")
        whole = tiny.train(tmp_path / "whole", *more)
        short = tiny.train(tmp_path / "parts", *more)
        shutil.rmtree(short.run.checkpoints / "step-000000020")
        again = tiny.train(tmp_path / "parts", *more)
        assert again.state.step == whole.state.step
        found, known = again.state.tensors(), whole.state.tensors()
        for name in known:
            assert torch.equal(found[name], known[name]), name

    def test_configurations_without_a_path_load_and_keep_their_hash(self) -> None:
        config = tiny.config()
        old = to_json(config)
        del old["path"]
        assert from_json(json.loads(json.dumps(old))) == config
        assert config.path == NO_PATH
        model = diffusion_ode(build_net(config), config)
        again = Run(Path(), from_json(old), None)
        assert model_hash(again, model) == model_hash(Run(Path(), config, None), model)
        assert not {"bits", "path"} & (old["model"].keys() | old["net"].keys())

    @pytest.mark.parametrize(
        "setting",
        ["objective.weighting=simple", "objective.order=2", "objective.truncation=1"],
    )
    def test_a_loss_that_is_no_bound_is_refused(self, setting: str) -> None:
        with pytest.raises(InputError, match=r"path\.bits=4 learns .* from the variational bound"):
            tiny.config(*SETTINGS, setting)

    def test_a_network_without_a_path_is_refused(self) -> None:
        config = tiny.config(*SETTINGS)
        with pytest.raises(InputError, match=r"path\.bits=4 .* this UNet has none: .*build_net"):
            diffusion_ode(build_net(tiny.config()), config)


class TestGivenCode:
    """A value for a code that q(z|x) did not draw is no bound."""

    @pytest.mark.parametrize("what", ["loss", "bits_per_dim", "sde_bound"])
    def test_bounds_refuse_it(self, what: str) -> None:
        pixels = torch.from_numpy(tiny.images()[:5].astype(np.int32))
        with pytest.raises(InputError, match=r"a code was given, .*leave it out, or .*log_prob"):
            getattr(tiny_model(), what)(pixels, code=torch.ones(5, BITS))

    def test_evaluate_refuses_it(self, tmp_path: Path) -> None:
        run = tiny.train(tmp_path, *SETTINGS, "train.steps=1").run
        how = {"data": tiny.dataset(), "limit": 2, "progress": False, "device": "cpu"}
        with pytest.raises(InputError, match="a code was given"):
            evaluate(run, condition={"code": torch.ones(8, BITS)}, **how)

    def test_a_network_on_one_level_may_take_a_condition_of_that_name(self) -> None:
        net = lambda x, t, code: 0.1 * x * code[:, :1]  # noqa: E731
        model = DiffusionODE(net, VP, *ENDS, NOISE, levels=4, shape=(3,))
        pixels, code = torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, 1)
        one, two = (
            model.loss(pixels, generator=torch.Generator().manual_seed(0), code=k * code)
            for k in (1, 2)
        )
        assert float(one) != float(two)


@pytest.mark.parametrize("loss", [second_order, second_order_score])
def test_second_order_losses_say_what_to_train_with(loss) -> None:
    x = torch.zeros(2, 1, 4, 4)
    with pytest.raises(
        InputError, match=r"learned one for each .*: train it with objective.order=1"
    ):
        loss(tiny_model(), x, x, torch.zeros(2), torch.ones(1, *x.shape))


class TestModule:
    @pytest.mark.parametrize("wrap", [lambda net: net, torch.nn.Sequential])
    def test_every_weight_is_there_once_and_moves_with_the_model(self, wrap) -> None:
        model = tiny_model()
        model = model.with_net(wrap(model.net))
        places = [x.data_ptr() for x in model.state_dict().values()]
        assert len(set(places)) == len(places)
        assert not [name for name in model.state_dict() if name.startswith("path.")]
        moved = copy.deepcopy(model).double()
        assert isinstance(moved.path, LearnedPath)
        own = {id(p) for p in moved.net.parameters()}
        for p in moved.path.parameters():
            assert p.dtype is torch.float64
            assert id(p) in own
        assert next(iter(model.path.parameters())).dtype is torch.float32

    def test_a_path_that_no_network_owns_is_the_models(self) -> None:
        model = exact_model(bent())
        assert {name.split(".")[0] for name in model.state_dict()} == {"path"}

    def test_a_network_comes_with_the_path_it_was_trained_on(self) -> None:
        model, other = tiny_model(), tiny_model()
        assert isinstance(other.net, PathNet)
        assert model.with_net(other.net).path is other.net.path
        assert model.with_net(lambda x, t, code: x).path is model.path

    @pytest.mark.parametrize("inner", [True, False])
    def test_a_folder_that_would_lack_the_path_is_not_written(
        self, inner: bool, tmp_path: Path
    ) -> None:
        model = tiny_model()
        assert isinstance(model.net, PathNet)
        model = model.with_net(model.net.net) if inner else model
        with pytest.raises(InputError, match=r"learned noise levels \(path.bits\): copy the run"):
            model.save_pretrained(tmp_path / "saved")
        assert not (tmp_path / "saved").exists()


class TestSampling:
    def test_samples_draw_their_codes_from_the_prior_by_their_number(self) -> None:
        model, solver = tiny_model(), Dopri5(1e-2)
        few, more = (sample(model, n, solver=solver, batch_size=1) for n in (2, 3))
        torch.testing.assert_close(few.x, more.x[:2], rtol=0, atol=0)
        code = torch.ones(2, BITS)
        given = sample(model, 2, solver=solver, condition={"code": code}, batch_size=1)
        assert not torch.allclose(given.x, few.x)

    @pytest.mark.parametrize("solver", [DPM(4), Ancestral(4)])
    def test_solvers_that_know_one_noise_level_are_refused(self, solver: DPM | Ancestral) -> None:
        with pytest.raises(InputError, match=r"learned one for each .* use .*adams or dopri5"):
            sample(tiny_model(), 2, solver=solver)

    def test_the_density_of_a_sample_given_its_code_is_not_offered_as_its_own(self) -> None:
        with pytest.raises(InputError, match=r"given its code only .* leave log_prob out, or"):
            sample(tiny_model(), 2, log_prob=True)

    def test_what_draws_no_code_is_refused_in_one_sentence(self) -> None:
        with pytest.raises(InputError, match="depend on a code"):
            tiny_model().log_prob(torch.zeros(2, 1, 4, 4))


def test_the_report_measures_noise_levels_with_codes() -> None:
    model = tiny_model()
    uniform = UniformGamma(model.gamma_min, model.gamma_max)
    x0, g = torch.zeros(2, 1, 4, 4), torch.Generator().manual_seed(0)
    found = measure_noise_levels(model, x0, {"uniform": uniform}, 4, 2, g)
    assert bool(found.noise_error.isfinite().all())


def test_the_errors_of_the_report_are_not_weighted_by_the_slope_of_the_path() -> None:
    path = bent()
    with torch.no_grad():  # one code for all data, so that its errors have a closed form
        path.encoder.dense_out.weight.zero_()
        path.encoder.dense_out.bias.fill_(50)
    model, g = exact_model(path), torch.Generator().manual_seed(0)
    x0 = MEAN + STD * torch.randn(4000, 3, generator=g, dtype=torch.float64)
    found = measure_noise_levels(model, x0, {"uniform": UniformGamma(*ENDS)}, 8, 1, g)
    level = path.at(found.gamma, {"code": torch.ones(8, BITS)}).level
    # E(eps - eps_hat)² is the share of the data in the variance, s²/(s² + e^gamma).
    noise = STD**2 / (STD**2 + torch.exp(level))
    # 4,000 squared normal numbers for each dimension: relative deviation sqrt(2 / 4,000), times
    # four. Under VP the normalised velocity's error is that of the noise over alpha².
    allowed = {"rtol": 0.09, "atol": 0}
    torch.testing.assert_close(found.noise_error, noise.mean(1), **allowed)
    torch.testing.assert_close(
        found.velocity_error, (noise / VP.alpha(level) ** 2).mean(1), **allowed
    )


def test_the_trainer_of_a_run_has_one_path(tmp_path: Path) -> None:
    run = Run(tmp_path, tiny.config(*SETTINGS), tiny.dataset().identity)
    trainer = Trainer(run, tiny.dataset(), tiny.CPU)
    assert trainer.model.path is trainer.state.net.path
    assert trainer.average.path is trainer.state.average.net.path
