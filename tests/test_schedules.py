from __future__ import annotations

import math

import pytest
import torch
from conftest import ALL_SCHEDULES

from idode.diffusion.schedules import (
    SCHEDULES,
    Schedule,
    StraightPath,
    VariancePreserving,
    start_gamma,
)
from idode.errors import InputError

GAMMA = torch.linspace(-13.3, 5.0, 64, dtype=torch.float64)


@ALL_SCHEDULES
def test_slope_is_the_derivative_of_log_alpha(schedule: Schedule) -> None:
    gamma = GAMMA.clone().requires_grad_()
    total = schedule.log_alpha(gamma).sum() + 0 * gamma.sum()
    (slope,) = torch.autograd.grad(total, gamma)
    torch.testing.assert_close(schedule.dlog_alpha(gamma), slope)


@ALL_SCHEDULES
def test_the_clock_is_the_log_ratio_of_noise_to_signal(schedule: Schedule) -> None:
    ratio = 2 * torch.log(schedule.sigma(GAMMA) / schedule.alpha(GAMMA))
    torch.testing.assert_close(ratio, GAMMA)


def test_vp_and_sp_are_what_their_names_say() -> None:
    vp, sp = VariancePreserving(), StraightPath()
    torch.testing.assert_close(vp.alpha(GAMMA) ** 2 + vp.sigma(GAMMA) ** 2, torch.ones_like(GAMMA))
    torch.testing.assert_close(sp.alpha(GAMMA) + sp.sigma(GAMMA), torch.ones_like(GAMMA))
    sub = SCHEDULES["sub-vp"]
    torch.testing.assert_close(1 - sub.alpha(GAMMA) ** 2, sub.sigma(GAMMA))


def test_the_closed_forms_of_the_papers_table_of_specifications() -> None:
    vp, sp = VariancePreserving(), StraightPath()
    for s, half in ((vp, 0.5), (sp, math.sqrt(0.5))):
        torch.testing.assert_close(s.speed(GAMMA), half * s.alpha(GAMMA) * s.sigma(GAMMA))
        torch.testing.assert_close(s.weight(GAMMA), 2 * half**2 * s.alpha(GAMMA) ** 2)
    torch.testing.assert_close(vp.dlog_sigma(GAMMA), vp.alpha(GAMMA) ** 2 / 2)
    torch.testing.assert_close(sp.dlog_sigma(GAMMA), sp.alpha(GAMMA) / 2)


@pytest.mark.parametrize(
    ("schedule", "expected"), [(VariancePreserving(), 13.29329 / 2), (StraightPath(), 11.29911)]
)
def test_weight_integral_has_the_published_value(schedule: Schedule, expected: float) -> None:
    lo, hi = torch.tensor([-13.3, 5.0], dtype=torch.float64)
    assert schedule.weight_between(lo, hi).item() == pytest.approx(expected, abs=1e-5)


@ALL_SCHEDULES
def test_closed_form_integrals_agree_with_quadrature(schedule: Schedule) -> None:
    lo = torch.linspace(-30, 14.9, 50, dtype=torch.float64)
    hi = torch.full_like(lo, 15.0)
    quadrature = Schedule.weight_between(schedule, lo, hi)
    torch.testing.assert_close(schedule.weight_between(lo, hi), quadrature, rtol=1e-11, atol=0)


@ALL_SCHEDULES
def test_speed_is_the_length_of_the_velocity_and_finite_in_float32(schedule: Schedule) -> None:
    gamma = torch.linspace(-30, 15, 500)
    for quantity in (schedule.speed, schedule.weight, schedule.dlog_sigma, schedule.alpha):
        assert torch.isfinite(quantity(gamma)).all()
        torch.testing.assert_close(
            quantity(gamma).double(), quantity(gamma.double()), rtol=1e-4, atol=1e-7
        )


def test_start_gamma_puts_three_sigma_into_half_a_bin() -> None:
    for levels in (2, 17, 256):
        assert math.exp(-start_gamma(levels) / 2) / levels == pytest.approx(3.0)


def test_fewer_than_two_levels_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2, got 1"):
        start_gamma(1)
