"""Samplers against data whose distribution and flow are known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from conftest import ALL_SCHEDULES
from how import sampler
from torch import Tensor

from idode.diffusion import exact
from idode.diffusion.model import DiffusionODE
from idode.diffusion.schedules import SCHEDULES, Schedule, VariancePreserving, start_gamma
from idode.diffusion.wrapping import wrap
from idode.errors import InputError, NumericalError
from idode.likelihood import log_prob as density
from idode.likelihood.dequantization import centres
from idode.likelihood.latents import decode, encode
from idode.ode import calibration
from idode.ode.adams import Adams
from idode.ode.dormand_prince import Dopri5
from idode.sampling import SAMPLERS
from idode.sampling.ancestral import ancestral
from idode.sampling.dpm import DPM
from idode.sampling.samplers import States, latents
from idode.sampling.samples import Samples, sample

ENDS = (-8.0, 10.0)  # little is left of the data's mean in the prior, and of noise in the data
FINE = Adams(steps=300)


def draw(
    model: DiffusionODE,
    count: int,
    *,
    solver: object = "dopri5",
    steps: int | None = None,
    likelihood: bool = False,
    probes: int = 1,
    batch_size: int = 64,
) -> Samples:
    return sample(
        model,
        count,
        seed=5,
        solver=sampler(solver, steps) if isinstance(solver, str) else solver,
        log_prob=likelihood,
        n_probes=probes,
        batch_size=batch_size,
        dtype=torch.float64,
    )


def characteristic(x: Tensor, directions: Tensor) -> Tensor:
    """Cosines and sines of projections ``(2 K, N)``: bounded, so their errors are known."""
    angles = directions @ x.T
    return torch.cat([angles.cos(), angles.sin()])


def far_from(x: Tensor, truth: Tensor, directions: Tensor) -> float:
    """Largest difference of means of the characteristic function, in standard errors."""
    a, b = characteristic(x, directions), characteristic(truth, directions)
    error = (a.var(1) / a.shape[1] + b.var(1) / b.shape[1]).sqrt()
    return float(((a.mean(1) - b.mean(1)).abs() / error).max())


def walk(model: DiffusionODE, count: int, steps: int) -> Tensor:
    """Ancestral samples of a mixture in three dimensions, divided by alpha."""
    g = torch.Generator().manual_seed(6)

    def noise(_: int = 0) -> Tensor:
        return torch.randn(count, 3, generator=g, dtype=torch.float64)

    ends = torch.tensor([model.gamma_min, model.gamma_max], dtype=torch.float64)
    x = ancestral(model, model.schedule.sigma(ends[1]) * noise(), steps, noise)
    return x / model.schedule.alpha(ends[0])


class TestDistribution:
    """All solvers draw from the mixture that the perfect model stands for."""

    how = pytest.mark.parametrize(
        ("solver", "steps"), [("dopri5", None), ("adams", 60), ("dpm", 40), ("ancestral", 200)]
    )

    @pytest.mark.once
    @how
    @ALL_SCHEDULES
    def test_samples_have_the_mixtures_distribution(
        self, solver: str, steps: int | None, schedule: Schedule, mixture: exact.Mixture
    ) -> None:
        model = mixture.ode(schedule, *ENDS)
        if solver == "ancestral":
            x = walk(model, 1500, 200)
        else:
            x = draw(model, 1500, solver=solver, steps=steps, batch_size=1500).data
        g = torch.Generator().manual_seed(9)
        directions = 2 * torch.randn(16, 3, generator=g, dtype=torch.float64)
        truth = mixture.sample(20_000, g)
        assert far_from(x, truth, directions) < 4.5
        # It must tell another distribution from the truth, or it shows nothing.
        assert far_from(1.2 * x, truth, directions) > 5

    @pytest.mark.once
    def test_ancestral_covariance_is_the_mixtures(self, mixture: exact.Mixture) -> None:
        x = walk(mixture.ode(VariancePreserving(), *ENDS), 4000, 300)
        w = mixture.log_weights.exp()
        mean = w @ mixture.means
        assert mixture.axes is not None
        within = mixture.axes @ torch.diag_embed(mixture.stds**2) @ mixture.axes.mT
        away = mixture.means - mean
        covariance = torch.einsum("m,mij->ij", w, within + away[:, :, None] * away[:, None, :])
        centred = x - mean
        products = centred[:, :, None] * centred[:, None, :]
        z = (products.mean(0) - covariance) / (products.std(0) / math.sqrt(4000))
        assert z.abs().max() < 4

    def test_ancestral_noise_is_fresh_in_every_step(self, mixture: exact.Mixture) -> None:
        """The sampler with its own streams: variances fail if steps share their noise."""
        model = exact.gaussian([0.0] * 400, 0.5).ode(VariancePreserving(), *ENDS)
        x = draw(model, 4, solver="ancestral", steps=100).data
        assert x.var() == pytest.approx(0.25, rel=4 * math.sqrt(2 / 1600) + 0.02)

    def test_ancestral_steps_follow_the_posterior_of_known_data(self) -> None:
        """With the data known, any number of steps is exact: mean and variance at gamma_min."""
        point = exact.gaussian([0.4], 0.0)
        model = point.ode(SCHEDULES["sp"], -1.0, 4.0)
        gamma = torch.tensor(-1.0, dtype=torch.float64)
        alpha, sigma = model.schedule.alpha(gamma), model.schedule.sigma(gamma)
        top = torch.tensor(4.0, dtype=torch.float64)
        for steps in (1, 3):
            g = torch.Generator().manual_seed(steps)
            normal = torch.randn(20_000, 1, generator=g, dtype=torch.float64)
            z = 0.4 * model.schedule.alpha(top) + model.schedule.sigma(top) * normal
            x = ancestral(
                model,
                z,
                steps,
                lambda _, g=g: torch.randn(20_000, 1, generator=g, dtype=torch.float64),
            )
            assert abs(x.mean() - 0.4 * alpha) < 4 * sigma / math.sqrt(20_000)
            assert abs(x.var() / sigma**2 - 1) < 4 * math.sqrt(2 / 20_000)

    def test_lattice_samples_are_its_points_with_their_probabilities(self) -> None:
        pixels = torch.tensor([[0, 3], [2, 1], [3, 3]])
        p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
        lattice = exact.Lattice(pixels, p, 4)
        model = lattice.ode(VariancePreserving(), start_gamma(4), 9.0)
        drawn = draw(model, 1000, solver="dpm", steps=30, batch_size=1000)
        assert drawn.data.dtype == torch.uint8
        seen = (drawn.data.long()[:, None, :] == pixels).all(-1).double()  # (N, 3)
        assert seen.sum() > 985  # 3 sigma in each of two dimensions: 0.5% are rounded wrongly
        z = (seen.mean(0) - p) / (p * (1 - p) / 1000).sqrt()
        assert z.abs().max() < 4


class TestPaths:
    """ODE solvers are maps: the same latent gives the same sample."""

    @pytest.mark.once
    @pytest.mark.parametrize("name", SCHEDULES)
    def test_every_solver_reaches_the_end_of_the_same_path(
        self, name: str, mixture: exact.Mixture
    ) -> None:
        model = mixture.ode(SCHEDULES[name], *ENDS)
        z = latents(model, (3,), range(8), seed=3, dtype=torch.float64)
        truth = decode(model, z, Dopri5(1e-10)).x
        for solver, error in (
            (Dopri5(), 3e-3),  # a path between two modes magnifies what is left of the step
            (Adams(steps=200), 2e-4),
            (DPM(400), 2e-3),
        ):
            assert (decode(model, z, solver).x - truth).abs().max() < error

    @pytest.mark.once
    def test_dpm_is_of_second_order(self, mixture: exact.Mixture) -> None:
        model = mixture.ode(VariancePreserving(), -6.0, 6.0)
        z = latents(model, (3,), range(16), seed=3, dtype=torch.float64)
        truth = decode(model, z, FINE).x
        errors = [
            float((decode(model, z, DPM(n)).x - truth).square().mean().sqrt())
            for n in (100, 200, 400)
        ]
        for coarse, fine in itertools.pairwise(errors):
            assert 3.2 < coarse / fine < 5.0

    def test_dpm_is_exact_in_one_step_where_the_data_is_a_point(self) -> None:
        """There u - x0 shrinks by exp(h/2), whatever the schedule."""
        model = exact.gaussian([0.4, -0.3], 0.0).ode(SCHEDULES["sp"], -5.0, 4.0)
        z = latents(model, (2,), range(4), seed=0, dtype=torch.float64)
        one = decode(model, z, DPM(1))
        low, high = model.schedule.alpha(torch.tensor([-5.0, 4.0], dtype=torch.float64))
        point = torch.tensor([0.4, -0.3], dtype=torch.float64)
        truth = low * (point + math.exp(-4.5) * (z / high - point))
        torch.testing.assert_close(one.x, truth, atol=1e-10, rtol=0)
        assert one.nfe == 1

    @pytest.mark.once
    def test_dpm_runs_in_either_direction(self, mixture: exact.Mixture) -> None:
        model = mixture.ode(VariancePreserving(), -6.0, 6.0)
        z = latents(model, (3,), range(4), seed=0, dtype=torch.float64)
        solver = DPM(400)
        x = decode(model, z, solver).x
        torch.testing.assert_close(encode(model, x, solver).x, z, atol=2e-2, rtol=0)

    def test_calibrated_adams_keeps_its_promise(
        self, mixture: exact.Mixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calibration, "FIRST", 32)  # as outside of the tests
        model = mixture.ode(VariancePreserving(), *ENDS)
        found = draw(model, 12, solver="adams")
        fine = draw(model, 12, solver=FINE)
        assert (found.x - fine.x).square().mean().sqrt() < 0.005
        assert found.nfe < fine.nfe


class TestLikelihood:
    @pytest.mark.once
    @pytest.mark.parametrize("solver", ["dopri5", "adams", "dpm"])
    def test_log_p_of_a_sample_is_its_density(self, solver: str, mixture: exact.Mixture) -> None:
        model = mixture.ode(VariancePreserving(), -6.0, 20.0)
        steps = {"dopri5": None, "adams": 200, "dpm": 300}[solver]
        drawn = draw(model, 6, solver=solver, steps=steps, likelihood=True, probes=0)
        gamma = torch.tensor(-6.0, dtype=torch.float64)
        truth = mixture.log_prob(drawn.x, gamma, model.schedule)
        again = density.log_prob(model, drawn.x, solver=FINE).log_p
        assert drawn.log_p is not None
        # Second order: the end of the path is off by 1e-3, and so is what is known about it.
        tolerance = 0.02 if solver == "dpm" else 1e-3
        torch.testing.assert_close(drawn.log_p, truth, atol=tolerance, rtol=0)
        torch.testing.assert_close(drawn.log_p, again, atol=tolerance, rtol=0)
        # Of the data, which are the states over alpha.
        log_alpha = float(model.schedule.log_alpha(gamma))
        bits = -(drawn.log_p + 3 * log_alpha) / (3 * math.log(2))
        torch.testing.assert_close(drawn.bits_per_dim, bits)

    @pytest.mark.once
    def test_probes_average_to_the_exact_value(self, mixture: exact.Mixture) -> None:
        model = mixture.ode(VariancePreserving(), -4.0, 6.0)
        how = {"solver": "adams", "steps": 30, "likelihood": True}
        truth = draw(model, 4, probes=0, **how)
        many = draw(model, 4, probes=100, **how)
        torch.testing.assert_close(many.x, truth.x)
        assert many.log_p is not None
        assert (many.log_p - truth.log_p).abs().max() < 0.7
        assert (draw(model, 4, probes=1, **how).log_p - truth.log_p).abs().max() > 1e-3

    @pytest.mark.once
    def test_bits_of_lattice_samples_are_their_code_lengths(self) -> None:
        g = torch.Generator().manual_seed(2)
        pixels = torch.unique(torch.randint(0, 8, (12, 3), generator=g), dim=0)
        p = torch.rand(len(pixels), generator=g, dtype=torch.float64) + 0.1
        lattice = exact.Lattice(pixels, p / p.sum(), 8)
        model = lattice.ode(VariancePreserving(), start_gamma(8), 16.0)
        drawn = draw(model, 24, solver=FINE, likelihood=True, probes=0)
        where = (drawn.data.long()[:, None, :] == pixels).all(-1)
        known = where.any(1)  # a rare sample is rounded to a neighbour of its point
        truth = -lattice.probabilities[where[known].double().argmax(1)].log2() / 3
        assert drawn.bits_per_dim is not None
        assert known.sum() > 20
        torch.testing.assert_close(drawn.bits_per_dim[known], truth, atol=2e-3, rtol=0)

    def test_ancestral_sampling_refuses_likelihoods(self, mixture: exact.Mixture) -> None:
        model = mixture.ode(VariancePreserving(), *ENDS)
        with pytest.raises(InputError, match="choose dopri5"):
            draw(model, 1, solver="ancestral", likelihood=True)


class TestBookkeeping:
    @pytest.mark.parametrize("solver", ["adams", "dpm", "ancestral"])
    def test_a_sample_does_not_depend_on_its_batch_or_on_how_many_follow(
        self, solver: str, mixture: exact.Mixture
    ) -> None:
        model = mixture.ode(VariancePreserving(), *ENDS)
        few = draw(model, 3, solver=solver, steps=12, batch_size=2)
        many = draw(model, 7, solver=solver, steps=12, batch_size=7)
        torch.testing.assert_close(few.x, many.x[:3], atol=1e-12, rtol=0)
        assert few.nfe == many.nfe == {"adams": 18, "dpm": 12, "ancestral": 12}[solver]
        assert len(torch.unique(many.x, dim=0)) == 7

    def test_calibrated_steps_do_not_depend_on_how_many_samples_there_are(
        self, mixture: exact.Mixture
    ) -> None:
        model = mixture.ode(VariancePreserving(), *ENDS)
        one, few, many = (draw(model, n, solver=Adams()) for n in (1, 5, 20))
        assert one.nfe == few.nfe == many.nfe
        torch.testing.assert_close(few.x, many.x[:5], atol=1e-12, rtol=0)
        torch.testing.assert_close(one.x, many.x[:1], atol=1e-12, rtol=0)

    def test_likelihoods_do_not_depend_on_the_batch(self, mixture: exact.Mixture) -> None:
        model = mixture.ode(VariancePreserving(), *ENDS)
        how = {"solver": "adams", "steps": 12, "likelihood": True}
        few, many = (draw(model, 4, batch_size=b, **how) for b in (1, 4))
        torch.testing.assert_close(few.log_p, many.log_p)

    def test_batches_of_others_that_arrive_late_are_put_in_their_place(
        self, mixture: exact.Mixture
    ) -> None:
        """The first of two processes, which is done before the second has written anything."""
        model = mixture.ode(VariancePreserving(), *ENDS)
        how = {"solver": DPM(4), "log_prob": True, "batch_size": 2, "dtype": torch.float64}
        alone = sample(model, 9, **how)

        class First:
            alone = False
            waits, read_by_all = 0, False

            def mine(self, number: int) -> bool:
                return number % 2 == 0

            def put(self, lo: int, hi: int, states: States) -> None:
                pass

            def wait(self) -> None:
                self.waits += 1
                self.read_by_all = self.waits > 1

            def get(self, lo: int, hi: int) -> States | None:
                assert alone.log_p is not None
                assert not self.read_by_all  # from then on the other may delete them
                late = States(alone.x[lo:hi], alone.log_p[lo:hi], alone.nfe)
                return late if self.waits else None

        parts = First()
        shared = sample(model, 9, parts=parts, **how)
        assert parts.read_by_all
        torch.testing.assert_close(shared.x, alone.x, rtol=0, atol=1e-9)  # rounding of products
        torch.testing.assert_close(shared.log_p, alone.log_p, rtol=0, atol=1e-9)

    def test_states_keep_dtype_and_decode_to_the_nearest_level(self) -> None:
        lattice = exact.Lattice(torch.tensor([[0, 16]]), torch.ones(1, dtype=torch.float64), 17)
        model = lattice.ode(SCHEDULES["sp"], start_gamma(17), 6.0)
        g = torch.Generator().manual_seed(0)
        drawn = sample(model, 40, seed=g, solver=DPM())
        gamma = torch.tensor(model.gamma_min, dtype=torch.float64)
        clean = drawn.x.double() / model.schedule.alpha(gamma)
        table = centres(torch.arange(17), 17, torch.float64)
        nearest = (clean[..., None] - table).abs().argmin(-1)
        assert drawn.x.dtype == torch.float32
        assert torch.equal(drawn.data.long(), nearest)
        model.levels = 1000
        assert sample(model, 2, seed=g, solver=DPM()).data.dtype == torch.int32

    def test_wrong_wishes_are_refused(self, mixture: exact.Mixture) -> None:
        model = mixture.ode(VariancePreserving(), *ENDS)
        for wish, said in (
            ({"solver": "euler"}, "choose one of adams, dopri5"),
            ({"solver": "euler", "steps": 9}, "choose one of adams, dopri5"),
            ({"solver": "dpm", "steps": 0}, "at least 1 step"),
            (
                {"solver": "dopri5", "steps": 9},
                "dopri5 has no steps: leave it out",
            ),
            ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
            ({"likelihood": True, "probes": -1}, "n_probes must be a whole number of at least 0"),
        ):
            with pytest.raises(InputError, match=said):
                draw(model, 1, **wish)
        for count in (0, 2.5, "a"):
            with pytest.raises(InputError, match=f"count must be a whole .* 1, got {count!r}"):
                draw(model, count)
        for seed in (1.5, 2**64):
            with pytest.raises(InputError, match="the seed must be a whole number of 64 bits"):
                sample(model, 1, seed=seed)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="give a model, such as"):
            sample("pretrained:digits", 1)  # type: ignore[arg-type]

    def test_a_count_may_be_an_integer_of_numpy(self, mixture: exact.Mixture) -> None:
        model = mixture.ode(VariancePreserving(), *ENDS)
        few = Adams(steps=4)
        assert torch.equal(
            sample(model, np.int64(2), solver=few).x, sample(model, 2, solver=few).x
        )

    @pytest.mark.parametrize("solver", SAMPLERS)
    def test_a_network_that_answers_nonsense_is_reported(self, solver: str) -> None:
        model = wrap(lambda x, t: x * math.nan, "noise", "vp", levels=4, shape=(2,))
        with pytest.raises(NumericalError, match="not finite"):
            sample(model, 2, solver=sampler(solver))
