"""Each system against the loss of its own paper, written again in that paper's time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from idode.cli.main import main
from idode.diffusion.model import DiffusionODE
from idode.diffusion.noise_levels import Designed, UniformGamma
from idode.diffusion.objectives import second_order
from idode.diffusion.other_noise_levels import NormalGamma, SoftTruncation, above
from idode.errors import InputError
from idode.evaluation.likelihood import bits_per_dim, sde_bound
from idode.likelihood import DEQUANTIZATIONS
from idode.likelihood.dequantization import uniform_start
from idode.likelihood.estimator import LikelihoodSettings
from idode.likelihood.log_prob import prior_log_prob
from idode.ode.dormand_prince import Dopri5
from idode.runs.config import Config, ObjectiveConfig, from_json, override, to_json
from idode.runs.objective_config import SimulationConfig
from idode.runs.presets import PRESETS
from idode.runs.run import Run, diffusion_ode
from idode.runs.systems import COMPARED, LATER, SYSTEMS, apply
from idode.training.objective import Batch, Objective, build_density
from idode.training.simulation import simulated
from idode.training.trainer import Trainer

DIM = 3
every_system = pytest.mark.parametrize("name", SYSTEMS)


def net(x: Tensor, t: Tensor) -> Tensor:
    """Anything smooth that depends on state and time, and mixes dimensions."""
    return torch.tanh(x + 0.3 * x.roll(1, -1)) * (1 + t[:, None]) + 0.1 * torch.sin(x)


@dataclass(frozen=True)
class Case:
    """A system with a batch at given uniform numbers, in float64, and the library's loss."""

    model: DiffusionODE
    batch: Batch
    loss: Tensor  # (B,) as training averages it

    @property
    def span(self) -> float:
        return self.model.gamma_max - self.model.gamma_min

    def told(self, gamma: Tensor) -> Tensor:
        """What our networks are told at a gamma."""
        return (gamma - self.model.gamma_min) / self.span


def case(name: str, *settings: str, network: Callable[..., Tensor] = net) -> Case:
    config = override(apply(PRESETS["digits"], name), settings)
    g = torch.Generator().manual_seed(3)
    model = diffusion_ode(network, config)  # type: ignore[arg-type]
    objective = Objective(config.objective, build_density(config.objective.density, model, g))
    t = torch.tensor([0.03, 0.2, 0.41, 0.6, 0.83, 0.99], dtype=torch.float64)
    x0, eps = torch.randn(2, len(t), DIM, generator=g, dtype=torch.float64)
    probes = torch.randint(0, 2, (1, *x0.shape), generator=g).double() * 2 - 1
    with torch.no_grad():
        times = objective.density.at(t)
    batch = Batch(x0 / 2, eps, times, {}, tuple(probes), times, x0[:, :0])
    losses = objective.losses(model, batch).total(config.objective.ratio)
    return Case(model, batch, (losses / times.density).detach())


def square(x: Tensor) -> Tensor:
    return (x**2).sum(1)


def beta_integral(t: Tensor) -> Tensor:
    """ScoreSDE: beta from 0.1 to 20, integrated from 0."""
    return 0.1 * t + 19.9 * t**2 / 2


def beta_std(t: Tensor) -> tuple[Tensor, Tensor]:
    log_mean = -0.5 * beta_integral(t)
    return torch.exp(log_mean), torch.sqrt(-torch.expm1(2 * log_mean))


def beta_time(gamma: float) -> float:
    """The time of a log noise-to-signal ratio, by bisection."""
    lo, hi = 1e-12, 2.0
    for _ in range(200):
        mid = math.sqrt(lo * hi)
        mean, std = beta_std(torch.tensor(mid, dtype=torch.float64))
        lo, hi = (mid, hi) if 2 * math.log(float(std / mean)) < gamma else (lo, mid)
    return lo


class TestFormulas:
    def test_vdm_is_the_noise_error_over_the_range_of_gamma(self) -> None:
        c = case("vdm")
        gamma = c.model.gamma_min + c.span * c.batch.times.t
        alpha, sigma = torch.sigmoid(-gamma).sqrt()[:, None], torch.sigmoid(gamma).sqrt()[:, None]
        z = alpha * c.batch.x0 + sigma * c.batch.eps
        eps_hat = net(z, c.batch.times.t)
        torch.testing.assert_close(c.loss, 0.5 * c.span * square(c.batch.eps - eps_hat))

    def test_scoresde_is_the_scaled_score_error_at_uniform_times(self) -> None:
        c = case("scoresde")
        begin, end = beta_time(c.model.gamma_min), beta_time(c.model.gamma_max)
        assert end == pytest.approx(1, abs=1e-5)
        t = begin + (end - begin) * c.batch.times.t
        mean, std = (v[:, None] for v in beta_std(t))
        x = mean * c.batch.x0 + std * c.batch.eps
        score = -net(x, c.told(2 * torch.log(std / mean)[:, 0])) / std
        torch.testing.assert_close(c.loss, square(std * score + c.batch.eps), rtol=1e-8, atol=0)

    def test_scoreflow_weighs_by_g_squared_and_samples_by_g_squared_over_variance(self) -> None:
        c = case("scoreflow")
        begin = beta_time(c.model.gamma_min)
        end = beta_time(c.model.gamma_max)

        def importance(until: float) -> float:  # of g²/std², in log time, which is smooth
            nodes, weights = np.polynomial.legendre.leggauss(400)
            half = 0.5 * math.log(until / begin)
            t = torch.from_numpy(begin * np.exp(half * (nodes + 1)))
            rate = (0.1 + 19.9 * t) / beta_std(t)[1] ** 2
            return float((rate * t * torch.from_numpy(weights)).sum()) * half

        total = importance(end)
        for i, u in enumerate(c.batch.times.t.tolist()):
            t = torch.tensor(beta_time(float(c.batch.times.gamma[i])), dtype=torch.float64)
            assert importance(float(t)) / total == pytest.approx(u, rel=1e-8)
            mean, std = beta_std(t)
            x = mean * c.batch.x0[i : i + 1] + std * c.batch.eps[i : i + 1]
            score = -net(x, c.told(2 * torch.log(std / mean)[None])) / std
            likelihood = 0.5 * (0.1 + 19.9 * t) * square(score + c.batch.eps[i : i + 1] / std)
            drawn = (0.1 + 19.9 * t) / std**2 / total
            assert float(c.loss[i]) == pytest.approx(float(likelihood / drawn), rel=1e-8)

    def test_flow_matching_is_the_conditional_loss_of_the_optimal_transport_path(self) -> None:
        c, least = case("flow-matching"), 1e-5
        t = their_straight_time(c)
        x = (1 - (1 - least) * t) * c.batch.eps + t * c.batch.x0
        velocity = -net(x, c.told(2 * torch.log((1 - t) / t)[:, 0]))
        loss = square(velocity - (c.batch.x0 - (1 - least) * c.batch.eps))
        torch.testing.assert_close(c.loss, loss, rtol=1e-4, atol=0)

    def test_rectified_flow_is_the_distance_from_the_straight_line(self) -> None:
        c = case("rectified-flow")
        t = their_straight_time(c)
        x = t * c.batch.x0 + (1 - t) * c.batch.eps
        velocity = -net(x, c.told(2 * torch.log((1 - t) / t)[:, 0]))
        torch.testing.assert_close(c.loss, square(c.batch.x0 - c.batch.eps - velocity))

    def test_a_stochastic_interpolant_is_its_quadratic_objective(self) -> None:
        c = case("stochastic-interpolant")
        lo, hi = (math.atan(math.exp(-g / 2)) for g in (c.model.gamma_max, c.model.gamma_min))
        angle = (hi - (hi - lo) * c.batch.times.t)[:, None]  # pi t / 2, with the data at t = 1
        x = torch.cos(angle) * c.batch.eps + torch.sin(angle) * c.batch.x0
        slope = math.pi / 2 * (torch.cos(angle) * c.batch.x0 - torch.sin(angle) * c.batch.eps)
        velocity = -net(x, c.told(-2 * torch.log(torch.tan(angle))[:, 0]))
        objective = square(velocity) - 2 * (slope * velocity).sum(1)
        torch.testing.assert_close(c.loss, objective + square(slope))

    def test_a_stochastic_interpolant_is_vp_with_another_time_density(self) -> None:
        c = case("stochastic-interpolant")
        turning = "objective.density=uniform-time:trigonometric"
        vp = case(
            "idode-vp",
            *(turning, "objective.weighting=simple"),
            network=lambda x, t: 2 / math.pi * net(x, t),
        )
        torch.testing.assert_close(c.loss, (math.pi / 2) ** 2 * vp.loss)

    def test_edm_is_the_weighted_error_of_its_denoiser_at_log_normal_noise(self) -> None:
        c, data = case("edm"), 0.5
        sigma = torch.exp(c.batch.times.gamma / 2)[:, None]
        noisy = c.batch.x0 + sigma * c.batch.eps
        total = sigma**2 + data**2
        inner = -net(noisy / total.sqrt(), c.told(c.batch.times.gamma))  # their F is minus ours
        denoised = data**2 / total * noisy + sigma * data / total.sqrt() * inner
        loss = (total / (sigma * data) ** 2)[:, 0] * square(denoised - c.batch.x0)
        torch.testing.assert_close(c.loss, loss)
        assert c.model.gamma_max == pytest.approx(2 * math.log(80), abs=1e-3)

    def test_edm_draws_log_sigma_from_its_normal(self) -> None:
        times = NormalGamma(-60.0, 60.0).draw(4000, torch.Generator().manual_seed(0))
        log_sigma = times.gamma / 2
        assert float(log_sigma.mean()) == pytest.approx(-1.2, abs=1e-3)
        assert float(log_sigma.std()) == pytest.approx(1.2, abs=2e-3)
        cut = NormalGamma(-7.9, 3.0)
        gamma = torch.linspace(-7.9, 3.0, 4001, dtype=torch.float64)
        torch.testing.assert_close(cut.isf(cut.sf(gamma)), gamma)
        assert float(torch.trapezoid(cut.density(gamma), gamma)) == pytest.approx(1, abs=1e-6)

    def test_high_order_dsm_matches_the_score_its_hessian_and_trace(self) -> None:
        c = case("high-order-dsm")
        sigma = torch.exp(c.batch.times.gamma / 2)
        x = c.batch.x0 + sigma[:, None] * c.batch.eps
        told, v = c.told(c.batch.times.gamma), c.batch.probes
        assert v is not None
        for i in range(len(x)):

            def score(y: Tensor, i: int = i) -> Tensor:
                scaled = y[None] / torch.sqrt(1 + sigma[i] ** 2)
                return -net(scaled, told[i : i + 1])[0] / sigma[i]

            hessian = torch.autograd.functional.jacobian(score, x[i])
            error = sigma[i] * score(x[i]) + c.batch.eps[i]
            product, probe = sigma[i] ** 2 * hessian.mT @ v[0][i], v[0][i]
            whole = ((product + probe - (error @ probe) * error) ** 2).sum()
            trace = probe @ product + probe @ probe - (error @ probe) ** 2
            # Their code takes means over the dimensions of everything; a sample's nats are that
            # times half the dimensions, over the range of gamma.
            theirs = (error @ error) / DIM + whole / DIM**2 + (trace / DIM) ** 2
            assert float(c.loss[i]) == pytest.approx(float(c.span * DIM / 2 * theirs), rel=1e-9)

    def test_the_trace_objective_is_the_trace_of_high_order_dsm(self) -> None:
        c = case("high-order-dsm")
        x0, eps, gamma = c.batch.x0, c.batch.eps, c.batch.times.gamma
        signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * DIM)
        probes = signs[:, None].expand(-1, *x0.shape).contiguous()  # their mean is exact
        ours = second_order(c.model, x0, eps, gamma, probes).second.detach()
        sigma = torch.exp(gamma / 2)
        x = x0 + sigma[:, None] * eps
        for i in range(len(x)):
            at = gamma[i : i + 1]
            jacobian = torch.autograd.functional.jacobian(
                lambda y, at=at: c.model.noise(y[None], at)[0], x[i]
            )
            error = square(eps[i : i + 1] - c.model.noise(x[i : i + 1], at))
            theirs = (-sigma[i] * torch.trace(jacobian) + DIM - error) ** 2 / (2 * DIM)
            assert float(ours[i]) == pytest.approx(float(theirs), rel=1e-9)

    @pytest.mark.parametrize("name", ["idode-vp", "idode-sp"])
    def test_idode_is_a_constant_times_the_error_of_the_normalised_velocity(
        self, name: str
    ) -> None:
        c = case(name)
        lo, hi = c.model.gamma_min, c.model.gamma_max
        gamma = c.batch.times.gamma[:, None]
        if name == "idode-vp":
            log_variance = [-math.log1p(math.exp(-g)) for g in (lo, hi)]
            constant = log_variance[1] - log_variance[0]
            log_sigma2 = log_variance[0] + constant * c.batch.times.t
            gamma = -torch.log(torch.exp(-log_sigma2) - 1)[:, None]
            alpha, sigma = torch.sigmoid(-gamma).sqrt(), torch.sigmoid(gamma).sqrt()
            constant, target = constant / 2, alpha * c.batch.eps - sigma * c.batch.x0
        else:
            alpha, sigma = torch.sigmoid(-gamma / 2), torch.sigmoid(gamma / 2)
            grid = torch.linspace(lo, hi, 200_001, dtype=torch.float64)
            constant = float(torch.trapezoid(torch.sigmoid(-grid / 2) ** 2, grid))
            target = (c.batch.eps - c.batch.x0) / math.sqrt(2)
        said = net(alpha * c.batch.x0 + sigma * c.batch.eps, c.told(gamma[:, 0]))
        torch.testing.assert_close(c.loss, constant * square(said - target), rtol=1e-7, atol=0)

    @pytest.mark.parametrize("name", [n for n in SYSTEMS if n not in COMPARED | LATER])
    def test_an_ablation_still_estimates_the_likelihoods_integral(self, name: str) -> None:
        c = case(name)
        gamma = c.batch.times.gamma[:, None]
        if "-vp-" in name:
            alpha, sigma = torch.sigmoid(-gamma).sqrt(), torch.sigmoid(gamma).sqrt()
        else:
            alpha, sigma = torch.sigmoid(-gamma / 2), torch.sigmoid(gamma / 2)
        x = alpha * c.batch.x0 + sigma * c.batch.eps
        said = net(x, c.told(gamma[:, 0]))
        velocity = alpha * said + sigma * x if "-vp-" in name else math.sqrt(2) * alpha * said + x
        eps_hat = said if name.endswith("noise") else velocity
        nats = 0.5 * square(c.batch.eps - eps_hat)
        torch.testing.assert_close(c.loss * c.batch.times.density, nats)
        if name.endswith("uniform"):
            torch.testing.assert_close(c.loss, c.span * nats)


def their_straight_time(c: Case) -> Tensor:
    """Uniform between the ends, with the data at 1."""
    noisy, clean = (1 / (1 + math.exp(g / 2)) for g in (c.model.gamma_max, c.model.gamma_min))
    return (clean - (clean - noisy) * c.batch.times.t)[:, None]


class TestSoftTruncation:
    ends = -7.9, 10.05

    @pytest.mark.parametrize("power", [0.0, 1.0, 1.2])
    def test_the_smallest_time_has_its_papers_prior(self, power: float) -> None:
        prior = SoftTruncation(*self.ends, power)
        u = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
        starts = prior.quantile(u)
        begin, end = (beta_time(g) for g in self.ends)
        for gamma in (-7.0, -3.0, 0.0, 4.0):
            t, rest = beta_time(gamma), 1 - power
            below = (
                math.log(t / begin) / math.log(end / begin)
                if rest == 0
                else (t**rest - begin**rest) / (end**rest - begin**rest)
            )
            assert float((starts <= gamma).double().mean()) == pytest.approx(below, abs=1e-4)
            assert float(prior.cdf(torch.tensor(gamma).double())) == pytest.approx(below, rel=1e-6)

    @pytest.mark.parametrize("kind", [UniformGamma, Designed])
    def test_a_noise_level_weighs_what_the_prior_leaves_it(self, kind: type) -> None:
        """Its estimate, averaged over starts, integrates P(start below) times the loss."""
        model = case("soft-truncation").model
        density = kind(*self.ends) if kind is UniformGamma else kind(model.schedule, *self.ends)
        prior = SoftTruncation(*self.ends, 1.0)
        t = (torch.arange(400, dtype=torch.float64) + 0.5) / 400

        def level(gamma: Tensor) -> Tensor:
            return torch.exp(-((gamma + 2) ** 2) / 8)

        found = []
        for u in ((torch.arange(400, dtype=torch.float64) + 0.5) / 400).unbind():
            times = above(density, prior.quantile(u), t)
            found.append(float((level(times.gamma) / times.density).mean()))
        grid = torch.linspace(*self.ends, 20_001, dtype=torch.float64)
        wanted = float(torch.trapezoid(prior.cdf(grid) * level(grid), grid))
        assert np.mean(found) == pytest.approx(wanted, rel=2e-3)

    def test_every_batch_has_a_start_of_its_own(self) -> None:
        config = apply(PRESETS["digits"], "soft-truncation")
        objective = Objective(config.objective, UniformGamma(*self.ends))
        g = torch.Generator().manual_seed(0)
        pixels = torch.zeros(16, 1, 2, 2, dtype=torch.uint8)
        drawn = [objective.draw(pixels, 17, g).times for _ in range(30)]
        spans = [1 / float(times.density[0]) for times in drawn]
        assert len(set(spans)) == 30
        for times, span in zip(drawn, spans, strict=True):
            assert float(times.gamma.min()) >= self.ends[1] - span - 1e-9
            assert float(times.gamma.max() - times.gamma.min()) > 0.8 * span


class TestSimulation:
    @staticmethod
    def linear(matrix: Tensor) -> Callable[..., Tensor]:
        return lambda x, t: x @ matrix.mT

    def test_its_gradient_is_that_of_the_exact_gaussian_likelihood(self) -> None:
        """A linear field makes the model a Gaussian with a matrix exponential for a root."""
        g = torch.Generator().manual_seed(1)
        config = override(apply(PRESETS["digits"], "ffjord"), ["simulation.steps=24"])
        start = torch.randn(2, 2, generator=g, dtype=torch.float64) / 2
        x = torch.rand(5, 2, generator=g, dtype=torch.float64) * 2 - 1
        probes = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * 2)
        matrix = start.clone().requires_grad_()
        model = diffusion_ode(self.linear(matrix), config)  # type: ignore[arg-type]
        density = build_density(config.objective.density, model)
        times = density.at(torch.rand(5, generator=g).double())
        for_all = tuple(probe.expand(5, -1) for probe in probes)
        batch = Batch(x, torch.zeros_like(x), times, {}, for_all, times, x[:, :0])
        objective = Objective(config.objective, density, config.simulation)
        ours = (objective.losses(model, batch).first / batch.times.density).sum()
        (gradient,) = torch.autograd.grad(ours, matrix)

        free = start.clone().requires_grad_()
        enters, leaves = (
            2 / math.pi * math.atan(math.exp(gamma / 2))
            for gamma in (uniform_start(17), model.gamma_max)
        )
        z = x @ torch.matrix_exp((leaves - enters) * free).mT
        variance = 1 / (1 + math.exp(-model.gamma_max))
        log_p = -square(z) / (2 * variance) - math.log(2 * math.pi * variance)
        exact = (-log_p - (leaves - enters) * torch.trace(free) + 2 * math.log(17 / 2)).sum()
        (wanted,) = torch.autograd.grad(exact, free)
        assert ours.item() == pytest.approx(exact.item(), rel=1e-7)
        torch.testing.assert_close(gradient, wanted, rtol=1e-6, atol=1e-7)

    def test_the_regularisation_is_kinetic_energy_and_the_jacobians_norm(self) -> None:
        config = apply(PRESETS["digits"], "ffjord")
        rate = 0.7 * torch.eye(2, dtype=torch.float64)
        model = diffusion_ode(self.linear(rate), config)  # type: ignore[arg-type]
        density = build_density(config.objective.density, model)
        x = torch.tensor([[0.5, -0.2]], dtype=torch.float64)
        probes = torch.ones(1, 1, 2, dtype=torch.float64)

        def extra(**weights: float) -> float:
            nats = [
                simulated(model, x, probes, density, SimulationConfig(24, **w))
                for w in (weights, {})
            ]
            return (nats[0] - nats[1]).item()

        lo, hi = (
            2 / math.pi * math.atan(math.exp(g / 2)) for g in (model.gamma_min, model.gamma_max)
        )
        speed = 0.7 * (hi - lo)  # on the solver's time, 0 to 1
        energy = float(square(x)) * speed * (math.exp(2 * speed) - 1) / 2
        assert extra(kinetic=1.0) == pytest.approx(energy, rel=1e-6)
        assert extra(jacobian=1.0) == pytest.approx(2 * speed**2, rel=1e-6)

    def test_one_more_solver_step_is_all_that_its_cost_depends_on(self) -> None:
        calls = []

        def counting(x: Tensor, t: Tensor) -> Tensor:
            calls.append(1)
            return x

        model = diffusion_ode(counting, apply(PRESETS["digits"], "ffjord"))  # type: ignore[arg-type]
        x = torch.zeros(1, 2, dtype=torch.float64)
        for steps in (1, 3):
            calls.clear()
            density = UniformGamma(model.gamma_min, model.gamma_max)
            simulated(model, x, torch.ones(1, 1, 2).double(), density, SimulationConfig(steps))
            assert len(calls) == 4 * steps
        assert torch.isfinite(prior_log_prob(model, x)).all()


def test_uniform_data_fills_its_bins_and_centres_do_not() -> None:
    pixels = torch.arange(4, dtype=torch.uint8).repeat(500)[:, None]
    g = torch.Generator().manual_seed(0)
    for data, spread in (("centres", 0.0), ("uniform", 0.25 / math.sqrt(3))):
        objective = Objective(ObjectiveConfig(data=data), UniformGamma(-5.0, 5.0))
        x0 = objective.draw(pixels, 4, g).x0
        off = x0 - ((2 * pixels.double() + 1) / 4 - 1)
        assert float(off.abs().max()) <= 0.25 + 1e-6
        assert float(off.std()) == pytest.approx(spread, abs=0.005)
        floats = torch.randn(5, 2, generator=g)
        torch.testing.assert_close(objective.draw(floats, None, g).x0, floats)


class TestEverySystem:
    def config(self, name: str) -> Config:
        few = ("train.lr=1e-2", "train.evaluate_every=20", "train.checkpoint_every=20")
        return replace(apply(tiny.config(*few), name), simulation=SimulationConfig(steps=1))

    def mean_loss(self, trainer: Trainer) -> float:
        """On the same draws of all the data, whatever was trained meanwhile."""
        objective = trainer.state.objective
        total = []
        for seed in range(6):
            g = torch.Generator().manual_seed(seed)
            batch = objective.draw(torch.from_numpy(tiny.images()), 4, g)
            losses = objective.losses(trainer.model, batch).total(objective.config.ratio)
            total.append(float((losses / batch.times.density).detach().mean()))
        return float(np.mean(total))

    @every_system
    def test_it_trains_and_is_evaluated(self, name: str, tmp_path: Path) -> None:
        data = tiny.dataset()
        run = Run(tmp_path, self.config(name), data.identity)
        trainer = Trainer(run, data, tiny.CPU)
        before = self.mean_loss(trainer)
        trained = trainer.train()
        after = self.mean_loss(trainer)
        assert math.isfinite(before)
        assert after < before
        assert math.isfinite(trained.held_out or math.nan)
        model = run.model()
        pixels = torch.from_numpy(data.test[:2].astype(np.int32))
        assert math.isfinite(sde_bound(model, pixels, draws=2).mean)
        if name in COMPARED | LATER:  # the others differ from those in training alone
            own = {"centres": "tn", "uniform": "uniform"}[run.config.objective.data]
            settings = LikelihoodSettings(DEQUANTIZATIONS[own](), solver=Dopri5(0.1))
            assert math.isfinite(bits_per_dim(model, pixels, settings).mean)

    @every_system
    def test_it_survives_json_and_its_own_application(self, name: str) -> None:
        for preset in ("digits", "cifar10-sp", "cifar10-aug", "vectors"):
            config = apply(PRESETS[preset], name)
            assert from_json(json.loads(json.dumps(to_json(config)))) == config
            assert apply(config, name) == config
            assert config.net == PRESETS[preset].net
            assert config.objective.augment == PRESETS[preset].objective.augment

    @every_system
    def test_the_command_line_knows_it(
        self, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["train", "digits", "--system", name, "--dry-run", "--quiet"]) == 0
        assert from_json(json.loads(capsys.readouterr().out)) == apply(PRESETS["digits"], name)


def test_a_system_replaces_another_and_keeps_what_is_of_none() -> None:
    base = override(PRESETS["digits"], ["objective.low_discrepancy=false", "objective.probes=2"])
    for name in SYSTEMS:
        again = apply(apply(base, name), "vdm")
        assert again.objective == replace(
            base.objective, density="uniform-gamma", ratio=again.objective.ratio
        )


class TestCommand:
    def test_the_list_has_presets_and_systems(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["train", "--list"]) == 0
        words = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line}
        assert words >= {*PRESETS, *SYSTEMS}

    def test_an_unknown_system_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["train", "digits", "--system", "gan", "--dry-run"]) == 2
        assert "no system called 'gan': choose one of vdm" in capsys.readouterr().err

    def test_a_run_is_resumed_as_its_own_system_only(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config = apply(PRESETS["digits"], "vdm")
        Run(tmp_path / "run", config, None).write_config()
        again = ["train", "--out", str(tmp_path / "run"), "--resume", "--dry-run", "--quiet"]
        assert main([*again, "--system", "vdm"]) == 0
        assert main([*again, "--system", "edm"]) == 2
        assert "is not a run of edm" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("settings", "told"),
        [
            (["model.predictor=velocity:sundial"], "no clock called 'sundial'"),
            (["model.predictor=taste"], "no predictor called 'taste'"),
            (["objective.data=round"], "no way to place data called 'round'"),
            (["objective.second=third"], "no second order called 'third'"),
            (["objective.method=magic"], "no method called 'magic'"),
            (["objective.truncation=-1"], "truncation: must be at least 0, got -1.0"),
            (["objective.truncation=1", "objective.density=adaptive"], "fixed density"),
            (["objective.method=simulation"], "data=uniform"),
            (["simulation.steps=0"], "steps: must be at least 1, got 0"),
            (["simulation.kinetic=nan"], "kinetic: must be at least 0 and finite, got nan"),
            (
                ["objective.second=score-matching", "objective.unbiased=true"],
                "unbiased is for flow-matching only",
            ),
        ],
    )
    def test_parts_that_do_not_exist_or_fit_are_refused(
        self, settings: list[str], told: str, tmp_path: Path
    ) -> None:
        def begin() -> None:
            Trainer(Run(tmp_path, tiny.config(*settings), None), tiny.dataset(), tiny.CPU)

        with pytest.raises(InputError, match=told):
            begin()
