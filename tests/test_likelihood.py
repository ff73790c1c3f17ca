"""The engine against data whose probability is known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import tiny
import torch
from conftest import ALL_SCHEDULES
from how import settings
from torch import Tensor, nn

from idode import random
from idode.batches import Batch
from idode.diffusion import exact
from idode.diffusion.model import DiffusionODE
from idode.diffusion.noise_levels import UniformGamma
from idode.diffusion.schedules import SCHEDULES, Schedule, VariancePreserving, start_gamma
from idode.diffusion.wrapping import wrap
from idode.errors import InputError, NumericalError
from idode.evaluation.likelihood import bits_per_dim, sde_bound
from idode.evaluation.runner import BatchRunner
from idode.likelihood import estimator as estimator_module
from idode.likelihood import latents
from idode.likelihood import log_prob as density
from idode.likelihood import sde_bound as sde_bound_module
from idode.likelihood.dequantization import centres
from idode.likelihood.estimator import LikelihoodSettings, LogWeightEstimator
from idode.likelihood.sde_bound import SDEBoundEstimator
from idode.ode.adams import Adams
from idode.ode.divergence import Gaussian
from idode.ode.dormand_prince import Dopri5
from idode.runs.run import build_net, diffusion_ode
from idode.sampling.samples import sample


@pytest.mark.once
@ALL_SCHEDULES
def test_log_prob_of_gaussian_and_mixture_data_is_their_density(
    schedule: Schedule, mixture: exact.Mixture, generator: torch.Generator
) -> None:
    for oracle in (exact.gaussian([0.3, -0.2, 0.1], 0.5), mixture):
        # gamma_max = 32: the prior knows no mean, which costs alpha/sigma * |x| = 1e-7 there
        model = oracle.ode(schedule, -6.0, 32.0)
        gamma = torch.tensor(-6.0, dtype=torch.float64)
        x = schedule.alpha(gamma) * oracle.sample(3, generator)
        truth = oracle.log_prob(x, gamma, schedule)
        found = density.log_prob(model, x, solver=Adams(steps=600))
        assert ((found.log_p - truth).abs() / 3).max() < 1e-6


def test_the_papers_solver_finds_the_same_density(
    mixture: exact.Mixture, generator: torch.Generator
) -> None:
    model = mixture.ode(VariancePreserving(), -6.0, 32.0)
    gamma = torch.tensor(-6.0, dtype=torch.float64)
    x = mixture.sample(3, generator)
    found = density.log_prob(model, x, solver=Dopri5(1e-8))
    truth = mixture.log_prob(x, gamma, model.schedule)
    assert ((found.log_p - truth).abs() / 3).max() < 1e-6


@pytest.mark.once
@ALL_SCHEDULES
def test_a_round_trip_returns_to_where_it_began(
    schedule: Schedule, mixture: exact.Mixture, generator: torch.Generator
) -> None:
    model = mixture.ode(schedule, -6.0, 6.0)
    x = mixture.sample(4, generator)
    z = latents.encode(model, x, Adams(steps=300))
    back = latents.decode(model, z.x, Adams(steps=300))
    torch.testing.assert_close(back.x, x, atol=1e-5, rtol=0)
    assert z.nfe == back.nfe
    for found in (z, latents.encode(model, x)):  # by default calibrated to 1e-3
        assert float(found.round_trip_error.max()) < 5e-3


@pytest.mark.once
def test_probes_share_one_path_and_average_to_the_exact_value(mixture: exact.Mixture) -> None:
    model = mixture.ode(VariancePreserving(), -6.0, 8.0)
    g = torch.Generator().manual_seed(0)
    x = mixture.sample(3, g)
    # The same solver for both, so its error does not matter.
    probes, solver = Gaussian().draw(64, x, g), Adams(steps=24)
    many = density.solve_log_prob(model, x, solver, probes=probes)
    truth = density.log_prob(model, x, solver=solver)
    assert many.per_probe.shape == (64, 3)
    torch.testing.assert_close(many.z, truth.z)
    z = (many.log_p - truth.log_p) / (many.per_probe.std(0) / 8)
    assert z.abs().max() < 4


def lattice(dim: int = 3, levels: int = 8, points: int = 40) -> exact.Lattice:
    g = torch.Generator().manual_seed(4)
    pixels = torch.unique(torch.randint(0, levels, (points, dim), generator=g), dim=0)
    p = torch.rand(len(pixels), generator=g, dtype=torch.float64) + 0.05
    return exact.Lattice(pixels, p / p.sum(), levels)


class TestDiscreteOracle:
    """Integers with known probabilities under the perfect model: no bound may beat the truth."""

    data = lattice()

    def gap(self, schedule: Schedule, n: int = 64, **changes: object) -> tuple[float, float]:
        """Mean excess over the true code length of the same images, and its standard error."""
        pixels, log_p = self.data.sample(n, torch.Generator().manual_seed(0))
        model = self.data.ode(schedule, start_gamma(8), 14.0)
        # In one batch, as the states are of three numbers and the calls are what costs.
        usual = {"probes": 0, "tolerance": 1e-4, "batch_size": 1024}
        result = bits_per_dim(model, pixels, settings(**usual | changes), dtype=torch.float64)
        excess = result.per_image + log_p / (3 * math.log(2))
        return float(excess.mean()), float(excess.std() / n**0.5)

    @pytest.mark.parametrize("name", ["vp", "sp", pytest.param("ve", marks=pytest.mark.once)])
    def test_truncated_normal_is_within_a_hundredth_and_its_gap_is_the_lost_mass(
        self, name: str
    ) -> None:
        gap, _ = self.gap(SCHEDULES[name], n=16)
        lost = -math.log2(math.erf(3 / math.sqrt(2)))  # tau = 3 by the choice of gamma_min
        assert lost == pytest.approx(0.0039, abs=1e-4)
        assert 0 < gap < 0.01
        assert gap == pytest.approx(lost, abs=5e-4)  # the two densities cancel at every draw

    @pytest.mark.once
    def test_the_closed_form_entropy_has_the_same_mean_and_more_noise(self) -> None:
        rough = {"n": 200, "tolerance": 1e-3}  # a twentieth of the error below
        drawn, _ = self.gap(VariancePreserving(), **rough)
        closed, error = self.gap(VariancePreserving(), **rough, closed_form=True)
        assert closed == pytest.approx(drawn, abs=4 * error)
        assert error > 0.02  # half a chi-square for each dimension, that the draw cancels

    @pytest.mark.once
    @pytest.mark.parametrize("dequantization", ["tn", "variational", "uniform"])
    def test_every_bound_is_above_the_truth_and_falls_with_k(self, dequantization: str) -> None:
        gaps = [
            self.gap(
                VariancePreserving(),
                n=32,
                dequantization=dequantization,
                importance=k,
                tolerance=1e-3,
            )
            for k in (1, 5, 20)
        ]
        for gap, error in gaps:
            assert gap > -3 * error - 1e-3
        for (more, e1), (fewer, e2) in zip(gaps[1:], gaps[:-1], strict=True):
            assert more < fewer + 3 * math.hypot(e1, e2)

    @pytest.mark.once
    def test_uniform_at_the_same_start_is_far_worse_and_recovers_with_its_own(self) -> None:
        usual = {"dequantization": "uniform", "tolerance": 0.01}  # a tenth of what is told apart
        same, _ = self.gap(VariancePreserving(), start=start_gamma(8), n=200, **usual)
        own, _ = self.gap(VariancePreserving(), n=200, **usual)
        best, _ = self.gap(VariancePreserving(), importance=20, n=32, **usual)
        # Uniform noise through a log density of width a third of it: (3 - 1)/2 nats and the
        # difference of the entropies make 0.9 bits.
        assert same == pytest.approx(0.9, abs=0.15)
        assert own < 0.35
        assert best < own

    @pytest.mark.once
    @pytest.mark.parametrize("name", ["vp", "sp", "ve"])
    def test_the_sde_bound_is_above_the_truth_and_near_it_for_the_perfect_model(
        self, name: str
    ) -> None:
        schedule = SCHEDULES[name]
        pixels, log_p = self.data.sample(400, torch.Generator().manual_seed(0))
        model = self.data.ode(schedule, start_gamma(8), 14.0)
        bound = sde_bound(model, pixels, draws=64, dtype=torch.float64)
        excess = bound.per_image + log_p / (3 * math.log(2))
        assert float(excess.mean()) > -3 * bound.monte_carlo_error
        assert float(excess.mean()) < 0.02 + 3 * bound.monte_carlo_error
        terms = bound.reconstruction + bound.prior + bound.diffusion
        assert terms == pytest.approx(bound.mean)
        other = sde_bound(
            model,
            pixels,
            draws=64,
            distribution=UniformGamma(model.gamma_min, model.gamma_max),
            dtype=torch.float64,
            seed=1,
        )
        spread = math.hypot(bound.monte_carlo_error, other.monte_carlo_error)
        assert bound.mean == pytest.approx(other.mean, abs=4 * spread)

    @pytest.mark.once
    def test_the_usual_start_of_uniform_noise_is_near_its_best(self) -> None:
        pixels, _ = self.data.sample(128, torch.Generator().manual_seed(0))
        model = self.data.ode(VariancePreserving(), start_gamma(8), 14.0)
        # For points and the noise of a bin the optimum is the variance of the bin, 1/(3 L²),
        # up to the overlap of neighbouring bins: -5.26 here.
        low, usual, high = (
            bits_per_dim(
                model,
                pixels,
                settings(dequantization="uniform", start=start, probes=0, batch_size=128),
            ).mean
            for start in (-6.1, None, -4.5)
        )
        assert usual < low - 0.05
        assert usual < high


class Wave(torch.nn.Module):
    """A network with a full Jacobian, cheap and smooth."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.mix = torch.randn(dim, dim, generator=g) / dim**0.5
        self.calls = 0

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.calls += 1
        mix = self.mix.to(x)
        return (x.flatten(1) + 0.3 * torch.sin(x.flatten(1) @ mix + t[:, None])).reshape(x.shape)


def wave_model(shape: tuple[int, ...], levels: int = 17) -> DiffusionODE:
    return DiffusionODE(
        Wave(math.prod(shape)), VariancePreserving(), start_gamma(levels), 5.0, levels=levels
    )


def images(n: int, shape: tuple[int, ...], levels: int = 17) -> Tensor:
    g = torch.Generator().manual_seed(9)
    return torch.randint(0, levels, (n, *shape), generator=g).to(torch.uint8)


@pytest.mark.parametrize("kind", ["uint16", "uint32", "int64"])
def test_wider_integers_are_the_same_pixels(kind: str) -> None:
    narrow = images(2, (1, 4, 4))
    same = narrow.numpy().astype(kind)
    model = wave_model((1, 4, 4))
    expected = bits_per_dim(model, narrow).per_image
    for pixels in (same, torch.from_numpy(same)):
        assert torch.equal(bits_per_dim(model, pixels).per_image, expected)


class Timeless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.inner(x)


class TestTypesOfStates:
    """Whatever type they come in, states are solved in that of the model, float32 at least."""

    @staticmethod
    def model() -> DiffusionODE:
        g = torch.Generator().manual_seed(0)
        net = Timeless()
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(0.3 * torch.randn(p.shape, generator=g))
        return wrap(net, "noise", "vp", levels=None, shape=(3,), gamma_min=-6.0)

    def test_half_precision_and_the_other_order_of_bytes(self) -> None:
        model, x = self.model(), torch.tensor([[0.5, -1.0, 0.25], [2.0, 0.0, -0.5]])
        few = Adams(steps=4)
        expected = density.log_prob(model, x, solver=few).log_p
        there = latents.encode(model, x, few).x
        for same in (x.numpy().astype(">f4"), x.half(), x.bfloat16()):
            assert torch.equal(density.log_prob(model, same, solver=few).log_p, expected)
            assert torch.equal(latents.encode(model, same, few).x, there)

    def test_float64_stays_where_the_network_casts_by_itself(self) -> None:
        x = torch.tensor([[0.5, -1.0, 0.25], [2.0, 0.0, -0.5]]).double().numpy()
        assert latents.encode(self.model(), x, Adams(steps=4)).x.dtype == torch.float64
        native = diffusion_ode(build_net(tiny.config()), tiny.config())
        images = torch.zeros(2, *native.shape or (), dtype=torch.float64)
        assert latents.encode(native, images, Adams(steps=4)).x.dtype == torch.float32
        assert native.log_prob(images.numpy(), solver=Adams(steps=4)).dtype == torch.float64

    def test_a_compiled_model_is_one(self) -> None:
        model, x = self.model(), torch.zeros(2, 3)
        compiled: Any = torch.compile(model, backend="eager")
        few = Adams(steps=4)
        found = density.log_prob(compiled, x, solver=few).log_p
        assert torch.equal(found, density.log_prob(model, x, solver=few).log_p)

    def test_gradients_reach_states_of_another_type(self) -> None:
        x = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
        self.model().log_prob(x, solver=Adams(steps=4)).sum().backward()
        assert x.grad is not None
        assert x.grad.dtype == torch.float64
        assert x.grad.any()

    def test_a_coarse_model_is_refused(self) -> None:
        model = wave_model((1, 4, 4))
        model.shape = (1, 4, 4)
        model.register_parameter("coarse", nn.Parameter(torch.zeros(1).bfloat16()))
        x = torch.zeros(2, 1, 4, 4)
        for work in (
            lambda: bits_per_dim(model, images(2, (1, 4, 4))),
            lambda: sde_bound(model, images(2, (1, 4, 4))),
            lambda: density.log_prob(model, x),
            lambda: latents.encode(model, x),
            lambda: sample(model, 1, log_prob=True, solver=Adams(steps=4)),
        ):
            with pytest.raises(InputError, match=r"the model is in torch\.bfloat16.*float\(\)"):
                work()
        with pytest.raises(InputError, match=r"dtype is torch\.float16"):
            sde_bound(model, images(2, (1, 4, 4)), dtype=torch.float16)

    def test_no_states(self) -> None:
        for work in (density.log_prob, latents.encode, latents.decode):
            with pytest.raises(InputError, match="there are no states"):
                work(self.model(), torch.zeros(0, 3))
            with pytest.raises(InputError, match="give a model, such as"):
                work("pretrained:digits", torch.zeros(2, 3))
        with pytest.raises(InputError, match="encode is for states"):
            latents.encode(self.model(), torch.zeros(2, 3, dtype=torch.uint8))


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 2, 5), (6,), (2, 3)])
@pytest.mark.parametrize("levels", [2, 17, 256])
def test_any_shape_and_any_number_of_levels(shape: tuple[int, ...], levels: int) -> None:
    result = bits_per_dim(wave_model(shape, levels), images(3, shape, levels))
    assert result.per_image.shape == (3,)
    assert math.isfinite(result.mean)


@pytest.mark.once
def test_a_value_depends_neither_on_batch_mates_nor_on_the_batch_size() -> None:
    model, pixels = wave_model((1, 4, 4)), images(24, (1, 4, 4))
    whole = bits_per_dim(model, pixels)
    for size in (1, 7):
        other = bits_per_dim(model, pixels, settings(batch_size=size))
        assert (whole.per_image - other.per_image).abs().max() < 1e-4
    alone = bits_per_dim(model, pixels[20:], first_index=20)
    # Another pilot, so another grid: equal within what both grids are known to miss.
    assert (whole.per_image[20:] - alone.per_image).abs().max() < 0.01
    same = bits_per_dim(model, pixels[20:], first_index=20, calibration=whole.calibration)
    assert (whole.per_image[20:] - same.per_image).abs().max() < 1e-4


def test_a_memory_map_gives_the_same_as_a_tensor() -> None:
    model, pixels = wave_model((1, 4, 4)), images(5, (1, 4, 4))
    array = pixels.numpy().copy()
    array.flags.writeable = False
    assert bits_per_dim(model, array).mean == bits_per_dim(model, pixels).mean


def test_the_sde_bound_takes_a_read_only_array_in_pieces() -> None:
    model, pixels = wave_model((1, 4, 4)), images(7, (1, 4, 4))
    array = pixels.numpy().astype(np.uint16)
    array.flags.writeable = False
    found = sde_bound(model, array, draws=2, batch_size=3)
    assert model.net.calls == 2 * 3  # draws times batches
    whole = sde_bound(model, pixels, draws=2)
    torch.testing.assert_close(found.per_image, whole.per_image, atol=1e-5, rtol=0)


def test_the_calibration_counts_its_evaluations() -> None:
    class Seen:
        stages: ClassVar[dict[str, int]] = {}

        def begin(self, stage: str, total: int | None, known: int, here: int) -> None:
            self.now = stage
            self.stages[stage] = 0

        def advance(self, count: int) -> None:
            self.stages[self.now] += count

    model, pixels = wave_model((1, 4, 4)), images(9, (1, 4, 4))
    found = bits_per_dim(model, pixels, settings(tolerance=0.05), runner=BatchRunner(Seen()))
    assert Seen.stages["ODE tn"] == 9
    assert Seen.stages["calibrating tn"] >= found.calibration.nfe


class TestSharedRunner:
    @pytest.mark.once
    @pytest.mark.parametrize(
        "change",
        [
            {"first_index": 100},
            {"settings": settings(seed=np.int64(1), tolerance=0.05)},
            {"settings": settings(importance=2, tolerance=0.05)},
            {"settings": settings(tolerance=0.4)},
            {"dtype": torch.float64},
        ],
    )
    def test_another_call_gets_its_own_numbers(self, change: dict[str, object]) -> None:
        model, pixels = wave_model((1, 4, 4)), images(4, (1, 4, 4))
        runner, usual = BatchRunner(), {"settings": settings(tolerance=0.05)}
        bits_per_dim(model, pixels, **usual, runner=runner)
        found = bits_per_dim(model, pixels, **usual | change, runner=runner)
        fresh = bits_per_dim(model, pixels, **usual | change)
        assert found.calibration == fresh.calibration
        assert found.per_image.tolist() == fresh.per_image.tolist()

    @pytest.mark.parametrize(
        "change",
        [
            {"first_index": 100},
            {"seed": 1},
            {"draws": 4},
            {"distribution": UniformGamma(start_gamma(17), 5.0)},
            {"dtype": torch.float64},
        ],
    )
    def test_another_sde_bound_gets_its_own_numbers(self, change: dict[str, object]) -> None:
        model, pixels = wave_model((1, 4, 4)), images(4, (1, 4, 4))
        runner, usual = BatchRunner(), {"draws": 2}
        sde_bound(model, pixels, **usual, runner=runner)
        found = sde_bound(model, pixels, **usual | change, runner=runner)
        fresh = sde_bound(model, pixels, **usual | change)
        assert found.per_image.tolist() == fresh.per_image.tolist()

    @pytest.mark.once
    def test_batches_of_a_smaller_pilots_grid_are_not_taken_for_those_of_another(self) -> None:
        model, pixels = wave_model((1, 4, 4)), images(16, (1, 4, 4))
        runner, chosen = BatchRunner(), settings(batch_size=4)
        few = bits_per_dim(model, pixels[:2], chosen, runner=runner)
        found = bits_per_dim(model, pixels, chosen, runner=runner)
        fresh = bits_per_dim(model, pixels, chosen)
        assert few.calibration.solver != fresh.calibration.solver
        assert found.per_image.tolist() == fresh.per_image.tolist()

    def test_the_same_call_again_computes_nothing(self) -> None:
        model, pixels = wave_model((1, 4, 4)), images(12, (1, 4, 4))
        runner, chosen = BatchRunner(), settings(batch_size=4, tolerance=0.05)
        first = bits_per_dim(model, pixels[:8], chosen, runner=runner)
        model.net.calls = 0
        again = bits_per_dim(model, pixels[:8], chosen, runner=runner)
        assert model.net.calls == 0
        assert again.per_image.tolist() == first.per_image.tolist()
        more = bits_per_dim(model, pixels, chosen, runner=runner)
        assert more.per_image[:8].tolist() == first.per_image.tolist()


@pytest.mark.once
def test_errors_by_source_are_those_of_repeated_evaluations() -> None:
    """Spread of the mean over seeds against the claimed dequantization and probe errors."""
    model, pixels = wave_model((1, 4, 4)), images(32, (1, 4, 4))
    # Coarse grids: what they miss widens the spread by less than the half that is allowed.
    results = [bits_per_dim(model, pixels, settings(seed=s, tolerance=0.1)) for s in range(16)]
    spread = torch.tensor([r.mean for r in results]).std().item()
    claimed = sum(math.hypot(r.errors.dequantization, r.errors.probe) for r in results) / 16
    assert claimed == pytest.approx(spread, rel=0.5)
    assert all(r.standard_error > r.errors.images > 0 for r in results)
    exact_result = bits_per_dim(model, pixels, settings(probes=0, repeats=4))
    assert exact_result.errors.probe == 0
    assert abs(exact_result.errors.solver) < 0.005
    repeated = bits_per_dim(model, pixels, settings(repeats=4, tolerance=0.02))
    # A new repeat draws a new probe too; its variance is not that of the dequantization.
    assert repeated.errors.dequantization < 1.5 * exact_result.errors.dequantization
    assert repeated.errors.probe == pytest.approx(results[0].errors.probe / 2, rel=0.3)


def test_ours_agrees_with_the_papers_solver_within_both_errors() -> None:
    model, pixels = wave_model((1, 4, 4)), images(8, (1, 4, 4))
    ours = bits_per_dim(model, pixels)
    paper = bits_per_dim(model, pixels, settings(solver="dopri5", tolerance=1e-6))
    difference = (ours.per_image - paper.per_image).square().mean().sqrt().item()
    assert difference < 0.006
    assert ours.nfe < paper.nfe


@pytest.mark.once
def test_k_draws_average_in_the_exponential_and_memory_does_not_see_k() -> None:
    model, pixels = wave_model((1, 2, 2)), images(3, (1, 2, 2))
    largest: list[int] = []

    def watched(x: Tensor, t: Tensor) -> Tensor:
        largest.append(len(x))
        return Wave.forward(model.net, x, t)  # type: ignore[arg-type]

    watching = model.with_net(watched)
    one = [
        bits_per_dim(watching, pixels, settings(importance=k, probes=0, batch_size=3)).per_image
        for k in (1, 6)
    ]
    assert max(largest) == 3  # never a batch of K * B above the batch size
    assert (one[1] < one[0] + 0.05).all()


def test_clean_data_is_computed_once_for_all_draws_of_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, pixels = wave_model((1, 2, 2)), images(3, (1, 2, 2))
    estimator = LogWeightEstimator(model, settings(importance=2, repeats=3).for_model(model))
    batch, seen = Batch(pixels, range(3), {}), []

    def counted(data: Tensor, *how: object) -> Tensor:
        seen.append(how[-1])
        return centres(data, *how)  # type: ignore[arg-type]

    monkeypatch.setattr(estimator_module, "clean_data", counted)
    estimator.draws(batch, Adams(steps=2), most=3)
    assert seen == [torch.float32]
    seen.clear()
    monkeypatch.setattr(sde_bound_module, "centres", counted)
    SDEBoundEstimator(model, draws=6).terms(batch)
    assert seen.count(torch.float32) == 1


@pytest.mark.once
def test_an_image_keeps_its_probe_over_its_draws() -> None:
    """The draws of one image differ by their noise alone; the note tells what is left of it."""
    model, pixels = wave_model((1, 4, 4)), images(3, (1, 4, 4))
    shared = bits_per_dim(model, pixels, settings(importance=4))
    gain = float(shared.notes[0].split("up to ")[1].split()[0])
    inside = shared.calibration.interaction / 2 * 16 * math.log(2)
    assert gain == pytest.approx(inside, abs=1e-4)
    # Fresh probes would leave all of their variance inside the logarithm.
    assert shared.calibration.interaction < shared.calibration.probe_variance
    assert bits_per_dim(model, pixels, settings(importance=4, probes=0)).notes == ()


def test_streams_of_an_image_depend_on_index_purpose_and_repeat_only() -> None:
    def numbers(*indices: int, purpose: int = 0, repeat: int = 0) -> Tensor:
        return random.per_image(
            lambda g: random.uniform((3,), g), indices, seed=5, purpose=purpose, repeat=repeat
        )

    assert (numbers(1, 2, 3)[2] == numbers(3)[0]).all()
    for other in (numbers(4), numbers(3, purpose=1), numbers(3, repeat=1)):
        assert (other != numbers(3)).all()
    many = numbers(*range(2000))
    assert many.min() > 0
    assert many.mean().item() == pytest.approx(0.5, abs=0.02)


@pytest.mark.once
def test_continuous_vectors_have_a_density_in_three_lines(mixture: exact.Mixture) -> None:
    s = VariancePreserving()
    net = lambda x, gamma: mixture.noise(x, gamma, s)  # noqa: E731
    ode = wrap(net, "noise", "vp", levels=None, gamma_min=-6.0, gamma_max=14.0)
    x = mixture.sample(16, torch.Generator().manual_seed(0))
    found = bits_per_dim(
        ode,
        x,
        settings(dequantization="none", probes=0, tolerance=1e-4),
        dtype=torch.float64,
    )
    start = torch.tensor(-6.0, dtype=torch.float64)
    truth = mixture.log_prob(s.alpha(start) * x, start, s) + 3 * s.log_alpha(start)
    torch.testing.assert_close(found.per_image, -truth / (3 * math.log(2)), atol=1e-3, rtol=0)


class Stopping:
    """Calls a function when images are done."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self.counts = False

    def begin(self, stage: str, total: int | None, known: int, here: int) -> None:
        self.counts = total is not None

    def advance(self, count: int) -> None:
        if self.counts:
            self._advance(count)


class TestTrouble:
    def test_a_nan_names_the_image_and_the_gamma(self) -> None:
        model, pixels = wave_model((1, 4, 4)), images(20, (1, 4, 4))
        pixels[18] = 0  # the only dark image, beyond the pilot

        def broken(x: Tensor, t: Tensor) -> Tensor:
            dark = x.flatten(1).mean(1) < -0.8
            out = Wave.forward(model.net, x, t)  # type: ignore[arg-type]
            early = (t[0] > 0.1) & (t[0] < 0.2)
            return torch.where(dark[:, None, None, None] & early, torch.nan, out)

        with pytest.raises(NumericalError, match=r"image 118: .*gamma = -[56]\."):
            bits_per_dim(model.with_net(broken), pixels, first_index=100)

    @pytest.mark.once
    def test_an_interrupt_keeps_what_was_done(self) -> None:
        model, pixels = wave_model((1, 4, 4)), images(12, (1, 4, 4))
        whole = bits_per_dim(model, pixels, settings(batch_size=4))

        def stop(done: int) -> None:
            stop.total += done
            if stop.total == 8:
                raise KeyboardInterrupt

        stop.total = 0
        runner = BatchRunner(Stopping(stop))
        part = bits_per_dim(model, pixels, settings(batch_size=4), runner=runner)
        assert not part.complete
        assert part.notes == ("interrupted after 8 images",)
        assert (part.per_image == whole.per_image[:8]).all()

    @pytest.mark.once
    def test_a_rough_image_is_solved_again_on_a_finer_grid(self) -> None:
        model, pixels = wave_model((1, 4, 4)), images(18, (1, 4, 4))
        pixels[17] = 16  # the only white image

        def rough(x: Tensor, t: Tensor) -> Tensor:
            out = Wave.forward(model.net, x, t)  # type: ignore[arg-type]
            white = torch.sigmoid(30 * (x.flatten(1).mean(1) - 0.6))[:, None, None, None]
            return out + white * 0.5 * torch.sin(9 * x)

        harder = model.with_net(rough)
        ours = bits_per_dim(harder, pixels, settings(batch_size=18))
        paper = bits_per_dim(harder, pixels, settings(solver="dopri5", tolerance=1e-7))
        # Its errors are 0.053, 0.004 and 0.0003 on 64, 128 and 256 steps; most are solved on 32.
        assert abs(ours.per_image[17] - paper.per_image[17]) < 0.1
        assert ours.nfe > bits_per_dim(model, pixels).nfe

    @pytest.mark.once
    def test_a_tolerance_that_was_not_reached_is_said(self) -> None:
        model, pixels = wave_model((1, 4, 4)), images(2, (1, 4, 4))
        jagged = model.with_net(
            lambda x, t: x + 0.2 * torch.sin(3000 * t)[:, None, None, None] * x
        )
        result = bits_per_dim(jagged, pixels, settings(tolerance=1e-9))
        assert "not the 1e-09 asked for" in result.notes[0]

    @pytest.mark.parametrize("start", [6.0, -20.0])
    def test_a_start_off_the_clock(self, start: float) -> None:
        with pytest.raises(InputError, match=r"must lie on the model's clock, -7\.864 to 5"):
            bits_per_dim(wave_model((1, 4, 4)), images(2, (1, 4, 4)), settings(start=start))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"dequantization": "gauss"}, "no dequantization called 'gauss': choose one of tn"),
            ({"solver": "euler"}, "no solver called 'euler'"),
            ({"closed_form": True, "importance": 5}, "the closed-form entropy is for one draw"),
            ({"importance": 0}, "n_importance must be a whole number of at least 1, got 0"),
            ({"probes": -1}, "n_probes must be a whole number of at least 0, got -1"),
            ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
            ({"tolerance": -1.0}, "the tolerance must be a positive number, got -1.0"),
            ({"seed": 2**63}, "the seed must be a whole number of 64 bits"),
        ],
    )
    def test_settings_that_make_no_sense(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(InputError, match=message):
            settings(**change)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"solver": "adams"}, r"solver must be a part such as Adams\(\)"),
            ({"dequantization": "tn", "closed_form": True}, "dequantization must be a part"),
            ({"seed": 1.5}, "seed must be a whole number of 64 bits"),
            ({"n_probes": 1.5}, "n_probes must be a whole number"),
        ],
    )
    def test_settings_of_another_type(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError, match=message):
            LikelihoodSettings(**change)

    def test_settings_take_the_integers_of_numpy(self) -> None:
        made = LikelihoodSettings(seed=np.int64(3), n_probes=np.int32(2))  # type: ignore[arg-type]
        assert json.loads(json.dumps(made.to_json()))["seed"] == 3

    def test_wrong_data(self) -> None:
        model = wave_model((1, 4, 4))
        beyond = np.array([[np.nan, 0.0], [0.0, 0.0]])
        with np.errstate(invalid="ignore"):
            integers = beyond.astype(np.int64)
        for wide in (integers, np.array([[0, 2**32]]), np.array([[2**63]], dtype=np.uint64)):
            for pixels in (wide, torch.from_numpy(wide)):
                with pytest.raises(InputError, match=r"pixels must lie in 0\.\.16"):
                    bits_per_dim(model, pixels)
        with pytest.raises(InputError, match="pass the uint8 images"):
            bits_per_dim(model, torch.rand(2, 1, 4, 4))
        with pytest.raises(InputError, match=r"0\.\.16, got 17 in image 1"):
            bits_per_dim(model, torch.tensor([[0, 3], [17, 4]]))
        with pytest.raises(InputError, match="no images"):
            bits_per_dim(model, images(0, (1, 4, 4)))
        continuous = wave_model((1, 4, 4))
        continuous.levels = None
        with pytest.raises(InputError, match="choose dequantization none"):
            bits_per_dim(continuous, images(2, (1, 4, 4)), settings(dequantization="tn"))
        with pytest.raises(InputError, match="continuous data must be floating point"):
            bits_per_dim(continuous, images(2, (1, 4, 4)))
        with pytest.raises(InputError, match="is for integer data"):
            sde_bound(continuous, images(2, (1, 4, 4)))
        with pytest.raises(InputError, match="must be even and at least 2"):
            sde_bound(model, images(2, (1, 4, 4)), draws=3)
