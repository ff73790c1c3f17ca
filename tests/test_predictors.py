from __future__ import annotations

import itertools

import pytest
import torch
from conftest import ALL_SCHEDULES, f64

from idode.diffusion import exact
from idode.diffusion.clocks import CLOCKS, ScaledGamma, StraightTime, TableTime
from idode.diffusion.model import DiffusionODE
from idode.diffusion.objectives import diffuse, first_order
from idode.diffusion.predictors import (
    DATA,
    NOISE,
    NORMALIZED_VELOCITY,
    PREDICTORS,
    SCORE,
    VELOCITY,
    Preconditioned,
    TimedVelocity,
    convert,
    target,
)
from idode.diffusion.schedules import SCHEDULES, Schedule, VariancePreserving
from idode.diffusion.wrapping import wrap
from idode.errors import InputError
from idode.numerics import like, per_sample

EVERY = {**PREDICTORS, "edm-1.0": Preconditioned(1.0), "timed": TimedVelocity(StraightTime(True))}


def batch(n: int = 6, dim: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    x0 = torch.rand(n, dim, generator=g, dtype=torch.float64) * 2 - 1
    eps = torch.randn(n, dim, generator=g, dtype=torch.float64)
    return x0, eps, torch.linspace(-13.3, 5.0, n, dtype=torch.float64)


@ALL_SCHEDULES
@pytest.mark.parametrize(("given", "wanted"), list(itertools.product(EVERY, EVERY)))
def test_every_target_converts_into_every_other(
    schedule: Schedule, given: str, wanted: str
) -> None:
    x0, eps, gamma = batch()
    x = diffuse(x0, eps, gamma, schedule)
    a, b = EVERY[given], EVERY[wanted]
    read = convert(target(x0, eps, gamma, schedule, a), x, gamma, schedule, a, b)
    # 1e-8: from data at gamma = -13.3 the noise is a difference of numbers 800 times its size
    torch.testing.assert_close(read, target(x0, eps, gamma, schedule, b), rtol=1e-8, atol=1e-9)


@ALL_SCHEDULES
def test_targets_are_the_definitions_of_the_paper(schedule: Schedule) -> None:
    x0, eps, gamma = batch()
    dalpha, dsigma = (like(c(gamma), x0) for c in (schedule.dalpha, schedule.dsigma))
    speed, sigma = like(schedule.speed(gamma), x0), like(schedule.sigma(gamma), x0)
    expected = {
        DATA: x0,
        NOISE: eps,
        SCORE: -eps / sigma,
        VELOCITY: dalpha * x0 + dsigma * eps,
        NORMALIZED_VELOCITY: (dalpha * x0 + dsigma * eps) / speed,
    }
    for predictor, value in expected.items():
        torch.testing.assert_close(target(x0, eps, gamma, schedule, predictor), value)


def test_vp_normalised_velocity_is_v_prediction() -> None:
    vp = SCHEDULES["vp"]
    x0, eps, gamma = batch()
    v = like(vp.alpha(gamma), x0) * eps - like(vp.sigma(gamma), x0) * x0
    torch.testing.assert_close(target(x0, eps, gamma, vp, NORMALIZED_VELOCITY), v)


def test_unit_sigma_data_preconditioning_is_the_normalised_velocity_for_vp() -> None:
    vp, gamma = VariancePreserving(), torch.linspace(-13.3, 5.0, 9, dtype=torch.float64)
    edm = Preconditioned(1.0)
    torch.testing.assert_close(edm.c_in(vp, gamma), torch.ones_like(gamma))
    torch.testing.assert_close(edm.c_skip(vp, gamma), vp.sigma(gamma))
    torch.testing.assert_close(edm.c_out(vp, gamma), vp.alpha(gamma))
    for ours, theirs in zip(
        edm.coefficients(vp, gamma), NORMALIZED_VELOCITY.coefficients(vp, gamma), strict=True
    ):
        # At gamma = -13.3 the slope is a small difference; 1e-9 of it is rounding.
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@ALL_SCHEDULES
def test_preconditioning_gives_unit_variance_inputs_and_targets(schedule: Schedule) -> None:
    g = torch.Generator().manual_seed(0)
    edm, n = Preconditioned(0.3), 200_000
    x0 = 0.3 * torch.randn(n, 1, generator=g, dtype=torch.float64)
    eps = torch.randn(n, 1, generator=g, dtype=torch.float64)
    for gamma in f64(-6.0, -1.0, 3.0):
        x = edm.c_in(schedule, gamma) * diffuse(x0, eps, gamma, schedule)
        goal = target(x0, eps, gamma, schedule, edm)
        # standard error of a variance: sqrt(2/n) = 0.003
        assert x.var().item() == pytest.approx(1, abs=0.015)
        assert goal.var().item() == pytest.approx(1, abs=0.015)


@ALL_SCHEDULES
@pytest.mark.parametrize("name", EVERY)
def test_likelihood_weighted_loss_is_half_the_noise_error_for_any_network(
    schedule: Schedule, name: str
) -> None:
    x0, eps, gamma = batch()
    model = DiffusionODE(
        lambda x, t: torch.sin(3 * x) + like(t, x), schedule, -13.3, 5.0, EVERY[name]
    )
    half = per_sample((eps - model.noise(diffuse(x0, eps, gamma, schedule), gamma)) ** 2) / 2
    torch.testing.assert_close(first_order(model, x0, eps, gamma), half, rtol=1e-7, atol=1e-9)


@ALL_SCHEDULES
@pytest.mark.parametrize("name", EVERY)
def test_the_optimum_of_every_matching_loss_is_the_true_score_read_as_that_predictor(
    schedule: Schedule, name: str, mixture: exact.Mixture, generator: torch.Generator
) -> None:
    """Theorem B.1: at the optimum the error is uncorrelated with anything seen, here the state."""
    predictor, n = EVERY[name], 40_000
    x0 = mixture.sample(n, generator)
    eps = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    for gamma in f64(-3.0, 1.0):
        x = diffuse(x0, eps, gamma, schedule)
        best = convert(mixture.score(x, gamma, schedule), x, gamma, schedule, SCORE, predictor)
        error = best - target(x0, eps, gamma, schedule, predictor)
        for seen in (torch.ones_like(x), x, torch.sin(2 * x)):
            product = error * seen
            z = product.mean(0) / (product.std(0) / n**0.5)
            assert z.abs().max() < 4.5


@ALL_SCHEDULES
def test_any_other_weight_multiplies_the_predictors_own_error(schedule: Schedule) -> None:
    x0, eps, gamma = batch()
    model = DiffusionODE(lambda x, t: x * 0, schedule, -13.3, 5.0, NOISE)
    loss = first_order(model, x0, eps, gamma, weight=lambda g: torch.exp(g))
    torch.testing.assert_close(loss, gamma.exp() * (eps**2).sum(1))


@pytest.mark.parametrize("name", CLOCKS)
def test_clocks_invert_and_their_slope_is_right(name: str) -> None:
    clock, gamma = CLOCKS[name], torch.linspace(-13.3, 5, 41, dtype=torch.float64)
    torch.testing.assert_close(clock.gamma(clock.time(gamma)), gamma, atol=1e-9, rtol=0)
    h = 1e-5
    slope = (clock.time(gamma + h) - clock.time(gamma - h)) / (2 * h)
    torch.testing.assert_close(clock.dtime(gamma), slope, rtol=1e-6, atol=1e-9)


def test_a_table_of_alphas_is_a_clock_that_meets_its_integers() -> None:
    betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    abar = torch.cumprod(1 - betas, 0)
    clock = TableTime(abar)
    index = torch.arange(1000, dtype=torch.float64)
    gamma = torch.log((1 - abar) / abar)
    torch.testing.assert_close(clock.time(gamma), index, atol=1e-6, rtol=0)
    half = clock.gamma(index[:-1] + 0.5)
    torch.testing.assert_close(half, (gamma[1:] + gamma[:-1]) / 2)
    torch.testing.assert_close(clock.dtime(half), 1 / gamma.diff())
    ode = wrap(torch.nn.Identity(), "noise", "vp", clock)
    assert ode.gamma_min == pytest.approx(gamma[0].item())  # more noise than three sigma asks for
    with pytest.raises(InputError, match="clock covers gamma from -9.2"):
        wrap(torch.nn.Identity(), "noise", "vp", clock, gamma_max=11.0)


@pytest.mark.parametrize(
    ("predicts", "schedule", "clock"),
    [
        ("velocity", "sp", "straight-data-at-one"),
        ("velocity", "vp", "linear-beta"),
        ("noise", "vp", "linear-beta"),
        ("data", "ve", "noise-level"),
        ("score", "vp", "trigonometric"),
    ],
)
def test_a_wrapped_foreign_network_is_the_same_ode(
    predicts: str, schedule: str, clock: str, mixture: exact.Mixture
) -> None:
    s, c = SCHEDULES[schedule], CLOCKS[clock]

    def foreign(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        gamma = c.gamma(t)
        if predicts == "velocity":  # dx/dt by the definition of a derivative along the clock
            return mixture.velocity(x, gamma, s) / like(c.dtime(gamma), x)
        score = mixture.score(x, gamma, s)
        return convert(score, x, gamma, s, SCORE, PREDICTORS[predicts])

    ode = wrap(foreign, predicts, schedule, clock)
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gamma = torch.linspace(-4, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(ode.velocity(x, gamma), mixture.velocity(x, gamma, s))


def test_our_networks_see_time_scaled_to_the_unit_interval() -> None:
    seen: list[torch.Tensor] = []

    def net(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        seen.append(t)
        return x

    DiffusionODE(net, VariancePreserving(), -10.0, 5.0).velocity(torch.zeros(2, 1), f64(-10, 5))
    torch.testing.assert_close(seen[0], torch.tensor([0.0, 1.0]))
    assert ScaledGamma(-10, 5).gamma(f64(0.5)).item() == -2.5


class TestBadInput:
    def test_names(self) -> None:
        net = torch.nn.Identity()
        with pytest.raises(InputError, match="no schedule called 'cosine': choose one of vp, sp"):
            wrap(net, "noise", "cosine")
        with pytest.raises(InputError, match="no predictor called 'eps': choose one of"):
            wrap(net, "eps", "vp")
        with pytest.raises(InputError, match="no clock called 'ddpm': choose one of"):
            wrap(net, "noise", "vp", "ddpm")

    def test_an_empty_range(self) -> None:
        with pytest.raises(InputError, match="need finite gamma_min < gamma_max, got 5.0 and -1"):
            DiffusionODE(torch.nn.Identity(), VariancePreserving(), 5.0, -1.0)

    def test_integer_states(self) -> None:
        model = DiffusionODE(lambda x, t: x, VariancePreserving(), -10.0, 5.0)
        with pytest.raises(InputError, match="dequantize integer pixels first"):
            model.velocity(torch.zeros(2, 3, dtype=torch.uint8), f64(0.0)[0])

    def test_gammas_that_do_not_match_the_batch(self) -> None:
        model = DiffusionODE(lambda x, t: x, VariancePreserving(), -10.0, 5.0)
        with pytest.raises(InputError, match="one value for each of 2 states"):
            model.velocity(torch.zeros(2, 3), torch.zeros(3))

    def test_continuous_data_without_a_start(self) -> None:
        with pytest.raises(InputError, match="pass the least noise"):
            wrap(torch.nn.Identity(), "noise", "vp", levels=None)

    def test_a_nonpositive_sigma_data(self) -> None:
        with pytest.raises(InputError, match="sigma_data must be positive, got 0"):
            Preconditioned(0.0)

    def test_a_table_that_does_not_decrease(self) -> None:
        with pytest.raises(InputError, match="one decreasing row"):
            TableTime(torch.tensor([0.1, 0.5]))
