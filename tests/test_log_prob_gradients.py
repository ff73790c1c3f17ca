"""Gradients of log p are those of the exact density, however little memory they are given."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch
from torch import Tensor, nn

from idode.diffusion import exact
from idode.diffusion.model import DiffusionODE
from idode.diffusion.schedules import VariancePreserving
from idode.diffusion.wrapping import wrap
from idode.errors import InputError
from idode.likelihood.latents import decode, encode
from idode.likelihood.log_prob import LogProb, log_prob
from idode.ode.adams import Adams
from idode.ode.dormand_prince import Dopri5
from idode.ode.solvers import RK4, Solver

VP = VariancePreserving()
START = torch.tensor(-6.0, dtype=torch.float64)
ALPHA = float(VP.alpha(START))
MIXTURE = exact.mixture([0.5, 0.5], [[0.6, 0.2], [-0.5, 0.1]], [0.04, 0.09])


class Moved(nn.Module):
    """The perfect network of a mixture whose place is a parameter, and a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.tensor([0.3, -0.2], dtype=torch.float64))

    def forward(self, x: Tensor, gamma: Tensor, offset: Tensor | None = None) -> Tensor:
        place = self.place if offset is None else self.place + offset
        return MIXTURE.noise(x - VP.alpha(gamma)[:, None] * place, gamma, VP)


@pytest.fixture(scope="module")
def model() -> DiffusionODE:
    # So much noise at the end that the prior's error, e^-9 times the mean, is below the bounds.
    return wrap(Moved(), "noise", "vp", "gamma", levels=None, gamma_min=-6.0, gamma_max=18.0)


@pytest.fixture(scope="module")
def x() -> Tensor:
    return MIXTURE.sample(3, torch.Generator().manual_seed(0)) + torch.tensor([0.3, -0.2])


def truth(x: Tensor, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The exact log-density, and its gradients in the state and in the place of the mixture."""
    x, place = x.detach().requires_grad_(), place.detach().requires_grad_()
    log_p = MIXTURE.log_prob(x - ALPHA * place, START, VP)
    return log_p.detach(), *torch.autograd.grad(log_p.sum(), (x, place))


def gradients(model: DiffusionODE, x: Tensor, **how: object) -> tuple[LogProb, list[Tensor]]:
    x, offset = x.detach().requires_grad_(), torch.zeros_like(x).requires_grad_()
    found = log_prob(model, x, condition={"offset": offset}, **how)  # type: ignore[arg-type]
    wanted = (x, next(model.parameters()), offset)
    return found, list(torch.autograd.grad(found.log_p.sum(), wanted))


@pytest.mark.parametrize(
    ("solver", "memory"),
    [
        (Adams(steps=160), {}),
        (Adams(steps=160), {"checkpoint": True}),
        (Adams(steps=160), {"adjoint": True}),
        (Dopri5(1e-7), {}),
        (Dopri5(1e-6), {"checkpoint": True}),
        (RK4(80), {}),
    ],
    ids=["adams", "checkpoint", "adjoint", "dopri5", "dopri5-checkpoint", "rk4"],
)
def test_gradients_are_the_exact_scores(
    model: DiffusionODE, x: Tensor, solver: Solver, memory: dict[str, bool]
) -> None:
    found, (of_x, of_place, of_offset) = gradients(model, x, solver=solver, **memory)
    log_p, score, place = truth(x, next(model.parameters()))
    # Scores are of order ten; solver and prior leave some 1e-4 of them.
    torch.testing.assert_close(found.log_p.detach(), log_p, atol=1e-3, rtol=0)
    torch.testing.assert_close(of_x, score, atol=5e-3, rtol=1e-3)
    torch.testing.assert_close(of_place, place, atol=5e-3, rtol=1e-3)
    torch.testing.assert_close(of_offset, -ALPHA * score, atol=5e-3, rtol=1e-3)


def test_checkpoints_change_nothing_but_memory(model: DiffusionODE, x: Tensor) -> None:
    plain, first = gradients(model, x, solver=Adams(steps=20))
    again, second = gradients(model, x, solver=Adams(steps=20), checkpoint=True)
    assert torch.equal(plain.log_p, again.log_p)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_probes_have_gradients_too(model: DiffusionODE, x: Tensor) -> None:
    """The estimate is linear in the field, so its gradient is checked by a difference."""

    def value(x: Tensor) -> Tensor:
        g = torch.Generator().manual_seed(3)
        how = {"solver": Adams(steps=40), "n_probes": 2, "generator": g, "checkpoint": True}
        return log_prob(model, x, **how).log_p  # type: ignore[arg-type]

    inside = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(value(inside).sum(), inside)
    h = 1e-5 * torch.ones_like(x)
    with torch.no_grad():
        difference = (value(x + h) - value(x - h)) / 2e-5
    torch.testing.assert_close(slope.sum(1), difference, atol=1e-5, rtol=1e-5)


class Wide(nn.Module):
    """Something with activations worth saving."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.body(x)


class Kept:
    """A tensor that autograd keeps."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def kept_bytes(how: dict[str, bool]) -> int:
    """Bytes that autograd keeps between the two passes, each storage once."""
    kept: weakref.WeakSet[Kept] = weakref.WeakSet()

    def pack(tensor: Tensor) -> Kept:
        one = Kept(tensor)
        kept.add(one)
        return one

    torch.manual_seed(0)
    model = wrap(Wide(), "noise", "vp", "gamma", levels=None, gamma_min=-6.0, gamma_max=5.0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one.tensor):
        found = log_prob(model, torch.randn(64, 2), solver=Adams(steps=30), **how)  # type: ignore[arg-type]
    gc.collect()
    storages = [one.tensor.untyped_storage() for one in kept]
    total = sum({s.data_ptr(): s.nbytes() for s in storages}.values())
    found.log_p.sum().backward()
    return total


def test_checkpoints_take_a_fraction_of_the_memory_and_the_adjoint_next_to_nothing() -> None:
    whole, checkpoint, adjoint = (
        kept_bytes(how) for how in ({}, {"checkpoint": True}, {"adjoint": True})
    )
    assert checkpoint < whole / 10
    assert adjoint < checkpoint / 5


def test_nothing_is_kept_where_nobody_asks(x: Tensor) -> None:
    frozen = MIXTURE.ode(VP, -6.0, 5.0)
    assert not log_prob(frozen, x, solver=Adams(steps=8)).log_p.requires_grad
    with torch.no_grad():
        found = log_prob(frozen, x.requires_grad_(), solver=Adams(steps=8))
    assert not found.log_p.requires_grad


def test_the_adjoint_is_for_adams_and_one_way_is_enough(model: DiffusionODE, x: Tensor) -> None:
    with pytest.raises(InputError, match="grid of Adams steps, got RK4: leave the solver out"):
        gradients(model, x, solver=RK4(4), adjoint=True)
    with pytest.raises(InputError, match="two ways to save memory: choose one"):
        gradients(model, x, adjoint=True, checkpoint=True)


def test_clean_data_is_bridged_to_states_and_pixels_have_no_density() -> None:
    """Data is scaled by alpha; without it a straight path is off by d log alpha and more."""
    wide = exact.mixture([0.5, 0.5], [[5.0, 4.0], [-5.0, 3.0]], [0.5, 0.8])
    model = wide.ode(VP, -2.0, 18.0)
    x = wide.sample(4, torch.Generator().manual_seed(0))
    at = torch.tensor(-2.0, dtype=torch.float64)
    alpha = float(VP.alpha(at))
    density = wide.log_prob(alpha * x, at, VP) + 2 * math.log(alpha)
    found = log_prob(model, x, clean=True)
    torch.testing.assert_close(found.log_p, density, atol=2e-3, rtol=0)
    assert float((log_prob(model, x).log_p - density).abs().max()) > 0.3
    model.levels = 17
    with pytest.raises(InputError, match="17 levels, which has probabilities and no density"):
        log_prob(model, x, clean=True)


def test_a_default_solve_is_calibrated_and_knows_its_error(model: DiffusionODE, x: Tensor) -> None:
    with torch.no_grad():
        found = log_prob(model, x)
    log_p, _, _ = truth(x, next(model.parameters()))
    assert float((found.log_p - log_p).abs().max()) < 2e-3
    assert float(found.solver_error.max()) < 2e-3


def test_the_way_to_the_latents_and_back_has_its_error(model: DiffusionODE, x: Tensor) -> None:
    rough = encode(model, x, Adams(steps=6), {"offset": torch.zeros_like(x)})
    fine = encode(model, x, condition={"offset": torch.zeros_like(x)})
    assert float(fine.round_trip_error.max()) < 5e-3 < float(rough.round_trip_error.max())
    back = decode(model, fine.x, fine.way_back, {"offset": torch.zeros_like(x)}, check=False)
    distance = (back.x - x).square().mean(1).sqrt()
    torch.testing.assert_close(distance, fine.round_trip_error)
    assert bool(back.round_trip_error.isnan().all())
