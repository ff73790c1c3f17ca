from __future__ import annotations

from collections.abc import Callable

import pytest
import scipy.stats
import torch
from conftest import f64
from torch import Tensor

from idode.diffusion import exact
from idode.diffusion.clocks import CLOCKS
from idode.diffusion.histogram import FEWEST, FLOOR, Histogram
from idode.diffusion.noise_levels import (
    Adaptive,
    Designed,
    NoiseLevelDistribution,
    UniformGamma,
    UniformTime,
    quantiles,
)
from idode.diffusion.objectives import first_order
from idode.diffusion.schedules import SCHEDULES, Schedule, VariancePreserving
from idode.errors import InputError
from idode.numerics import integrate
from idode.studies.loss_variance import loss_variance


def learned_histogram(lo: float, hi: float, loss: Callable[[Tensor], Tensor]) -> Histogram:
    """One that has seen a loss, without noise, at all levels often."""
    histogram = Histogram(lo, hi)
    drawn = torch.Generator().manual_seed(0)
    for _ in range(400):
        times = histogram.draw(64, drawn)
        histogram.learn(times, loss(times.gamma))
    return histogram


def densities(lo: float, hi: float) -> dict[str, NoiseLevelDistribution]:
    return {
        "uniform": UniformGamma(lo, hi),
        **{f"designed-{name}": Designed(s, lo, hi) for name, s in SCHEDULES.items()},
        **{
            f"time-{name}": UniformTime(CLOCKS[name], lo, hi)
            for name in ("straight", "straight-data-at-one", "trigonometric", "linear-beta")
        },
        "adaptive": Adaptive(lo, hi, generator=torch.Generator().manual_seed(0)),
        "histogram": learned_histogram(lo, hi, lambda gamma: 1 + gamma.square()),
    }


NAMES = list(densities(-1, 1))
every = pytest.mark.parametrize("name", NAMES)
spans = pytest.mark.parametrize("span", [(-13.3, 5.0), (-30.0, 15.0)], ids=str)


@every
@spans
@torch.no_grad()
def test_inverse_of_the_distribution_function_is_the_identity(
    name: str, span: tuple[float, float]
) -> None:
    density = densities(*span)[name]
    gamma = torch.linspace(*span, 1001, dtype=torch.float64)
    # From whichever end the mass is small: in float64 the numbers just below 1 are 1.1e-16
    # apart, which near gamma = 15 is 1e-8 of gamma for a designed density.
    up, down = density.quantile(density.cdf(gamma)), density.isf(density.sf(gamma))
    best = torch.minimum((up - gamma).abs(), (down - gamma).abs())
    assert best.max() < 1e-9
    if span == (-13.3, 5.0):
        assert (up - gamma).abs().max() < 1e-9


@every
@spans
@torch.no_grad()
def test_nothing_is_nan_or_out_of_range_in_float32(name: str, span: tuple[float, float]) -> None:
    density = densities(*span)[name]
    t = torch.cat([torch.linspace(0, 1, 1001), torch.tensor([1e-30, 1 - 6e-8])])
    gamma = density.quantile(t)
    assert gamma.dtype == torch.float32
    assert torch.isfinite(gamma).all()
    assert gamma.min() >= span[0] - 1e-4
    assert gamma.max() <= span[1] + 1e-4
    for quantity in (density.density, density.sf, density.cdf):
        assert torch.isfinite(quantity(torch.linspace(*span, 1001))).all()


@pytest.mark.once
@pytest.mark.parametrize("name", [name for name in NAMES if name != "histogram"])
@torch.no_grad()
def test_density_is_the_slope_of_the_distribution_function(name: str) -> None:
    density = densities(-13.3, 5.0)[name]
    gamma = torch.linspace(-13.2, 4.9, 9, dtype=torch.float64)
    lo = torch.full_like(gamma, -13.3)
    mass = integrate(lambda g: density.density(g.reshape(-1)).reshape(g.shape), lo, gamma)
    torch.testing.assert_close(mass, density.cdf(gamma), atol=1e-8, rtol=0)


@pytest.mark.once
@every
@pytest.mark.parametrize("low_discrepancy", [True, False])
@torch.no_grad()
def test_draws_follow_the_density(name: str, low_discrepancy: bool) -> None:
    density = densities(-13.3, 5.0)[name]
    g = torch.Generator().manual_seed(1)
    if low_discrepancy:  # one draw of each batch: these are independent
        drawn = torch.stack([density.draw(8, g).gamma[3] for _ in range(500)])
    else:
        drawn = density.draw(1000, g, low_discrepancy=False).gamma
    test = scipy.stats.kstest(drawn.numpy(), lambda q: density.cdf(torch.as_tensor(q)).numpy())
    assert test.pvalue > 1e-3


@pytest.mark.parametrize("n", [1, 3, 128, 49])
def test_low_discrepancy_puts_one_draw_into_every_nth(n: int) -> None:
    t = quantiles(n, torch.Generator().manual_seed(n))
    assert t.shape == (n,)
    assert sorted((t * n).floor().int().tolist()) == list(range(n))


@pytest.mark.parametrize("name", SCHEDULES)
def test_designed_density_makes_the_loss_coefficient_constant(name: str) -> None:
    density = Designed(SCHEDULES[name], -13.3, 5.0)
    gamma = torch.linspace(-13.3, 5.0, 100, dtype=torch.float64)
    coefficient = SCHEDULES[name].weight(gamma) / density.density(gamma)
    torch.testing.assert_close(coefficient, density.total(gamma).expand(100))


def test_a_new_schedule_of_two_functions_has_a_designed_density() -> None:
    class Between(Schedule):  # alpha^3 + sigma^3 = 1, nothing in closed form
        def log_alpha(self, gamma: Tensor) -> Tensor:
            return torch.nn.functional.logsigmoid(-1.5 * gamma) / 3

        def dlog_alpha(self, gamma: Tensor) -> Tensor:
            return -0.5 * torch.sigmoid(1.5 * gamma)

    density = Designed(Between(), -13.3, 5.0)
    gamma = torch.linspace(-13.3, 5.0, 101, dtype=torch.float64)
    torch.testing.assert_close(density.isf(density.sf(gamma)), gamma, atol=1e-9, rtol=0)


def test_designed_vp_is_the_papers_closed_form() -> None:
    density, vp = Designed(VariancePreserving(), -13.3, 5.0), VariancePreserving()
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    var0, var1 = vp.sigma(f64(-13.3, 5.0)) ** 2
    z = torch.log(var1 / var0)
    paper = -torch.log(torch.exp(-z * t) / var0 - 1)
    torch.testing.assert_close(density.quantile(t), paper)


def test_stochastic_interpolants_are_vp_with_another_time_density() -> None:
    """On the gamma clock the trigonometric path is VP; only how often a level is seen differs."""
    clock, vp = CLOCKS["trigonometric"], VariancePreserving()
    t = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    gamma = clock.gamma(t)
    torch.testing.assert_close(vp.alpha(gamma), torch.cos(t * torch.pi / 2))
    torch.testing.assert_close(vp.sigma(gamma), torch.sin(t * torch.pi / 2))


class TestVariance:
    """On a mixture: designed is below uniform, and the learned density at or below designed."""

    lo, hi = -8.0, 6.0

    def loss(self, gamma: Tensor, generator: torch.Generator | None) -> Tensor:
        oracle = exact.mixture([0.5, 0.5], [[0.5, 0.2], [-0.5, -0.1]], [0.1, 0.05])
        x0 = oracle.sample(len(gamma), generator)
        eps = torch.randn(len(gamma), 2, generator=generator, dtype=torch.float64)
        return first_order(oracle.ode(VariancePreserving(), self.lo, self.hi), x0, eps, gamma)

    def test_total_is_the_variance_of_independent_draws(self) -> None:
        density = Designed(VariancePreserving(), self.lo, self.hi)
        measured = loss_variance(self.loss, density, generator=torch.Generator().manual_seed(0))
        g = torch.Generator().manual_seed(1)
        times = density.draw(100_000, g, low_discrepancy=False)
        direct = (self.loss(times.gamma, g) / times.density).var().item()
        assert measured.total == pytest.approx(direct, rel=0.05)
        assert measured.per_level.shape == measured.gamma.shape == (64,)

    @pytest.mark.once
    def test_designed_lowers_it_and_adaptive_ends_at_or_below(self) -> None:
        g = torch.Generator().manual_seed(0)
        adaptive = Adaptive(self.lo, self.hi, generator=g)
        optimizer = torch.optim.Adam(adaptive.parameters(), lr=3e-2)
        for _ in range(400):
            times = adaptive.draw(256, g)
            optimizer.zero_grad()
            adaptive.second_moment(times, self.loss(times.gamma, g)).backward()
            optimizer.step()
        uniform, designed, learned = (
            loss_variance(self.loss, d, draws=4096, generator=torch.Generator().manual_seed(2))
            for d in (
                UniformGamma(self.lo, self.hi),
                Designed(VariancePreserving(), self.lo, self.hi),
                adaptive,
            )
        )
        assert designed.loss == pytest.approx(uniform.loss, rel=0.02)
        assert learned.loss == pytest.approx(uniform.loss, rel=0.02)
        assert designed.total < 0.9 * uniform.total
        assert learned.total <= designed.total + designed.total_error

    def test_its_gradient_is_that_of_the_second_moment(self) -> None:
        """Against a finite difference of the integral of L²/p, with L² known in gamma."""
        adaptive = Adaptive(-2.0, 2.0, units=4, generator=torch.Generator().manual_seed(0))
        known = lambda gamma: torch.exp(-gamma / 2)  # noqa: E731

        def integral() -> float:
            gamma = torch.linspace(-2, 2, 2001, dtype=torch.float64)
            with torch.no_grad():
                return torch.trapezoid(known(gamma) ** 2 / adaptive.density(gamma), gamma).item()

        with torch.no_grad():
            times = adaptive.at((torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000)
        scale = integral()  # second_moment is normalised by the moment itself
        (grad,) = torch.autograd.grad(
            adaptive.second_moment(times, known(times.gamma)), adaptive.raw_height
        )
        with torch.no_grad():
            adaptive.raw_height[1] += 1e-2
            up = integral()
            adaptive.raw_height[1] -= 2e-2
            down = integral()
        assert grad[1].item() == pytest.approx((up - down) / 2e-2 / scale, rel=1e-2)


@pytest.mark.parametrize(
    "build",
    [
        lambda: UniformGamma(1.0, 1.0),
        lambda: Designed(VariancePreserving(), 2.0, 1.0),
        lambda: UniformTime(CLOCKS["straight"], 2.0, float("nan")),
        lambda: Adaptive(2.0, 1.0),
    ],
)
def test_an_empty_range_is_refused(build) -> None:
    with pytest.raises(InputError, match="need finite gamma_min < gamma_max"):
        build()


def test_a_histogram_ends_at_the_density_of_least_variance() -> None:
    """The root of the mean square: of a loss without noise the loss itself, as a share."""

    def loss(gamma: Tensor) -> Tensor:
        return torch.exp(-gamma.square() / 8)

    found = learned_histogram(-6.0, 5.0, loss)
    gamma = torch.linspace(-6, 5, 4001, dtype=torch.float64)
    best = loss(gamma) / integrate(loss, f64(-6.0), f64(5.0))
    expected = (1 - FLOOR) * best + FLOOR / 11
    # A bin is 0.28 wide and the loss changes by a fifth in it at most.
    assert ((found.density(gamma) / expected).log().abs() < 0.25).all()
    assert float((found.density(gamma) / expected).log().mean()) == pytest.approx(0, abs=0.03)


def test_a_histogram_is_uniform_until_it_knows_every_bin() -> None:
    histogram = Histogram(-6.0, 5.0)
    times = histogram.draw(40)
    histogram.learn(times, torch.where(times.gamma > 0, 9.0, 1.0))
    assert float(histogram.counts.min()) < FEWEST
    assert torch.equal(histogram.masses(), torch.full_like(histogram.masses(), 1 / 40))


def test_the_density_of_a_histogram_is_the_slope_inside_its_bins() -> None:
    found = learned_histogram(-6.0, 5.0, lambda gamma: 1 + gamma.square())
    edges = torch.linspace(-6, 5, 41, dtype=torch.float64)
    inner = edges[:-1] + 0.5 * edges.diff()
    slopes = found.cdf(edges).diff() / edges.diff()
    torch.testing.assert_close(slopes, found.density(inner))


def test_a_histogram_that_has_learned_is_never_uniform_again() -> None:
    """Small batches, and a loss over three decades: rare bins keep what they know."""
    histogram = Histogram(-6.0, 5.0)
    drawn = torch.Generator().manual_seed(0)
    uniform = []
    for _ in range(600):
        times = histogram.draw(16, drawn)
        histogram.learn(times, 10 ** (-times.gamma / 3.5))
        uniform.append(bool(histogram.masses().std() == 0))
    assert uniform[0]
    assert not any(uniform[100:])
