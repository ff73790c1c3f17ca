"""The oracle against autograd, and the paper's lemma and theorem against the oracle."""

from __future__ import annotations

import math

import pytest
import torch
from conftest import ALL_SCHEDULES, f64

from idode.diffusion import exact
from idode.diffusion.model import DiffusionODE
from idode.diffusion.objectives import diffuse, first_order
from idode.diffusion.predictors import VELOCITY, target
from idode.diffusion.schedules import Schedule, VariancePreserving
from idode.errors import InputError
from idode.numerics import integrate, per_sample
from idode.ode import divergence

X = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
GAMMAS = torch.linspace(-8, 6, 7, dtype=torch.float64)


@ALL_SCHEDULES
def test_score_velocity_and_divergence_match_autograd(
    schedule: Schedule, mixture: exact.Mixture
) -> None:
    x = X.clone().requires_grad_()
    (score,) = torch.autograd.grad(mixture.log_prob(x, GAMMAS, schedule).sum(), x)
    # relative to the largest: at gamma = -8 scores reach 1e4 off the data
    torch.testing.assert_close(mixture.score(X, GAMMAS, schedule), score, rtol=1e-10, atol=1e-10)
    v = schedule.dlog_alpha(GAMMAS)[:, None] * X - schedule.sigma(GAMMAS)[:, None] ** 2 / 2 * score
    torch.testing.assert_close(mixture.velocity(X, GAMMAS, schedule), v, rtol=1e-10, atol=1e-10)
    ode = mixture.ode(schedule, -8.0, 6.0)
    value, div = divergence.exact(lambda y: ode.velocity(y, GAMMAS), X)
    torch.testing.assert_close(value, v, rtol=1e-10, atol=1e-10)
    closed = mixture.divergence(X, GAMMAS, schedule)
    torch.testing.assert_close(closed, div, rtol=1e-10, atol=1e-10)
    jacobian = mixture.jacobian(X, GAMMAS, schedule)
    torch.testing.assert_close(jacobian.diagonal(dim1=1, dim2=2).sum(1), closed)


@ALL_SCHEDULES
def test_the_whole_jacobian_matches_autograd(schedule: Schedule, mixture: exact.Mixture) -> None:
    for x, gamma in zip(X, GAMMAS, strict=True):
        auto = torch.autograd.functional.jacobian(
            lambda y, g=gamma: mixture.velocity(y[None], g, schedule)[0], x
        )
        closed = mixture.jacobian(x[None], gamma, schedule)[0]
        torch.testing.assert_close(closed, auto, rtol=1e-10, atol=1e-10)


@ALL_SCHEDULES
def test_samples_follow_the_density(schedule: Schedule, mixture: exact.Mixture) -> None:
    """The mean of exp(i k·x) over samples is the characteristic function of the mixture."""
    n, g = 200_000, torch.Generator().manual_seed(0)
    x0, eps = mixture.sample(n, g), torch.randn(n, 3, generator=g, dtype=torch.float64)
    gamma = f64(0.5)[0]
    x = diffuse(x0, eps, gamma, schedule)
    k = f64(0.7, -0.4, 0.9)
    a, s = schedule.alpha(gamma), schedule.sigma(gamma)
    assert mixture.axes is not None
    along = (mixture.axes.mT @ k) ** 2
    damp = torch.exp(-0.5 * ((a * mixture.stds) ** 2 * along + s**2 * along).sum(1))
    exact_value = (mixture.log_weights.exp() * damp * torch.cos(a * mixture.means @ k)).sum()
    assert torch.cos(x @ k).mean().item() == pytest.approx(exact_value.item(), abs=4 / n**0.5)


def posterior(
    mixture: exact.Mixture, x: torch.Tensor, gamma: torch.Tensor, schedule: Schedule, n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """``n`` draws of (x0, eps) given one state: a component, then a Gaussian posterior in it."""
    g = torch.Generator().manual_seed(11)
    a, s = schedule.alpha(gamma), schedule.sigma(gamma)
    assert mixture.axes is not None
    m = torch.multinomial(
        torch.softmax(mixture._log_joint(x[None], gamma, schedule)[0], 0), n, True, generator=g
    )
    var = mixture.stds**2
    gain = a * var / (a**2 * var + s**2)  # (M, d), along the axes
    away = (mixture.axes.mT @ (x - a * mixture.means)[..., None])[..., 0]
    spread = (var * s**2 / (a**2 * var + s**2)).sqrt()
    z = torch.randn(n, 3, generator=g, dtype=torch.float64)
    along = (gain * away)[m] + spread[m] * z
    x0 = mixture.means[m] + (mixture.axes[m] @ along[..., None])[..., 0]
    return x0, (x - a * x0) / s


@ALL_SCHEDULES
def test_lemma_f1_jacobian_and_trace_of_the_optimal_velocity(
    schedule: Schedule, mixture: exact.Mixture
) -> None:
    n, x = 100_000, X[0] / 2
    for gamma in f64(-2.0, 1.0):
        x0, eps = posterior(mixture, x, gamma, schedule, n)
        v = target(x0, eps, gamma, schedule, VELOCITY)
        error = mixture.velocity(x[None], gamma, schedule) - v
        two_over_g2 = 2 / schedule.sigma(gamma) ** 2
        outer = two_over_g2 * error[:, :, None] * error[:, None, :]
        lemma = schedule.dlog_sigma(gamma) * torch.eye(3) - outer.mean(0)
        closed = mixture.jacobian(x[None], gamma, schedule)[0]
        assert ((lemma - closed).abs() / (outer.std(0) / n**0.5)).max() < 4
        trace = two_over_g2 * (error**2).sum(1)
        lemma_trace = 3 * schedule.dlog_sigma(gamma) - trace.mean()
        miss = lemma_trace - mixture.divergence(x[None], gamma, schedule)[0]
        assert miss.abs() / (trace.std() / n**0.5) < 4


@ALL_SCHEDULES
def test_second_order_theorem_the_optimal_trace_misses_by_exactly_the_first_order_error(
    schedule: Schedule, mixture: exact.Mixture
) -> None:
    """The minimiser of the trace objective is a conditional mean; its error is 2/g² delta²."""
    n, x, gamma = 100_000, X[1] / 2, f64(0.3)[0]
    x0, eps = posterior(mixture, x, gamma, schedule, n)
    v = target(x0, eps, gamma, schedule, VELOCITY)
    best = mixture.velocity(x[None], gamma, schedule)[0]
    estimator = best + f64(0.1, -0.05, 0.2)  # an imperfect first-order model
    two_over_g2 = 2 / schedule.sigma(gamma) ** 2
    l1 = two_over_g2 * ((estimator - v) ** 2).sum(1)
    optimal_trace = 3 * schedule.dlog_sigma(gamma) - l1.mean()
    bound = two_over_g2 * ((estimator - best) ** 2).sum()
    miss = mixture.divergence(x[None], gamma, schedule)[0] - optimal_trace
    assert (miss - bound).abs() / (l1.std() / n**0.5) < 4


@ALL_SCHEDULES
def test_excess_first_order_loss_is_the_weighted_score_error(
    schedule: Schedule, mixture: exact.Mixture, generator: torch.Generator
) -> None:
    """J(theta) - J(optimum) = 1/2 ∫ E||eps_hat - eps*||² dgamma, for an imperfect predictor."""
    lo, hi, n = -6.0, 4.0, 100_000
    perfect = mixture.ode(schedule, lo, hi)
    wrong = DiffusionODE(
        lambda x, g: perfect.net(x, g) + 0.3 * torch.cos(2 * x) * torch.sigmoid(-g)[:, None],
        schedule,
        lo,
        hi,
        perfect.predictor,
        perfect.clock,
    )
    gamma = lo + (hi - lo) * torch.rand(n, generator=generator, dtype=torch.float64)
    x0 = mixture.sample(n, generator)
    eps = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    x = diffuse(x0, eps, gamma, schedule)
    excess = first_order(wrong, x0, eps, gamma) - first_order(perfect, x0, eps, gamma)
    score_error = per_sample((wrong.noise(x, gamma) - perfect.noise(x, gamma)) ** 2) / 2
    difference = (hi - lo) * (excess - score_error)
    assert difference.mean().abs() / (difference.std() / n**0.5) < 4
    assert (hi - lo) * score_error.mean() > 0.05  # the claim is not about nothing


def test_a_singular_covariance_and_float32_states_are_fine(mixture: exact.Mixture) -> None:
    flat = exact.mixture([1.0], [[0.0, 0.0]], [[[0.25, 0.25], [0.25, 0.25]]])
    assert torch.isfinite(flat.sample(3, torch.Generator().manual_seed(0))).all()
    gamma = torch.tensor(0.0)
    jacobian = mixture.jacobian(X.float(), gamma, VariancePreserving())
    double = mixture.jacobian(X, gamma.double(), VariancePreserving())
    torch.testing.assert_close(jacobian.double(), double, rtol=1e-3, atol=1e-4)


def test_posterior_error_of_a_gaussian_is_its_textbook_value() -> None:
    """Posterior variance of eps given x is alpha² s²/(alpha² s² + sigma²) per dimension."""
    schedule, oracle = VariancePreserving(), exact.gaussian([0.3, 0.1], 0.5)
    gamma = torch.linspace(-10, 6, 9, dtype=torch.float64)
    a, s = schedule.alpha(gamma), schedule.sigma(gamma)
    expected = 2 * 0.5 * (0.5 * a) ** 2 / ((0.5 * a) ** 2 + s**2)
    found = oracle.posterior_error(torch.zeros(9, 2, dtype=torch.float64), gamma, schedule)
    torch.testing.assert_close(found, expected)
    integral = integrate(lambda g: torch.sigmoid(-g), gamma[0], gamma[-1])
    assert integral.item() == pytest.approx(math.log1p(math.e**10) - math.log1p(math.e**-6))


class TestBadInput:
    def test_a_state_of_another_dimension(self, mixture: exact.Mixture) -> None:
        with pytest.raises(InputError, match=r"x must have shape \(B, 3\), got \(2, 4\)"):
            mixture.score(torch.zeros(2, 4), torch.zeros(()), VariancePreserving())

    def test_shapes_of_a_mixture(self) -> None:
        with pytest.raises(InputError, match=r"weights \(M,\), means \(M, d\)"):
            exact.mixture([1.0, 2.0], [[0.0, 0.0]], [1.0])
        with pytest.raises(InputError, match="must be positive"):
            exact.mixture([1.0, 0.0], [[0.0], [1.0]], [1.0, 1.0])
        with pytest.raises(InputError, match="positive semi-definite"):
            exact.mixture([1.0], [[0.0]], [-1.0])

    def test_probabilities_that_are_none(self) -> None:
        with pytest.raises(InputError, match="summing to 1, got shape .* with sum 2"):
            exact.Lattice(torch.tensor([[0], [1]]), torch.ones(2), 4)
        with pytest.raises(InputError, match="covariances for means of 2 dimensions"):
            exact.mixture([1.0], [[0.0, 0.0]], [[1.0, 1.0, 1.0]])

    def test_points_outside_the_lattice(self) -> None:
        with pytest.raises(InputError, match="levels 4 and torch.int64 points up to 4"):
            exact.Lattice(torch.tensor([[4]]), torch.ones(1), 4)
