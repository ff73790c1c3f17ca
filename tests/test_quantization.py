"""The closed-form noise of quantized data against exact mixtures, and where it is used."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import tiny
import torch
from torch import Tensor

import idode
from idode.diffusion.exact import Lattice
from idode.diffusion.learned_path import LearnedPath
from idode.diffusion.model import DiffusionODE
from idode.diffusion.predictors import NOISE, PREDICTORS
from idode.diffusion.quantization import FADE, Quantization
from idode.diffusion.schedules import SCHEDULES, VariancePreserving, start_gamma
from idode.errors import InputError
from idode.likelihood.sde_bound import SDEBound
from idode.runs.config import override
from idode.runs.presets import PRESETS
from idode.runs.run import build_net, diffusion_ode
from idode.runs.systems import SYSTEMS, apply

VP = VariancePreserving()
LEVELS = 64


def in_bins(s: float, levels: int) -> Tensor:
    """The noise level at which the noise is ``s`` bins wide."""
    return torch.tensor(2 * math.log(s * 2 / levels), dtype=torch.float64)


def equally_likely(levels: int) -> Lattice:
    """All levels, each as often as any other."""
    return Lattice(
        torch.arange(levels)[:, None], torch.full((levels,), 1 / levels).double(), levels
    )


@pytest.mark.parametrize("schedule", ["vp", "sp", "ve"])
@pytest.mark.parametrize("s", [0.1, 1 / 6, 0.5, 1.0, 2.0, 3.0])
def test_it_is_the_posterior_mean_of_equally_likely_levels_that_fades(
    s: float, schedule: str
) -> None:
    gamma, path = in_bins(s, LEVELS), SCHEDULES[schedule]
    # From well beyond black to well beyond white, at all positions within a bin.
    x = path.alpha(gamma) * torch.linspace(-1.5, 1.5, 4999, dtype=torch.float64)[:, None]
    exact = math.exp(-((s / FADE) ** 2)) * equally_likely(LEVELS).mixture.noise(x, gamma, path)
    found = Quantization(LEVELS).noise(x, gamma, path)
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-6)  # levels out of reach


@pytest.mark.parametrize("s", [1.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0])
def test_far_from_the_ends_its_slope_adds_up_to_nothing_over_a_bin(s: float) -> None:
    """As its value does, which repeats: divergences would not see it jump."""
    gamma = in_bins(s, 256)
    u = (126.5 + (torch.arange(400, dtype=torch.float64) + 0.5) / 400).requires_grad_()
    x = VP.alpha(gamma) * ((u + 0.5) / 128 - 1)
    (slope,) = torch.autograd.grad(Quantization(256).noise(x[:, None], gamma, VP).sum(), u)
    assert slope.mean().abs() < 1e-5


@pytest.mark.parametrize("levels", [2, 3, 17])
@pytest.mark.parametrize("share", [1 / 12, 1 / 6, 1 / 2])
def test_of_few_levels_it_fades_with_the_share_of_them_that_noise_is_wide(
    levels: int, share: float
) -> None:
    gamma = in_bins(share * levels, levels)
    x = torch.linspace(-2, 2, 401, dtype=torch.float64)[:, None]
    exact = math.exp(-((6 * share) ** 2)) * equally_likely(levels).mixture.noise(x, gamma, VP)
    found = Quantization(levels).noise(x, gamma, VP)
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("s", "dtype"),
    [(s, torch.float32) for s in (1e-3, 0.05, 1 / 6, 0.5, 10.0, 1e4)]
    + [(s, torch.float16) for s in (1 / 6, 0.5, 10.0, 1e4)],  # steeper slopes it cannot hold
)
def test_value_and_gradient_are_finite_at_every_noise_level(s: float, dtype: torch.dtype) -> None:
    gamma = in_bins(s, 256)
    x = torch.linspace(-1.5, 1.5, 5001).to(dtype)[:, None].requires_grad_()
    found = Quantization(256).noise(x, gamma, VP)
    (slope,) = torch.autograd.grad(found.sum(), x)
    assert found.isfinite().all()
    assert slope.isfinite().all()
    if s > 100:
        assert not found.any()


def test_one_noise_level_for_each_dimension_is_that_of_each_alone() -> None:
    x = torch.randn(3, 4, dtype=torch.float64) / 4
    gamma = torch.linspace(-12, -6, 12, dtype=torch.float64).reshape(3, 4)
    found = Quantization(256).noise(x, gamma, VP)
    for i in range(3):
        for j in range(4):
            alone = Quantization(256).noise(x[i : i + 1, j : j + 1], gamma[i, j], VP)
            torch.testing.assert_close(found[i, j], alone[0, 0])


@pytest.mark.parametrize("name", sorted(PREDICTORS))
def test_it_is_added_to_the_noise_whatever_the_network_predicts(name: str) -> None:
    x, gamma = torch.rand(5, 3, dtype=torch.float64) - 0.5, torch.linspace(-13, 2, 5).double()

    def net(x: Tensor, t: Tensor) -> Tensor:
        return torch.sin(3 * x) + t[:, None]

    def model(quantization: Quantization | None) -> DiffusionODE:
        return DiffusionODE(
            net, VP, -13.3, 5.0, PREDICTORS[name], levels=256, quantization=quantization
        )

    known = Quantization(256).noise(x, gamma, VP)
    without, given = (model(q).predict(x, gamma, NOISE) for q in (None, Quantization(256)))
    torch.testing.assert_close(given, without + known)
    assert known[0].abs().max() > 0.1


def test_it_saves_the_divergence_of_the_noised_levels_from_a_flat_density() -> None:
    levels, draws = 64, 512
    # Far from black and white, where wider noise still shows that the levels end.
    pixels = torch.randint(24, 40, (200, 6), generator=torch.Generator().manual_seed(0))

    def bound(quantization: Quantization | None) -> SDEBound:
        model = DiffusionODE(
            lambda x, t: torch.zeros_like(x), VP, start_gamma(levels), 5.0, NOISE,
            levels=levels, shape=(6,), quantization=quantization,
        )  # fmt: skip
        return model.sde_bound(pixels, draws=draws)

    without, given = bound(None), bound(Quantization(levels))
    s, u = 1 / 6, torch.linspace(0, 1, 2001, dtype=torch.float64)
    bells = torch.exp(-((u[:, None] - torch.arange(-3, 5)) ** 2) / (2 * s**2)).sum(1)
    density = bells / (s * math.sqrt(2 * math.pi))
    exact = float(torch.trapezoid(density * density.log(), u)) / math.log(2)
    saved = without.per_image - given.per_image  # the same noise, so most of it cancels
    error = float(saved.std()) / math.sqrt(len(saved))
    assert float(saved.mean()) == pytest.approx(exact, abs=5 * error)
    assert error < 0.01


def test_a_run_remembers_it_and_so_does_a_saved_model(tmp_path: Path) -> None:
    settings = ["model.quantization=closed-form"]
    run = idode.train(
        tiny.config(), out=tmp_path / "run", steps=2, settings=settings, progress=False
    )
    model = idode.load(run, device="cpu")
    assert model.quantization == Quantization(run.config.model.levels or 0)
    model.save_pretrained(tmp_path / "saved")
    again = idode.load(tmp_path / "saved", device="cpu")
    assert again.quantization == model.quantization
    assert again.with_net(model.net).quantization == model.quantization


def test_a_learned_path_may_have_it() -> None:
    config = override(PRESETS["digits"], ["model.quantization=closed-form", "path.bits=4"])
    net = build_net(config)
    model = diffusion_ode(net, config)
    assert isinstance(model.path, LearnedPath)
    data = torch.randint(0, 17, (4, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    assert model.loss(data).isfinite()


class TestRefusals:
    def test_other_levels_than_those_of_the_model(self) -> None:
        with pytest.raises(InputError, match="99 levels"):
            DiffusionODE(lambda x, t: x, VP, -8.0, 5.0, levels=17, quantization=Quantization(99))

    def test_continuous_data(self) -> None:
        config = override(PRESETS["vectors"], ["model.quantization=closed-form"])
        with pytest.raises(InputError, match="grey levels"):
            diffusion_ode(torch.nn.Identity(), config)

    def test_an_unknown_name(self) -> None:
        config = override(PRESETS["digits"], ["model.quantization=exact"])
        with pytest.raises(InputError, match="closed-form"):
            diffusion_ode(torch.nn.Identity(), config)

    def test_data_that_fills_the_bins(self) -> None:
        with pytest.raises(InputError, match="fills them"):
            override(
                PRESETS["digits"],
                ["model.quantization=closed-form", "objective.data=uniform"],
            )


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_every_system_learns_quantization_as_in_its_paper(name: str) -> None:
    base = override(PRESETS["digits"], ["model.quantization=closed-form"])
    assert apply(base, name).model.quantization == "learned"
