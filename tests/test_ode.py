"""Solvers against equations with known solutions, and against each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from idode.batches import to_tensor
from idode.errors import InputError, NumericalError
from idode.likelihood.estimator import LikelihoodSettings, LogWeightEstimator
from idode.likelihood.log_prob import DensityField
from idode.ode.adams import Adams
from idode.ode.calibration import _grid, calibrate
from idode.ode.dormand_prince import Dopri5
from idode.ode.quadrature import lagrange_weights, quadrature, scaled_weights
from idode.ode.solvers import RK4, Field, Solver
from idode.runs.run import open_run


def pendulum(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Rotation with a swinging speed; the rate is cos(3t) + x0, whose integral is known."""
    speed = 1 + torch.cos(t)
    v = torch.stack([-x[:, 1], x[:, 0]], 1) * speed
    return v, (torch.cos(3 * t) + v[:, 0])[None]


def truth(x: Tensor, a: float, b: float) -> tuple[Tensor, Tensor]:
    angle = (b + math.sin(b)) - (a + math.sin(a))
    c, s = math.cos(angle), math.sin(angle)
    end = torch.stack([c * x[:, 0] - s * x[:, 1], s * x[:, 0] + c * x[:, 1]], 1)
    return end, (math.sin(3 * b) - math.sin(3 * a)) / 3 + end[:, 0] - x[:, 0]


X = torch.tensor([[1.0, 0.0], [0.3, -2.0]], dtype=torch.float64)
SOLVERS: dict[str, tuple[Solver, float]] = {
    "adams-3": (Adams(steps=400, order=3), 3e-6),
    "adams-4": (Adams(steps=400, order=4), 1e-7),
    "rk4": (RK4(200), 1e-6),
    "dopri5": (Dopri5(1e-9), 1e-7),
}
every = pytest.mark.parametrize("name", SOLVERS)


@every
@pytest.mark.parametrize("ends", [(-2.0, 3.0), (3.0, -2.0)])
def test_state_and_integral_are_those_of_the_closed_form(
    name: str, ends: tuple[float, float]
) -> None:
    solver, tolerance = SOLVERS[name]
    found = solver.solve(pendulum, X, *ends)
    state, integral = truth(X, *ends)
    torch.testing.assert_close(found.x, state, atol=tolerance, rtol=0)
    torch.testing.assert_close(found.integral[0], integral, atol=tolerance, rtol=0)
    assert found.integral.dtype == torch.float64
    assert found.nfe > 0


@every
def test_there_and_back_again(name: str) -> None:
    solver, tolerance = SOLVERS[name]
    there = solver.solve(pendulum, X, -2.0, 3.0)
    back = solver.solve(pendulum, there.x, 3.0, -2.0)
    torch.testing.assert_close(back.x, X, atol=4 * tolerance, rtol=0)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_adams_converges_with_its_order(order: int) -> None:
    """The corrector has one order more than the predictor's count of velocities."""
    errors = []
    for steps in (30, 60):
        found = Adams(steps=steps, order=order).solve(pendulum, X, 0.0, 2.0)
        errors.append((found.x - truth(X, 0.0, 2.0)[0]).abs().max().item())
    assert math.log2(errors[0] / errors[1]) > order + 0.5


def test_adams_costs_one_evaluation_a_step() -> None:
    calls = 0

    def counted(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        return pendulum(x, t)

    found = Adams(steps=50).solve(counted, X, 0.0, 1.0)
    assert found.nfe == calls == 50 + 5 + 1  # steps, graded start, the first velocity


def test_lagrange_weights_integrate_polynomials_exactly() -> None:
    nodes = [-0.3, 0.1, 0.5, 1.2]
    weights = lagrange_weights(nodes, 0.5, 1.2)
    for power in range(4):
        exact = (1.2 ** (power + 1) - 0.5 ** (power + 1)) / (power + 1)
        assert weights @ np.array(nodes) ** power == pytest.approx(exact)


@pytest.mark.parametrize("order", [2, 4, 6])
def test_quadrature_integrates_polynomials_on_an_uneven_grid(order: int) -> None:
    grid = np.sort(np.random.default_rng(0).uniform(0, 1, 12))
    weights = quadrature(list(grid), order)
    exact = (grid[-1] ** order - grid[0] ** order) / order
    assert weights @ grid ** (order - 1) == pytest.approx(exact)


def test_scaled_weights_are_exact_for_a_polynomial_times_the_speed() -> None:
    nodes, lo, hi = [-0.3, 0.1, 0.5], 0.5, 1.2
    for power in range(3):
        values = np.exp(2 * np.array(nodes)) * np.array(nodes) ** power

        def inside(t: float, power: int = power) -> float:
            # Of exp(2t) t^power, by parts.
            terms = {0: 1 / 2, 1: t / 2 - 1 / 4, 2: t**2 / 2 - t / 2 + 1 / 4}
            return math.exp(2 * t) * terms[power]

        weights = scaled_weights(nodes, lo, hi, lambda t: np.exp(2 * t))
        assert weights @ values == pytest.approx(inside(hi) - inside(lo), rel=1e-12)


class Falling:
    """A velocity that is a known speed times a slow function of the state."""

    def speed(self, t: np.ndarray) -> np.ndarray:
        return np.exp(4 * t)

    def __call__(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return torch.exp(4 * t) * (1 + 0.1 * x), torch.zeros(1, len(x), dtype=x.dtype)


def test_a_field_that_knows_its_speed_is_solved_better() -> None:
    x, field = torch.zeros(1, 1, dtype=torch.float64), Falling()
    truth = 10 * math.expm1(0.1 * math.expm1(-8) / -4 * math.exp(0))
    solver = Adams(steps=12, order=3, graded=2)
    known = solver.solve(field, x, -2.0, 0.0).x.item()
    unknown = solver.solve(field.__call__, x, -2.0, 0.0).x.item()
    assert abs(known - truth) < 0.02 * abs(unknown - truth)


def bump(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """A field that is smooth but for a stretch around t = 0.7."""
    rough = torch.exp(-(((t - 0.7) / 0.03) ** 2))
    return torch.sin(40 * x) * rough + 0.1 * x, (rough * torch.cos(40 * x) + 0.1)[None, :, 0]


def test_calibration_meets_its_tolerance_and_puts_steps_where_it_is_rough() -> None:
    x = torch.linspace(-1, 1, 16, dtype=torch.float64)[:, None]
    for tolerance in (1e-4, 1e-6):
        tuned = calibrate(bump, x, 0.0, 1.0, lambda z, i: i, tolerance)
        found = tuned.solver.solve(bump, x, 0.0, 1.0)
        reference = Dopri5(1e-10).solve(bump, x, 0.0, 1.0)
        rms = (found.integral - reference.integral).square().mean().sqrt().item()
        assert rms < 2 * tolerance
        assert tuned.rms_error < tolerance
        # The solve that it is compared with has an error of its own.
        assert 1 / 3 < rms / tuned.rms_error < 3
        grid = np.array(tuned.solver.fractions)
        inside = ((grid > 0.6) & (grid < 0.8)).mean()
        assert inside > 0.4  # a fifth of the way


def steps_found(monkeypatch, field: Field, tolerance: float, *, leaning: bool) -> int:
    """Of the grid that calibration finds."""
    x = torch.linspace(0.5, 1, 8, dtype=torch.float64)[:, None]
    if not leaning:  # a grid that leans so far is never good enough, so the search takes others
        monkeypatch.setattr("idode.ode.calibration.LEAN", 30.0)
    tuned = calibrate(field, x, 0.0, 1.0, lambda z, i: z[None, :, 0], tolerance)
    assert tuned.rms_error < tolerance
    monkeypatch.undo()
    return len(tuned.solver.fractions) - 1


def test_a_field_whose_path_bends_at_its_start_takes_fewer_steps_by_leaning(monkeypatch) -> None:
    def bending(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * torch.exp(-3 * t) * x**2 + torch.sin(2 * t), x[None, :, 0]

    leaning = steps_found(monkeypatch, bending, 1e-3, leaning=True)
    assert leaning < steps_found(monkeypatch, bending, 1e-3, leaning=False)


@pytest.mark.parametrize("phase", [0.0, 1.5])
def test_leaning_costs_no_steps_where_it_does_not_help(phase: float, monkeypatch) -> None:
    def growing(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return 3 * x + torch.sin(9 * t + phase), x[None, :, 0]

    plain = steps_found(monkeypatch, growing, 1e-2, leaning=False)
    assert steps_found(monkeypatch, growing, 1e-2, leaning=True) == plain


def test_the_steps_of_a_leaning_grid_grow_by_one_factor() -> None:
    lengths = np.diff(_grid((np.array([0.0, 1.0]), np.ones(2)), 21, lean=0.5))
    assert lengths[1:] / lengths[:-1] == pytest.approx(math.exp(0.5 / 20), rel=1e-3)
    assert np.diff(_grid((np.array([0.0, 1.0]), np.ones(2)), 21)) == pytest.approx(1 / 21)


@pytest.mark.once
def test_calibration_gives_up_early_on_a_field_no_grid_resolves_and_says_by_how_much() -> None:
    # The search places nodes by what it sees of the noise, so a last bit moves them all. What a
    # mean over 500 samples is does not depend on where they lie; that over 16 would.
    x = torch.linspace(-1, 1, 500, dtype=torch.float64)[:, None]

    def noisy(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return 0.1 * x, torch.sin(1e6 * x + 1e6 * t)[None, :, 0]

    tuned = calibrate(noisy, x, 0.0, 1.0, lambda z, i: i, 1e-3)
    assert tuned.nfe < 3200  # going on to 1024 steps takes twice that
    assert tuned.rms_error > 1e-3
    # The truth is 1e-6, so what a solve finds is its error, and two solves differ by the errors
    # of both.
    found = tuned.solver.solve(noisy, x, 0.0, 1.0).integral
    assert found.square().mean().sqrt().item() == pytest.approx(tuned.rms_error, rel=0.7)


@pytest.mark.once
@pytest.mark.parametrize("waves", [20, 80, 100])
def test_calibration_goes_on_until_it_has_seen_the_waves_of_a_field(waves: int) -> None:
    x = torch.linspace(-1, 1, 8, dtype=torch.float64)[:, None]

    def wavy(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return 0.1 * x, torch.sin(2 * math.pi * waves * t + x)[None, :, 0]

    assert calibrate(wavy, x, 0.0, 1.0, lambda z, i: i, 1e-2).rms_error < 1e-2


def test_a_field_that_is_not_finite_is_named_with_its_sample_and_gamma() -> None:
    def broken(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        v, r = pendulum(x, t)
        return torch.where((t > 0.5) & (x.norm(dim=1, keepdim=True) > 1.5), torch.nan, v), r

    for solver in (Adams(steps=20), RK4(20), Dopri5()):
        with pytest.raises(NumericalError, match=r"gamma = 0\.5.* for sample 1 of its batch"):
            solver.solve(broken, X, 0.0, 1.0)


def test_a_collapsing_step_is_an_error_and_not_a_number() -> None:
    def singular(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return x**2 / (0.5 - t) ** 3, torch.zeros(1, len(x), dtype=x.dtype)

    with pytest.raises(NumericalError, match="gave up between gamma|not finite"):
        Dopri5(1e-8).solve(singular, X, 0.0, 1.0)


class TestBadInput:
    def test_grids(self) -> None:
        with pytest.raises(InputError, match="runs from 0 to 1"):
            Adams(grid=(0.0, 0.5))
        with pytest.raises(InputError, match="must increase"):
            Adams(grid=(0.0, 0.5, 0.5, 1.0))
        with pytest.raises(InputError, match="order must be 1 to 6, got 0"):
            Adams(order=0)

    def test_tolerance(self) -> None:
        with pytest.raises(InputError, match="tolerance must be positive, got 0"):
            calibrate(bump, X, 0.0, 1.0, lambda z, i: i, 0)


def test_dormand_prince_adds_up_rates_in_float64_whatever_the_state_is() -> None:
    """A constant rate of 1e9 + 1/3, of which float32 would keep nothing after the point."""
    rate = 1e9 + 1 / 3

    def field(x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        assert x.dtype == torch.float32
        return -x, torch.full((1, len(x)), rate, dtype=torch.float64)

    found = Dopri5(1e-6).solve(field, torch.ones(2, 3), 0.0, 1.0)
    assert found.x.dtype == torch.float32
    assert found.integral.dtype == torch.float64
    assert (found.integral - rate).abs().max() < 1e-4


def race(field: Field, x: Tensor, start: float, end: float, tolerance: float) -> list[int]:
    """Evaluations of ours and of scipy's RK45 on state and integral in one vector."""

    def slope(gamma: float, y: np.ndarray) -> np.ndarray:
        here = torch.from_numpy(y[: x.numel()]).reshape(x.shape).to(x.dtype)
        v, rates = field(here, torch.tensor(gamma, dtype=torch.float64))
        return torch.cat([v.double().flatten(), rates.double().flatten()]).numpy()

    y = np.concatenate([x.double().numpy().ravel(), np.zeros(len(x))])
    with torch.no_grad():
        theirs = solve_ivp(slope, (start, end), y, rtol=tolerance, atol=tolerance)
        ours = Dopri5(tolerance).solve(field, x, start, end)
    change = torch.from_numpy(theirs.y[-len(x) :, -1]) - ours.integral[0]
    assert float(change.abs().max()) < tolerance * (1 + np.abs(theirs.y[-len(x) :, -1]).max())
    return [ours.nfe, theirs.nfev]


@pytest.mark.parametrize("ends", [(-2.0, 3.0), (3.0, -2.0)])
def test_dormand_prince_takes_the_steps_of_scipy(ends: tuple[float, float]) -> None:
    for tolerance in (1e-3, 1e-7):
        ours, theirs = race(pendulum, X, *ends, tolerance)
        assert ours == theirs


@pytest.mark.once
@pytest.mark.parametrize("name", ["digits", "cifar10-small"])
def test_evaluations_of_a_likelihood_are_those_of_the_authors_solver(name: str) -> None:
    """Within 3%; a step that is just taken or just not is a matter of the last bits."""
    model = open_run(f"pretrained:{name}").model("cpu")
    estimator = LogWeightEstimator(model, LikelihoodSettings().for_model(model))
    assert model.shape is not None
    pixels = np.random.default_rng(0).integers(0, model.levels, (1, *model.shape))
    x, _ = estimator.states(to_tensor(pixels), [0], 0)
    field = DensityField(model, estimator.probes(x, [0], 0, 1))
    ours, theirs = race(field, x, model.gamma_min, model.gamma_max, 1e-3)
    assert abs(ours - theirs) <= max(6, 0.03 * theirs)
