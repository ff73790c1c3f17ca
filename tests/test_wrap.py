"""A network trained elsewhere is read exactly, or refused in a sentence; never wrong silently."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from conftest import ALL_SCHEDULES, f64
from torch import Tensor, nn

from idode.diffusion import exact
from idode.diffusion.clocks import CLOCKS, LinearBeta, NoiseLevel, StraightTime, TableTime
from idode.diffusion.paths import PathSchedule, PathTime
from idode.diffusion.schedules import SCHEDULES, Schedule, start_gamma
from idode.diffusion.wrapping import DATA_RANGES, DataRange, wrap
from idode.errors import InputError
from idode.evaluation.likelihood import bits_per_dim
from idode.likelihood.estimator import LikelihoodSettings
from idode.likelihood.log_prob import log_prob
from idode.numerics import like
from idode.ode.adams import Adams

DDPM = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64), 0)
FAR = exact.mixture([0.5, 0.5], [[5.0, 4.0], [-5.0, -4.5]], [0.3, 0.6])


def straight_velocity(x: Tensor, t: Tensor) -> Tensor:
    """What flow matching learns of FAR, with data at time one."""
    clock = StraightTime(data_at_one=True)
    gamma = clock.gamma(t.double())
    return FAR.velocity(x, gamma, SCHEDULES["sp"]) / like(clock.dtime(gamma), x)


class TestRange:
    def test_it_follows_from_the_clock_and_the_scale_of_the_data(self) -> None:
        """1/2 e^-gamma s² is 1e-8 on a clock that reaches noise, 1e-5 on one that may not."""
        flow = wrap(straight_velocity, "velocity", "sp", "straight-data-at-one", levels=None,
                    data_scale=5.0)  # fmt: skip
        assert 0.5 * math.exp(-flow.gamma_max) * 25 == pytest.approx(1e-8)
        assert flow.gamma_min < -18
        edm = wrap(nn.Identity(), "data", "ve", "noise-level", data_scale=0.5)
        assert 0.5 * math.exp(-edm.gamma_max) * 0.25 == pytest.approx(1e-5)
        table = wrap(nn.Identity(), "noise", "vp", TableTime(DDPM))
        assert table.gamma_max == pytest.approx(min(TableTime(DDPM).known()[1], 10.82), abs=0.01)

    def test_log_p_of_far_modes_is_right_by_default(self) -> None:
        x = FAR.sample(16, torch.Generator().manual_seed(0))
        truth = FAR.log_prob(x, f64(-60.0)[0], SCHEDULES["sp"])
        model = wrap(straight_velocity, "velocity", "sp", "straight-data-at-one", levels=None,
                     data_scale=5.0)  # fmt: skip
        found = log_prob(model, x, clean=True)
        assert float((found.log_p - truth).square().mean().sqrt()) < 1e-3
        assert found.prior_error < 1e-3

    def test_an_early_end_shows_in_the_reported_error(self) -> None:
        x = FAR.sample(16, torch.Generator().manual_seed(0))
        truth = FAR.log_prob(x, f64(-60.0)[0], SCHEDULES["sp"])
        model = wrap(straight_velocity, "velocity", "sp", "straight-data-at-one", levels=None,
                     gamma_max=5.0)  # fmt: skip
        found = log_prob(model, x, clean=True)
        away = float((found.log_p - truth).square().mean().sqrt())
        assert away > 0.1
        assert away / 3 < found.prior_error < 3 * away
        # The solver's own error is not the matter.
        assert float(found.solver_error.max()) < 0.01
        assert found.latent_moments[1] == pytest.approx(1, abs=0.5)

    def test_it_becomes_a_note_where_it_matters(self) -> None:
        model = wrap(straight_velocity, "velocity", "sp", "straight-data-at-one", levels=None,
                     gamma_min=-8.0, gamma_max=2.0)  # fmt: skip
        x = FAR.sample(8, torch.Generator().manual_seed(0))
        how = LikelihoodSettings(n_probes=0, solver=Adams(steps=30))
        found = bits_per_dim(model, x, how, dtype=torch.float64)
        (note,) = found.notes
        assert "before the data has drowned in noise" in note
        assert f"{found.errors.prior:.4f} bits/dim: choose a larger gamma_max" in note
        # The errors of the means: 1/2 (m² + v²/2) nats of what is left of each coordinate.
        left = x * math.exp(-1.0)
        nats = 0.5 * float((left.mean(0) ** 2 + left.var(0, correction=0) ** 2 / 2).sum())
        assert found.errors.prior == pytest.approx(nats / (2 * math.log(2)))


def affine(name: DataRange, levels: int) -> tuple[float, float]:
    """Scale and shift from the middles of bins to a convention, by its definition."""
    ends = DATA_RANGES[name] if isinstance(name, str) else name
    assert ends is not None
    low, high = ends
    pixels = torch.tensor([0.0, levels - 1.0], dtype=torch.float64)
    theirs, ours = low + (high - low) * pixels / (levels - 1), (2 * pixels + 1) / levels - 1
    scale = float((theirs[1] - theirs[0]) / (ours[1] - ours[0]))
    return scale, float(theirs[0] - scale * ours[0])


class TestScale:
    @ALL_SCHEDULES
    @pytest.mark.parametrize("levels", [17, 256])
    @pytest.mark.parametrize("name", ["[-1, 1]", "[0, 1]", (-2.0, 3.0)])
    def test_state_noise_and_time_are_converted_exactly(
        self, schedule: Schedule, levels: int, name: DataRange
    ) -> None:
        """The perfect network of the rescaled lattice becomes the perfect one of ours."""
        pixels = torch.tensor([[0, 3], [5, 1], [levels - 1, 9], [7, 7]])
        lattice = exact.Lattice(pixels, f64(0.4, 0.3, 0.2, 0.1), levels)
        scale, shift = affine(name, levels)
        ours = lattice.mixture
        theirs = exact.Mixture(ours.log_weights, scale * ours.means + shift, scale * ours.stds)
        names = {id(value): key for key, value in SCHEDULES.items()}
        model = wrap(
            lambda x, t: theirs.noise(x, t, schedule), "noise", names[id(schedule)], "gamma",
            levels=levels, data_range=name,
        )  # fmt: skip
        truth = lattice.ode(schedule, model.gamma_min, model.gamma_max)
        gamma = torch.linspace(model.gamma_min, 6.0, 9, dtype=torch.float64)
        x = torch.randn(9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        x = schedule.alpha(gamma)[:, None] * ours.means[0] + schedule.sigma(gamma)[:, None] * x
        torch.testing.assert_close(
            model.velocity(x, gamma), truth.velocity(x, gamma), atol=1e-6, rtol=1e-6
        )

    @pytest.mark.parametrize("predicts", ["velocity", "data", "score", "normalized-velocity"])
    def test_every_prediction_is_converted(self, predicts: str) -> None:
        from idode.diffusion.predictors import PREDICTORS, SCORE, convert

        levels, schedule, clock = 17, SCHEDULES["sp"], CLOCKS["straight"]
        lattice = exact.Lattice(torch.tensor([[0, 3], [5, 16]]), f64(0.4, 0.6), levels)
        scale, shift = affine("[0, 1]", levels)
        ours = lattice.mixture
        theirs = exact.Mixture(ours.log_weights, scale * ours.means + shift, ours.stds)

        def net(x: Tensor, t: Tensor) -> Tensor:
            gamma = clock.gamma(t)
            if predicts == "velocity":
                return theirs.velocity(x, gamma, schedule) / like(clock.dtime(gamma), x)
            score = theirs.score(x, gamma, schedule)
            return convert(score, x, gamma, schedule, SCORE, PREDICTORS[predicts])

        model = wrap(net, predicts, "sp", "straight", levels=levels, data_range="[0, 1]")
        truth = lattice.ode(schedule, model.gamma_min, model.gamma_max)
        gamma = torch.linspace(-7, 7, 5, dtype=torch.float64)
        x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        torch.testing.assert_close(
            model.velocity(x, gamma), truth.velocity(x, gamma), atol=1e-5, rtol=1e-5
        )

    def test_ignoring_it_costs_bits(self) -> None:
        levels = 17
        pixels = torch.tensor([[0, 3], [5, 16], [9, 9]])
        lattice = exact.Lattice(pixels, f64(0.4, 0.3, 0.3), levels)
        scale, shift = affine("[-1, 1]", levels)
        theirs = exact.Mixture(
            lattice.mixture.log_weights, scale * lattice.mixture.means + shift,
            lattice.mixture.stds,
        )  # fmt: skip
        net = lambda x, t: theirs.noise(x, t, SCHEDULES["vp"])  # noqa: E731
        exactly = LikelihoodSettings(n_probes=0, solver=Adams(steps=60))
        data, _ = lattice.sample(8, torch.Generator().manual_seed(0))
        right, wrong = (
            bits_per_dim(wrap(net, "noise", "vp", levels=levels, data_range=name), data, exactly,
                         dtype=torch.float64).mean
            for name in ("[-1, 1]", "bin-centres")
        )  # fmt: skip
        assert right == pytest.approx(lattice.entropy(), abs=0.05)
        assert wrong > right + 0.05

    def test_what_cannot_be_called_is_no_network(self) -> None:
        with pytest.raises(InputError, match="give a module or a function, got 3"):
            wrap(3, "noise", "vp")  # type: ignore[arg-type]

    def test_bad_ranges(self) -> None:
        net = nn.Identity()
        with pytest.raises(InputError, match=r"no data range called 'centred'.*choose one of"):
            wrap(net, "noise", "vp", data_range="centred")
        with pytest.raises(InputError, match="highest level, in this order, got 1"):
            wrap(net, "noise", "vp", data_range=(1.0, -1.0))
        with pytest.raises(InputError, match="continuous data has none"):
            wrap(net, "noise", "vp", levels=None, gamma_min=-8.0, data_range="[0, 1]")


class TestLeastNoise:
    """Eight isolated levels of 256: three bits, of which a DDPM table sees 4.72."""

    LEVELS = torch.arange(8)[:, None] * 32 + 16
    SETTINGS = LikelihoodSettings(n_probes=0, solver=Adams(steps=80))

    def model(self, *, extend: bool):
        lattice = exact.Lattice(self.LEVELS, torch.full((8,), 1 / 8, dtype=torch.float64), 256)
        clock = TableTime(DDPM)

        def net(x: Tensor, t: Tensor) -> Tensor:
            assert float(t.min()) > -1e-3, "the network has no times before its first"
            return lattice.mixture.noise(x, clock.gamma(t), SCHEDULES["vp"])

        return wrap(net, "noise", "vp", clock, extend=extend)

    def test_a_loose_bound_says_by_how_much(self) -> None:
        found = bits_per_dim(self.model(extend=False), self.LEVELS, self.SETTINGS,
                             dtype=torch.float64)  # fmt: skip
        assert found.mean == pytest.approx(4.72, abs=0.02)
        (note,) = [note for note in found.notes if "least noise" in note]
        assert "loose by up to 1.72 bits/dim" in note
        assert "extend=True" in note
        assert "learned dequantization" in note

    def test_the_network_held_at_its_last_time_reaches_the_truth(self) -> None:
        model = self.model(extend=True)
        assert model.gamma_min == start_gamma(256)
        found = bits_per_dim(model, self.LEVELS, self.SETTINGS, dtype=torch.float64)
        assert found.mean == pytest.approx(3.0, abs=0.01)
        assert not any("least noise" in note for note in found.notes)


class TestSentences:
    def test_linear_beta_ends_at_time_one(self) -> None:
        low, high = LinearBeta().known()
        assert LinearBeta().time(f64(low, high)).tolist() == pytest.approx([1e-5, 1.0])
        with pytest.raises(InputError, match=r"covers gamma from -13.815 to 10.050"):
            wrap(nn.Identity(), "noise", "vp", "linear-beta", gamma_max=12.0)

    def test_a_table_of_zero_terminal_snr_ends_before_it(self) -> None:
        clock = TableTime(torch.cat([DDPM, torch.zeros(1)]))
        assert clock.known() == TableTime(DDPM).known()
        assert math.isfinite(wrap(nn.Identity(), "noise", "vp", clock).gamma_max)
        for bad in (torch.tensor([1.0, 0.5]), torch.tensor([0.5, 0.0, 0.2]), torch.ones(2, 2)):
            with pytest.raises(InputError, match="one decreasing row"):
                TableTime(bad)

    def test_noise_levels_are_kept_to_where_they_are_known(self) -> None:
        with pytest.raises(InputError, match="covers gamma from -12.429 to 8.764"):
            wrap(nn.Identity(), "data", "ve", NoiseLevel(0.002, 80.0), gamma_max=9.0)

    def test_a_float64_network_just_works(self) -> None:
        net = nn.Linear(2, 2).double()
        model = wrap(lambda_module(lambda x, t: net(x), net), "noise", "vp", levels=None,
                     gamma_min=-6.0)  # fmt: skip
        assert model.velocity(torch.zeros(3, 2), torch.tensor(0.0)).dtype == torch.float32

    def test_a_half_precision_network(self) -> None:
        with pytest.raises(InputError, match=r"are torch.bfloat16, too coarse.*net.float\(\)"):
            wrap(nn.Linear(2, 2).bfloat16(), "noise", "vp")

    def test_training_mode(self) -> None:
        net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
        with pytest.raises(InputError, match=r"training mode and has a Dropout.*net.eval\(\)"):
            wrap(net, "noise", "vp")
        wrap(net.eval(), "noise", "vp")

    def test_a_network_that_changes_its_mind(self) -> None:
        model = wrap(lambda x, t: x + torch.randn_like(x), "noise", "vp", levels=None,
                     gamma_min=-6.0)  # fmt: skip
        with pytest.raises(InputError, match="other values for the same input"):
            log_prob(model, torch.zeros(2, 2))
        with pytest.raises(InputError, match="other values for the same input"):
            bits_per_dim(model, torch.zeros(2, 2))

    def test_an_output_that_is_no_tensor_or_too_large(self) -> None:
        gamma, x = torch.tensor(0.0), torch.zeros(2, 3, 4, 4)
        model = wrap(lambda x, t: SimpleNamespace(sample=x), "noise", "vp")
        with pytest.raises(InputError, match=r"returned a SimpleNamespace.*net\(x, t\).sample"):
            model.velocity(x, gamma)
        model = wrap(lambda x, t: torch.cat([x, x], dim=1), "noise", "vp")
        with pytest.raises(InputError, match=r"shape \(2, 6, 4, 4\).*first half of the channels"):
            model.velocity(x, gamma)

    def test_a_scheduler_is_no_clock(self) -> None:
        with pytest.raises(InputError, match=r"got a SimpleNamespace: .*idode.adapt\(\(net, sch"):
            wrap(nn.Identity(), "noise", "vp", SimpleNamespace())  # type: ignore[arg-type]

    def test_a_closure_over_labels(self) -> None:
        labels = torch.zeros(5, 3)
        model = wrap(lambda x, t: x + labels, "noise", "vp", levels=None, gamma_min=-6.0)
        with pytest.raises(InputError, match=r"\(8, 3\) with no condition.*passed as a keyword"):
            log_prob(model, torch.zeros(9, 3))

    def test_a_path_that_is_not_gaussian_has_no_noise(self) -> None:
        model = wrap(lambda x, t: x, "velocity", "sp", "straight", gaussian_path=False)
        model.velocity(torch.zeros(2, 3), torch.tensor(0.0))
        with pytest.raises(InputError, match="cannot be read as a noise.*SDE bound"):
            model.sde_bound(torch.zeros(2, 3, dtype=torch.uint8))


def lambda_module(call, net: nn.Module) -> nn.Module:
    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return call(x, t)

    return Called()


class TestPaths:
    def test_a_path_given_by_functions_is_the_one_in_closed_form(self) -> None:
        """Straight, with data at one, from its two scales alone."""
        clock, known = PathTime(lambda t: t, lambda t: 1 - t), StraightTime(data_at_one=True)
        gamma = torch.linspace(-14, 14, 15, dtype=torch.float64)
        schedule, straight = PathSchedule(clock), SCHEDULES["sp"]
        for ours, theirs in (
            (clock.time(gamma), known.time(gamma)),
            (clock.dtime(gamma), known.dtime(gamma)),
            (schedule.log_alpha(gamma), straight.log_alpha(gamma)),
            (schedule.dlog_alpha(gamma), straight.dlog_alpha(gamma)),
        ):
            torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-7)
        assert clock.known() == (-math.inf, math.inf)

    def test_noise_left_at_the_data_ends_the_clock(self) -> None:
        clock = PathTime(lambda t: t, lambda t: 1 - 0.9 * t)
        assert clock.known()[0] == pytest.approx(2 * math.log(0.1))
        assert not clock.reaches_data
        assert clock.reaches_noise
        with pytest.raises(InputError, match="does not grow"):
            PathTime(torch.ones_like, lambda t: 1 + torch.sin(9 * t) / 2)
