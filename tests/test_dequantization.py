from __future__ import annotations

import itertools
import math

import pytest
import torch
from conftest import ALL_SCHEDULES, f64

from idode.diffusion import exact
from idode.diffusion.schedules import SCHEDULES, Schedule, VariancePreserving, start_gamma
from idode.errors import InputError
from idode.likelihood.dequantization import (
    Bins,
    Continuous,
    TruncatedNormal,
    Uniform,
    Variational,
    centres,
    check_pixels,
    reconstruction,
    truncation,
)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=g, dtype=torch.float64)


def test_the_papers_constants() -> None:
    tau, mass = truncation(-13.3, 256)
    assert tau == pytest.approx(3.018689, abs=1e-6)
    assert mass == pytest.approx(0.9974613, abs=1e-7)
    density = math.exp(-(tau**2) / 2) / math.sqrt(2 * math.pi)
    constant = math.log(mass) - tau * density / mass
    assert constant == pytest.approx(-0.0152209, abs=1e-7)
    assert -math.log2(mass) == pytest.approx(0.0037, abs=5e-5)  # the exact model's gap


@ALL_SCHEDULES
@pytest.mark.parametrize("levels", [2, 17, 256])
def test_truncated_normal_stays_in_the_bin_and_knows_its_entropy(
    schedule: Schedule, levels: int
) -> None:
    gamma = start_gamma(levels)
    pixels = torch.arange(levels).repeat(400, 1)
    drawn = TruncatedNormal().draw(pixels, noise(400, levels), Bins(schedule, gamma, levels))
    alpha = schedule.alpha(torch.tensor(gamma, dtype=torch.float64))
    offset = drawn.x / alpha - centres(pixels, levels, torch.float64)
    assert offset.abs().max() <= 1 / levels * (1 + 1e-12)
    z = (drawn.weight - drawn.mean_weight).mean() / (drawn.weight.std() / 400**0.5)
    assert z.abs() < 4


def test_truncated_normal_weight_is_minus_the_log_density_of_its_draw() -> None:
    """Histogram of one pixel's draws against exp(-weight), in the units of the state."""
    s, gamma, levels, n = VariancePreserving(), -4.0, 4, 400_000
    bins = Bins(s, gamma, levels)
    drawn = TruncatedNormal().draw(torch.full((n, 1), 2), noise(n, 1), bins)
    x, q = drawn.x[:, 0], torch.exp(-drawn.weight)
    edges = torch.linspace(float(x.min()), float(x.max()), 42, dtype=torch.float64)
    for a, b in itertools.pairwise(edges[1:-1]):
        inside = (x >= a) & (x < b)
        expected = n * q[inside].mean() * (b - a)
        # 1%: the density is not constant in a bin
        assert abs(inside.sum() - expected) < 4 * expected**0.5 + 0.01 * expected


@pytest.mark.parametrize("levels", [3, 256])
def test_uniform_fills_the_bin_and_its_offset_is_the_bins_volume(levels: int) -> None:
    pixels = torch.tensor([[0, levels - 1, 1]]).repeat(1000, 1)
    drawn = Uniform().draw(pixels, noise(1000, 3), Bins(VariancePreserving(), -12.0, levels))
    offset = (drawn.x - centres(pixels, levels, torch.float64)) * levels
    assert offset.min() > -1
    assert offset.max() < 1
    assert offset.std().item() == pytest.approx(1 / math.sqrt(3), rel=0.05)
    assert drawn.weight[0].item() == pytest.approx(-3 * math.log(levels / 2))
    assert math.log2(256 / 2) == 7  # the "hack" of other code, derived


@ALL_SCHEDULES
def test_reconstruction_is_the_softmax_over_all_levels(schedule: Schedule) -> None:
    levels, gamma = 17, -4.0  # bins narrower than the noise: many levels matter
    pixels = torch.randint(0, levels, (6, 5), generator=torch.Generator().manual_seed(0))
    clock = torch.tensor(gamma, dtype=torch.float64)
    alpha, sigma = schedule.alpha(clock), schedule.sigma(clock)
    x = alpha * centres(pixels, levels, torch.float64) + sigma * (4 * noise(6, 5) - 2)
    every = alpha * centres(torch.arange(levels), levels, torch.float64)
    logits = -((x[..., None] - every) ** 2) / (2 * sigma**2)
    full = torch.log_softmax(logits, -1).gather(-1, pixels[..., None])[..., 0].sum(1)
    torch.testing.assert_close(reconstruction(x, pixels, gamma, schedule, levels), full)


def test_reconstruction_costs_a_hundredth_of_a_nat_at_the_papers_start() -> None:
    n = 200_000
    for name in ("vp", "sp"):  # the authors' SP code divides by alpha twice: 0.0338 bits
        s = SCHEDULES[name]
        pixels = torch.randint(0, 256, (n, 1), generator=torch.Generator().manual_seed(1))
        z = torch.randn(n, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        clock = torch.tensor(-13.3, dtype=torch.float64)
        x = s.alpha(clock) * centres(pixels, 256, torch.float64) + s.sigma(clock) * z
        bits = -reconstruction(x, pixels, -13.3, s, 256).mean() / math.log(2)
        assert bits.item() == pytest.approx(0.0106, abs=0.001)


@ALL_SCHEDULES
def test_variational_weight_has_the_mean_it_claims(schedule: Schedule) -> None:
    pixels = torch.arange(17).repeat(2000, 1)
    drawn = Variational().draw(pixels, noise(2000, 17), Bins(schedule, start_gamma(17), 17))
    difference = drawn.weight - drawn.mean_weight  # only the Gaussian's own entropy
    assert (difference.mean() / (difference.std() / 2000**0.5)).abs() < 4


def test_continuous_data_is_scaled_to_states_and_its_density_back() -> None:
    """The density of x0, smoothed by noise of deviation sigma/alpha."""
    x, schedule = noise(3, 2), VariancePreserving()
    data = exact.gaussian([0.3, 0.0], 0.5)
    model = data.ode(schedule, -2.0, 5.0)
    drawn = Continuous().states(model, x, x)
    assert Continuous().gamma(model) == -2.0
    found = data.log_prob(drawn.x, f64(-2.0)[0], schedule) + drawn.weight
    smooth = torch.distributions.Normal(f64(0.3, 0.0), math.sqrt(0.5**2 + math.exp(-2.0)))
    torch.testing.assert_close(found, smooth.log_prob(x).sum(1))
    assert torch.equal(drawn.weight, drawn.mean_weight)


class TestBadInput:
    def test_scaled_images(self) -> None:
        with pytest.raises(InputError, match="pass the uint8 images"):
            TruncatedNormal().draw(
                torch.rand(2, 3), noise(2, 3), Bins(VariancePreserving(), -13.3, 256)
            )

    def test_pixels_above_the_levels(self) -> None:
        with pytest.raises(InputError, match=r"0\.\.16, got 200 in image 1"):
            check_pixels(torch.tensor([[0, 1], [200, 2]]), 17)

    def test_negative_pixels(self) -> None:
        with pytest.raises(InputError, match="got -1 in image 0"):
            check_pixels(torch.tensor([[-1, 1]]), 17)

    def test_integers_as_continuous_data(self) -> None:
        model = exact.gaussian([0.0] * 3, 0.5).ode(VariancePreserving(), -5.0, 5.0)
        with pytest.raises(InputError, match="choose tn, uniform or variational"):
            Continuous().states(model, torch.zeros(2, 3, dtype=torch.uint8), noise(2, 3))
