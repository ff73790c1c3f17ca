from __future__ import annotations

import pytest
import torch
from conftest import ALL_SCHEDULES, f64

from idode.diffusion import exact
from idode.diffusion.model import DiffusionODE
from idode.diffusion.objectives import diffuse, first_order, second_order
from idode.diffusion.predictors import NOISE
from idode.diffusion.schedules import SCHEDULES, Schedule, VariancePreserving
from idode.errors import InputError
from idode.nets.config import UNetConfig
from idode.nets.unet import UNet
from idode.numerics import per_sample
from idode.ode import PROBES, divergence
from idode.ode.divergence import Gaussian, Probe, Rademacher


def small_net(dim: int = 3) -> torch.nn.Module:
    torch.manual_seed(0)  # only the weights; nothing below uses the global generator
    layers = [torch.nn.Linear(dim + 1, 16), torch.nn.Tanh(), torch.nn.Linear(16, dim)]
    return torch.nn.Sequential(*layers).double()


def model_of(net: torch.nn.Module, schedule: Schedule) -> DiffusionODE:
    return DiffusionODE(lambda x, t: net(torch.cat([x, t[:, None]], 1)), schedule, -8.0, 5.0)


def inputs(n: int = 64) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(2)
    x0 = torch.rand(n, 3, generator=g, dtype=torch.float64) - 0.5
    eps = torch.randn(n, 3, generator=g, dtype=torch.float64)
    return x0, eps, torch.linspace(-8, 5, n, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(5,), (2, 3), (3, 4, 4)])
def test_exact_divergence_is_the_trace_for_any_shape(shape: tuple[int, ...]) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, *shape, generator=g, dtype=torch.float64)
    d = x[0].numel()
    mix = torch.randn(d, d, generator=g, dtype=torch.float64)
    f = lambda y: torch.sin(y.flatten(1) @ mix).reshape(y.shape)  # noqa: E731
    value, div = divergence.exact(f, x)
    trace = (torch.cos(x.flatten(1) @ mix) * mix.diagonal()).sum(1)
    torch.testing.assert_close(div, trace)
    torch.testing.assert_close(value, f(x))


def test_exact_divergence_of_a_unet_is_the_trace_of_its_jacobian() -> None:
    net = UNet(UNetConfig(channels=1, levels=4, width=8, depth=1, groups=2, dropout=0.0))
    with torch.no_grad():
        net.conv_out.weight.normal_(generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    t = torch.tensor([0.2, 0.7])
    _, div = divergence.exact(lambda y: net(y, t), x)
    jacobian = torch.autograd.functional.jacobian(lambda y: net(y, t).flatten(1), x)
    whole = jacobian.reshape(2, 16, 2, 16)
    traces = torch.stack([whole[i, :, i].trace() for i in range(2)])
    torch.testing.assert_close(div, traces, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
def test_hutchinson_is_unbiased(probe: type[Probe]) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, generator=g, dtype=torch.float64)
    mix = torch.randn(4, 4, generator=g, dtype=torch.float64)
    f = lambda y: torch.tanh(y @ mix)  # noqa: E731
    probes = probe().draw(20_000, x, g)
    jac = (1 - torch.tanh(x @ mix) ** 2)[:, None, :] * mix  # (B, d_in, d_out)
    estimates = torch.einsum("nbi,bij,nbj->nb", probes, jac, probes)
    _, exact_div = divergence.exact(f, x)
    z = (estimates.mean(0) - exact_div) / (estimates.std(0) / 20_000**0.5)
    assert z.abs().max() < 4
    with torch.no_grad():
        _, ours = divergence.hutchinson(f, x, probes[:50])
    torch.testing.assert_close(ours, estimates[:50])


def test_rademacher_is_exact_on_a_diagonal_jacobian_and_gaussian_is_not() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 6, generator=g, dtype=torch.float64)
    for probe, is_exact in ((Rademacher(), True), (Gaussian(), False)):
        _, div = divergence.hutchinson(torch.sin, x, probe.draw(1, x, g))
        assert torch.allclose(div[0], torch.cos(x).sum(1)) == is_exact


def test_a_field_without_a_graph_has_divergence_zero() -> None:
    x = torch.ones(2, 3)
    for _, div in (
        divergence.hutchinson(lambda y: torch.ones(2, 3), x, torch.ones(1, 2, 3)),
        divergence.exact(lambda y: torch.ones(2, 3), x),
    ):
        assert (div == 0).all()


@ALL_SCHEDULES
def test_second_order_is_its_definition_with_an_exact_trace(schedule: Schedule) -> None:
    net = small_net()
    model, (x0, eps, gamma) = model_of(net, schedule), inputs()
    basis = 3**0.5 * torch.eye(3, dtype=torch.float64)[:, None, :].expand(3, 64, 3)
    losses = second_order(model, x0, eps, gamma, basis)  # mean over this basis is the trace
    xt = diffuse(x0, eps, gamma, schedule)
    _, div = divergence.exact(lambda x: model.velocity(x, gamma), xt)
    first = first_order(model, x0, eps, gamma)
    second = 2 / 3 * (div - 3 * schedule.dlog_sigma(gamma) + first) ** 2
    torch.testing.assert_close(losses.first, first, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(losses.second, second, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(losses.total(0.1), losses.first + 0.1 * losses.second)


@pytest.mark.parametrize("name", ["vp", "sp"])
def test_second_order_agrees_with_the_papers_table_of_specifications(name: str) -> None:
    """VP: alpha²/2 (sigma tr - alpha d + alpha e)²; SP: alpha² (sigma tr - d/√2 + √2 alpha e)²."""
    s = SCHEDULES[name]
    model, (x0, eps, gamma) = model_of(small_net(), s), inputs()
    xt = diffuse(x0, eps, gamma, s)
    alpha, sigma, d = s.alpha(gamma), s.sigma(gamma), 3
    ode_time = (gamma + 8.0) / 13.0
    said, trace = divergence.exact(lambda x: model.net(x, ode_time), xt)
    if name == "vp":
        error = per_sample((said - alpha[:, None] * eps + sigma[:, None] * x0) ** 2)
        paper = alpha**2 / 2 * (sigma * trace - alpha * d + alpha * error) ** 2
    else:
        error = per_sample((said - (eps - x0) / 2**0.5) ** 2)
        paper = alpha**2 * (sigma * trace - d / 2**0.5 + 2**0.5 * alpha * error) ** 2
    basis = 3**0.5 * torch.eye(3, dtype=torch.float64)[:, None, :].expand(3, 64, 3)
    ours = second_order(model, x0, eps, gamma, basis).second
    torch.testing.assert_close(ours, paper / d, rtol=1e-6, atol=1e-9)


def test_first_order_error_is_behind_a_stop_gradient() -> None:
    net = small_net()
    model, (x0, eps, gamma) = model_of(net, VariancePreserving()), inputs()
    probe = Rademacher().draw(1, x0, torch.Generator().manual_seed(0))
    second = second_order(model, x0, eps, gamma, probe).second.mean()
    # The last bias shifts the velocity and leaves its trace alone.
    grads = torch.autograd.grad(second, [net[2].bias, net[2].weight], allow_unused=True)
    assert grads[0] is None
    assert grads[1].abs().max() > 0


def test_at_the_optimum_the_bracket_has_mean_zero(mixture: exact.Mixture) -> None:
    n, g = 50_000, torch.Generator().manual_seed(0)
    schedule = VariancePreserving()
    model = mixture.ode(schedule, -8.0, 6.0)
    x0, eps = mixture.sample(n, g), torch.randn(n, 3, generator=g, dtype=torch.float64)
    gamma = f64(-1.0).expand(n)
    xt = diffuse(x0, eps, gamma, schedule)
    bracket = (
        mixture.divergence(xt, gamma, schedule)
        - 3 * schedule.dlog_sigma(gamma)
        + first_order(model, x0, eps, gamma)
    )
    for seen in (torch.ones(n), torch.sin(xt[:, 0])):
        product = bracket * seen
        assert product.mean().abs() / (product.std() / n**0.5) < 4


def test_the_square_of_a_noisy_trace_is_biased_and_the_product_of_two_is_not() -> None:
    model, (x0, eps, gamma) = model_of(small_net(), VariancePreserving()), inputs(8)
    basis = 3**0.5 * torch.eye(3, dtype=torch.float64)[:, None, :].expand(3, 8, 3)
    truth = second_order(model, x0, eps, gamma, basis).second.detach()
    g = torch.Generator().manual_seed(0)
    repeats = 2000
    shape = (repeats * 8, 3)
    many = [t.repeat(repeats, *[1] * (t.ndim - 1)) for t in (x0, eps, gamma)]
    probes = Gaussian().draw(2, torch.empty(shape, dtype=torch.float64), g)
    with torch.no_grad():
        biased = second_order(model, *many, probes).second.reshape(repeats, 8)
        product = second_order(model, *many, probes, unbiased=True).second.reshape(repeats, 8)
    error = repeats**0.5 / product.std(0)
    assert ((product.mean(0) - truth) * error).abs().max() < 4
    assert ((biased.mean(0) - truth) * (repeats**0.5 / biased.std(0))).max() > 10


def test_a_single_probe_cannot_be_unbiased() -> None:
    model, (x0, eps, gamma) = model_of(small_net(), VariancePreserving()), inputs()
    with pytest.raises(InputError, match="at least 2 independent probes, got 1"):
        second_order(model, x0, eps, gamma, torch.ones(1, 64, 3), unbiased=True)


def test_probes_of_another_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"probes must have shape \(n, 2, 3\)"):
        divergence.hutchinson(torch.sin, torch.ones(2, 3), torch.ones(2, 3))


def test_second_order_gradients_reach_the_weights_through_the_trace() -> None:
    """A linear noise predictor eps_hat = w x: the divergence, and its slope in w, are known."""
    w = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    s = VariancePreserving()
    model = DiffusionODE(lambda x, t: w * x, s, -8.0, 5.0, NOISE)
    x0, eps, gamma = inputs(4)
    probe = Rademacher().draw(1, x0, torch.Generator().manual_seed(0))
    losses = second_order(model, x0, eps, gamma, probe)
    (grad,) = torch.autograd.grad(losses.second.sum(), w)
    div = 3 * (s.dlog_alpha(gamma) + s.sigma(gamma) / 2 * w)
    bracket = div - 3 * s.dlog_sigma(gamma) + losses.first
    expected = (4 / 3 * bracket * 3 * s.sigma(gamma) / 2).sum()
    torch.testing.assert_close(grad, expected.detach())
