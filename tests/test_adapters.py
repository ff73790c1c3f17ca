"""Each library's convention, by networks known in closed form behind stand-ins of its classes.

The stand-ins have the attributes that adapters look at, and call and answer as the library's own
objects do; ``make adapters`` compares with the libraries themselves.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import f64
from torch import Tensor, nn

import idode
from idode.adapters import ADAPTERS
from idode.adapters.adapt import open_model
from idode.diffusion import exact
from idode.diffusion.predictors import NOISE, VELOCITY, convert
from idode.diffusion.schedules import SCHEDULES, Schedule
from idode.errors import InputError
from idode.evaluation.result import Evaluation
from idode.likelihood.bits_per_dim import BitsPerDim
from idode.likelihood.estimator import LikelihoodSettings
from idode.numerics import like
from idode.ode.adams import Adams
from idode.runs.run import open_run
from idode.runs.sharing import save_pretrained

VP, SP, VE = SCHEDULES["vp"], SCHEDULES["sp"], SCHEDULES["ve"]
LEVELS = 17
LATTICE = exact.Lattice(torch.tensor([[0, 3], [5, 16], [9, 9]]), f64(0.5, 0.3, 0.2), LEVELS)
VECTORS = exact.mixture([0.6, 0.4], [[0.6, 0.2], [-0.5, 0.1]], [0.04, 0.09])
ABAR = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64), 0)


def scaled(low: float, high: float) -> exact.Mixture:
    """The lattice as a network trained on [low, high] knows it."""
    points = low + (high - low) * LATTICE.pixels.double() / (LEVELS - 1)
    return exact.mixture(LATTICE.probabilities, points, torch.zeros(len(points)))


def table_gamma(t: Tensor) -> Tensor:
    """Gamma at a fractional step of the DDPM table."""
    gammas = torch.log1p(-ABAR) - torch.log(ABAR)
    left = t.detach().floor().long().clamp(0, 998)
    return gammas[left] + (t - left) * (gammas[left + 1] - gammas[left])


class Perfect(nn.Module):
    """What a mixture's perfect network says, from the noise and the state."""

    def __init__(self, data: exact.Mixture, schedule: Schedule, gamma, says) -> None:
        super().__init__()
        self.data, self.schedule, self.gamma, self.says = data, schedule, gamma, says
        self.config = {"sample_size": None, "in_channels": 2}
        self.channels, self.self_condition = 2, False

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        gamma = self.gamma(time)
        eps = self.data.noise(x, gamma, self.schedule)
        alpha, sigma = (like(f(gamma), x) for f in (self.schedule.alpha, self.schedule.sigma))
        return self.says(x, eps, alpha, sigma)


def noise(x: Tensor, eps: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
    return eps


def clean(x: Tensor, eps: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
    return (x - sigma * eps) / alpha


def v(x: Tensor, eps: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
    return alpha * eps - sigma * clean(x, eps, alpha, sigma)


def same(
    model: idode.DiffusionODE, data: exact.Mixture, schedule: Schedule, **condition: Tensor
) -> None:
    """The model is the perfect one of this data, at states all along its clock, to 1e-5."""
    low, high = model.gamma_min, min(model.gamma_max, 8.0)
    gamma = torch.linspace(low, high, 7, dtype=torch.float64)
    eps = torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = like(schedule.alpha(gamma), eps) * data.means[0] + like(schedule.sigma(gamma), eps) * eps
    truth = convert(data.noise(x, gamma, schedule), x, gamma, schedule, NOISE, VELOCITY)
    found = model.velocity(x, gamma, **condition)
    torch.testing.assert_close(found, truth, atol=1e-5, rtol=1e-5)


def scheduler(kind: str, **config: object) -> object:
    """A scheduler of diffusers: a class of this name, a configuration, perhaps a table."""
    made = type(kind, (), {})()
    made.config = {"num_train_timesteps": 1000, **config}
    if "Flow" not in kind and "Ve" not in kind:
        made.alphas_cumprod = ABAR
    return made


class Output(SimpleNamespace):
    """What models of diffusers return."""


class Wrapped(Perfect):
    """With the output in an object, as diffusers has it, and variances beside it if asked for."""

    variances = False

    def forward(self, x: Tensor, time: Tensor) -> Output:  # type: ignore[override]
        said = super().forward(x, time)
        return Output(sample=torch.cat([said, said], dim=1) if self.variances else said)


class TestDiffusers:
    @pytest.mark.parametrize(
        ("prediction", "says"), [("epsilon", noise), ("v_prediction", v), ("sample", clean)]
    )
    @pytest.mark.parametrize("variances", [False, True])
    def test_a_table_of_any_prediction(self, prediction, says, variances) -> None:
        net = Wrapped(scaled(-1, 1), VP, table_gamma, says)
        net.variances = variances
        pair = (net, scheduler("DDPMScheduler", prediction_type=prediction))
        same(idode.adapt(pair, levels=LEVELS), LATTICE.mixture, VP)

    def test_flow_matching(self, capsys: pytest.CaptureFixture[str]) -> None:
        gamma = lambda t: 2 * torch.logit(t / 1000)  # noqa: E731
        net = Wrapped(scaled(-1, 1), SP, gamma, lambda x, e, a, s: e - clean(x, e, a, s))
        pair = (net, scheduler("FlowMatchEulerDiscreteScheduler", shift=3.0))
        model = idode.adapt(pair, levels=LEVELS)
        same(model, LATTICE.mixture, SP)
        assert capsys.readouterr().out == model.description + "\n"
        said = (
            "predicts velocity, path sp, clock StraightTime, pixels of 17 levels scaled to [-1, 1]"
        )
        assert said in model.description

    def test_variance_exploding(self) -> None:
        net = Wrapped(scaled(0, 1), VE, lambda t: 2 * t.log(), lambda x, e, a, s: -e / s)
        pair = (net, scheduler("ScoreSdeVeScheduler", sigma_min=0.01, sigma_max=50.0))
        same(idode.adapt(pair, levels=LEVELS, verbose=False), LATTICE.mixture, VE)

    def test_a_pipeline(self) -> None:
        net = Wrapped(scaled(-1, 1), VP, table_gamma, noise)
        pipeline = SimpleNamespace(unet=net, scheduler=scheduler("DDIMScheduler"))
        same(idode.adapt(pipeline, levels=LEVELS), LATTICE.mixture, VP)
        pipeline.vae = object()
        with pytest.raises(InputError, match="diffuses latents of an autoencoder, not pixels"):
            idode.adapt(pipeline)

    def test_what_cannot_be_read(self) -> None:
        net = Wrapped(scaled(-1, 1), VP, table_gamma, noise)
        net.config["time_embedding_type"] = "learned"
        with pytest.raises(InputError, match="learned time embedding"):
            idode.adapt((net, scheduler("DDPMScheduler")))
        del net.config["time_embedding_type"]
        with pytest.raises(InputError, match="prediction_type of 'x' is not known"):
            idode.adapt((net, scheduler("DDPMScheduler", prediction_type="x")))
        with pytest.raises(InputError, match="LCMScheduler with these settings follows no ODE"):
            idode.adapt((net, scheduler("LCMScheduler")))
        with pytest.raises(InputError, match="continuous times"):
            idode.adapt((net, scheduler("EulerDiscreteScheduler", timestep_type="continuous")))
        odd = scheduler("KarrasVeScheduler")
        del odd.config["num_train_timesteps"]  # type: ignore[attr-defined]
        with pytest.raises(InputError, match="is not recognised"):
            idode.adapt((net, odd))
        bare = type("UNet2DModel", (nn.Module,), {"__module__": "diffusers.models"})()
        with pytest.raises(InputError, match=r"UNet2DModel alone.*pair \(model, scheduler\)"):
            idode.adapt(bare)

    def test_a_folder_by_its_name(self, tmp_path, monkeypatch) -> None:
        with pytest.raises(InputError, match="no foreign model: write diffusers:FOLDER"):
            open_model("runs/x")
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(InputError, match="diffusers is not installed"):
            open_model(f"diffusers:{tmp_path}")
        monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
        with pytest.raises(InputError, match=r"has no model_index.json"):
            open_model(f"diffusers:{tmp_path}")
        net = Wrapped(scaled(-1, 1), VP, table_gamma, noise)
        pipeline = SimpleNamespace(unet=net, scheduler=scheduler("DDPMScheduler"))
        loader = SimpleNamespace(from_pretrained=lambda folder, **_: pipeline)
        module = SimpleNamespace(DiffusionPipeline=loader)
        monkeypatch.setitem(sys.modules, "diffusers", module)
        (tmp_path / "model_index.json").write_text("{}")
        assert open_model(f"diffusers:{tmp_path}").levels == 256


class Diffusion(nn.Module):
    """A GaussianDiffusion of denoising-diffusion-pytorch."""

    def __init__(self, net: nn.Module, objective: str, normalised: bool) -> None:
        super().__init__()
        self.model, self.objective, self.channels, self.image_size = net, objective, 2, 1
        self.register_buffer("alphas_cumprod", ABAR)
        self.normalize = (lambda x: 2 * x - 1) if normalised else (lambda x: x)


class TestDenoisingDiffusionPytorch:
    @pytest.mark.parametrize(
        ("objective", "says"), [("pred_noise", noise), ("pred_v", v), ("pred_x0", clean)]
    )
    @pytest.mark.parametrize("normalised", [True, False])
    def test_every_objective(self, objective, says, normalised) -> None:
        net = Perfect(scaled(-1 if normalised else 0, 1), VP, table_gamma, says)
        model = idode.adapt(Diffusion(net, objective, normalised), levels=LEVELS)
        same(model, LATTICE.mixture, VP)

    def test_continuous_time(self) -> None:
        net = Perfect(scaled(-1, 1), VP, lambda t: -t, noise)
        thing = nn.Module()
        thing.model, thing.channels, thing.image_size = net, 2, 1
        thing.log_snr = lambda t: -torch.log(torch.expm1(1e-4 + 10 * t**2))
        model = idode.adapt(thing, levels=LEVELS)
        same(model, LATTICE.mixture, VP)
        assert model.gamma_max < 10.01

    def test_elucidated(self) -> None:
        net = Perfect(scaled(-1, 1), VE, lambda t: 2 * t.log(), clean)
        thing = nn.Module()
        thing.net, thing.channels, thing.image_size = net, 2, 1
        thing.sigma_min, thing.sigma_max = 0.002, 80.0
        thing.preconditioned_network_forward = net.forward
        same(idode.adapt(thing, levels=LEVELS), LATTICE.mixture, VE)

    def test_classifier_free_guidance(self) -> None:
        """Always on [-1, 1]; its network drops labels at random unless it is told not to."""

        class Unet(Perfect):
            cond_drop_prob = 0.5

            def forward(  # type: ignore[override]
                self, x: Tensor, time: Tensor, classes: Tensor, cond_drop_prob=None,
                cond_keep_mask=None,
            ) -> Tensor:  # fmt: skip
                share = self.cond_drop_prob if cond_drop_prob is None else cond_drop_prob
                dropped = torch.rand(len(x)) < share
                shift = classes.masked_fill(dropped, 1).to(x)
                return super().forward(x, time) + shift[:, None]

        thing = Diffusion(Unet(scaled(-1, 1), VP, table_gamma, noise), "pred_noise", True)
        del thing.normalize
        model = idode.adapt(thing, levels=LEVELS, verbose=False)
        for name in ("labels", "classes"):
            same(model, LATTICE.mixture, VP, **{name: torch.zeros(7, dtype=torch.long)})

    def test_self_conditioning_and_learned_times_are_refused(self) -> None:
        net = Perfect(scaled(-1, 1), VP, table_gamma, noise)
        net.self_condition = True
        with pytest.raises(InputError, match="conditioned on its own last prediction"):
            idode.adapt(Diffusion(net, "pred_noise", True))
        net.self_condition = False
        net.time = nn.Embedding(1000, 2)
        with pytest.raises(InputError, match=r"1000 times up in a learned table \(time\)"):
            idode.adapt(Diffusion(net, "pred_noise", True))

    @pytest.mark.parametrize("name", ["label_emb", "classes_emb", "y_embedder"])
    def test_a_thousand_classes_are_no_table_of_times(self, name: str) -> None:
        net = Perfect(scaled(-1, 1), VP, table_gamma, noise)
        setattr(net, name, nn.Embedding(1000, 2))
        model = idode.adapt(Diffusion(net, "pred_noise", True), levels=LEVELS, verbose=False)
        same(model, LATTICE.mixture, VP)


class TestGuidedDiffusion:
    """A pair of network and GaussianDiffusion, whose table is an array of numpy."""

    def diffusion(self, mean: str, steps: int = 1000, **more: object) -> SimpleNamespace:
        kind = SimpleNamespace(name=mean)
        return SimpleNamespace(
            alphas_cumprod=ABAR[:steps].numpy(), model_mean_type=kind, rescale_timesteps=False,
            timestep_map=list(range(steps)), original_num_steps=steps, **more,
        )  # fmt: skip

    @pytest.mark.parametrize(("mean", "says"), [("EPSILON", noise), ("START_X", clean)])
    @pytest.mark.parametrize("variances", [False, True])
    def test_the_first_half_of_the_channels_is_the_prediction(self, mean, says, variances) -> None:
        class Net(Perfect):
            def forward(self, x: Tensor, time: Tensor) -> Tensor:
                said = super().forward(x, time)
                return torch.cat([said, said + 1], dim=1) if variances else said

        net = Net(scaled(-1, 1), VP, table_gamma, says)
        same(idode.adapt((net, self.diffusion(mean)), levels=LEVELS), LATTICE.mixture, VP)

    def test_times_are_out_of_a_thousand_where_they_are_rescaled(self) -> None:
        net = Perfect(scaled(-1, 1), VP, lambda t: table_gamma(t / 2), noise)
        diffusion = self.diffusion("EPSILON", 500)
        diffusion.rescale_timesteps = True
        same(idode.adapt((net, diffusion), levels=LEVELS), LATTICE.mixture, VP)

    def test_labels_have_its_name_and_images_its_shape(self) -> None:
        seen = []

        class Net(nn.Module):
            image_size, in_channels = 4, 3

            def forward(self, x: Tensor, timesteps: Tensor, y: Tensor | None = None) -> Tensor:
                seen.append(y)
                return torch.cat([x, x], dim=1)

        model = idode.adapt((Net(), self.diffusion("EPSILON")), verbose=False)
        assert model.shape == (3, 4, 4)
        model.velocity(torch.zeros(2, 3, 4, 4), torch.tensor(0.0), labels=torch.tensor([5, 7]))
        assert seen[0].tolist() == [5, 7]

    def test_what_cannot_be_read(self) -> None:
        net = Perfect(scaled(-1, 1), VP, table_gamma, noise)
        few = self.diffusion("EPSILON", 4)
        few.original_num_steps, few.timestep_map = 1000, [0, 333, 666, 999]
        with pytest.raises(InputError, match="keeps 4 of its steps.*timestep_respacing=''"):
            idode.adapt((net, few))
        with pytest.raises(InputError, match="predicts PREVIOUS_X cannot be converted"):
            idode.adapt((net, self.diffusion("PREVIOUS_X")))


class TestKDiffusion:
    def denoiser(self, data: exact.Mixture) -> Perfect:
        net = Perfect(data, VE, lambda t: 2 * t.log(), clean)
        net.inner_model, net.sigma_data = nn.Identity(), 0.5
        return net

    def test_a_denoiser_of_vectors_has_the_range_of_edm(self) -> None:
        model = idode.adapt(self.denoiser(VECTORS))
        same(model, VECTORS, VE)
        assert model.levels is None
        assert model.gamma_min == pytest.approx(2 * math.log(0.002))
        assert model.gamma_max == pytest.approx(2 * math.log(80))

    def test_a_network_of_edm_for_images(self) -> None:
        net = self.denoiser(scaled(-1, 1))
        net.round_sigma, net.img_resolution, net.img_channels = torch.as_tensor, 1, 2
        net.sigma_min, net.sigma_max = 0.0, math.inf
        same(idode.adapt(net, levels=LEVELS), LATTICE.mixture, VE)

    def test_a_network_of_edm2_in_single_precision(self) -> None:
        """It has no round_sigma, and would choose half precision on a GPU."""

        class Precond(Perfect):
            def forward(  # type: ignore[override]
                self, x: Tensor, sigma: Tensor, class_labels=None, force_fp32: bool = False
            ) -> Tensor:
                assert force_fp32
                return super().forward(x, sigma)

        net = Precond(scaled(-1, 1), VE, lambda t: 2 * t.log(), clean)
        net.sigma_data, net.img_resolution, net.img_channels = 0.5, 1, 2
        model = idode.adapt(net, levels=LEVELS)
        same(model, LATTICE.mixture, VE)
        assert model.description.startswith("EDM Precond: predicts data, path ve")

    def test_noise_levels_that_it_states_are_kept_to(self) -> None:
        """EDM's preconditioning of VE networks: no sigma_data, least noise 0.02."""
        net = Perfect(scaled(-1, 1), VE, lambda t: 2 * t.log(), clean)
        net.round_sigma, net.sigma_min, net.sigma_max = torch.as_tensor, 0.02, 100.0
        model = idode.adapt(net, levels=256)
        away = 2 * math.log(256 / 255)
        assert model.gamma_min == pytest.approx(2 * math.log(0.02) - away)
        assert model.gamma_max == pytest.approx(2 * math.log(100) - away)
        same(idode.adapt(net, levels=LEVELS), LATTICE.mixture, VE)

    def test_rounded_noise_levels_are_refused(self) -> None:
        net = self.denoiser(VECTORS)
        net.quantize = True
        with pytest.raises(InputError, match="make it with quantize=False"):
            idode.adapt(net)
        net.quantize = False
        net.round_sigma = torch.round
        with pytest.raises(InputError, match="rounds noise levels to the steps of its table"):
            idode.adapt(net)


class ConditionalFlowMatcher:
    """As torchcfm has it: means and deviations of the path."""

    def __init__(self, sigma: float) -> None:
        self.sigma = sigma

    def compute_mu_t(self, x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
        return t * x1 + (1 - t) * x0

    def compute_sigma_t(self, t: Tensor) -> Tensor | float:
        return self.sigma


class TargetConditionalFlowMatcher(ConditionalFlowMatcher):
    def compute_mu_t(self, x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
        return t * x1

    def compute_sigma_t(self, t: Tensor) -> Tensor:
        return 1 - (1 - self.sigma) * t


class ExactOptimalTransportConditionalFlowMatcher(ConditionalFlowMatcher):
    pass


def velocity_at(t: Tensor, x: Tensor, deviation, slope) -> Tensor:
    """The marginal velocity of x = t x1 + deviation(t) noise, for the mixture of vectors."""
    t, s = t[:, None].double(), deviation(t.double())[:, None]
    stds, means = VECTORS.stds[None], VECTORS.means[None]
    variance = (t[..., None] * stds) ** 2 + s[..., None] ** 2
    away = x[:, None] - t[..., None] * means
    joint = VECTORS.log_weights - 0.5 * (away**2 / variance + variance.log()).sum(-1)
    score = -(torch.softmax(joint, 1)[..., None] * away / variance).sum(1)
    eps = -s * score
    return (x - s * eps) / t + slope(t[:, 0])[:, None] * eps


class TestTorchCFM:
    @pytest.mark.parametrize("order", ["tx", "xt", "cat"])
    def test_the_straight_path(self, order: str) -> None:
        field = lambda t, x: velocity_at(t, x, lambda t: 1 - t, lambda t: -torch.ones_like(t))  # noqa: E731
        nets = {
            "tx": lambda t, x: field(t, x),
            "xt": lambda x, t: field(t, x),
            "cat": lambda both: field(both[:, -1], both[:, :-1]),
        }
        model = idode.adapt((nets[order], ConditionalFlowMatcher(0.0)))
        same(model, VECTORS, SP)
        assert model.gaussian_path

    @pytest.mark.parametrize(
        ("matcher", "deviation"),
        [
            (TargetConditionalFlowMatcher(0.1), lambda t: 1 - 0.9 * t),
            (ConditionalFlowMatcher(0.1), lambda t: torch.sqrt((1 - t) ** 2 + 0.01)),
        ],
        ids=["target", "independent"],
    )
    def test_noise_left_at_the_data(self, matcher, deviation) -> None:
        def slope(t: Tensor) -> Tensor:
            with torch.enable_grad():
                t = t.detach().requires_grad_()
                return torch.autograd.grad(deviation(t).sum(), t)[0]

        net = lambda t, x: velocity_at(t, x, deviation, slope)  # noqa: E731
        model = idode.adapt((net, matcher))
        same(model, VECTORS, model.schedule)
        end = f64(model.gamma_min, 40.0)
        assert model.gamma_min == pytest.approx(2 * math.log(0.1))
        # The prior is the base and the matcher's own noise together.
        prior = float(model.schedule.sigma(end)[1])
        assert prior == pytest.approx(float(deviation(f64(0.0))[0]), abs=1e-6)

    def test_optimal_transport_is_an_ode_and_no_diffusion(self) -> None:
        matcher = ExactOptimalTransportConditionalFlowMatcher(0.0)
        model = idode.adapt((lambda t, x: x, matcher), levels=LEVELS)
        assert "no SDE bound" in model.description
        with pytest.raises(InputError, match="optimal transport.*SDE bound"):
            model.sde_bound(LATTICE.pixels)


class TestFlowMatching:
    def test_its_schedulers_are_asked(self) -> None:
        class Scheduler:
            def __call__(self, t: Tensor) -> SimpleNamespace:
                return SimpleNamespace(
                    alpha_t=torch.sin(t * math.pi / 2), sigma_t=torch.cos(t * math.pi / 2)
                )

            def snr_inverse(self, snr: Tensor) -> Tensor:
                raise NotImplementedError

        def net(x: Tensor, t: Tensor) -> Tensor:
            angle = t.double() * math.pi / 2
            gamma = -2 * torch.log(torch.tan(angle))
            eps = VECTORS.noise(x, gamma, VP)
            x0 = (x - angle.cos()[:, None] * eps) / angle.sin()[:, None]
            return math.pi / 2 * (angle.cos()[:, None] * x0 - angle.sin()[:, None] * eps)

        for second in (Scheduler(), SimpleNamespace(scheduler=Scheduler())):
            model = idode.adapt((net, second))
            same(model, VECTORS, VP)


class TestZuko:
    class Transform(nn.Module):
        """A linear flow: data N(0, e^-2a I) at t = 0 to N(0, I) at t = 1."""

        def __init__(self, a: float) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.tensor(a, dtype=torch.float64))
            self.times = (0.0, 1.0)

        def f(self, t: Tensor, x: Tensor, c: Tensor | None = None) -> Tensor:
            return self.a * (x if c is None else x + c)

    def flow(self, std: float = 1.0) -> SimpleNamespace:
        base = torch.distributions.Normal(torch.zeros(2), std * torch.ones(2))
        return SimpleNamespace(transform=self.Transform(0.7), base=lambda: base)

    def test_the_density_is_the_flows(self) -> None:
        model = idode.adapt(self.flow())
        x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        normal = torch.distributions.Normal(0.0, math.exp(-0.7))
        found = idode.log_prob(model, x, clean=True, solver=Adams(steps=600))
        torch.testing.assert_close(
            found.log_p.detach(), normal.log_prob(x).sum(1), atol=1e-5, rtol=0
        )
        given = {"context": torch.ones_like(x)}
        assert not torch.allclose(idode.log_prob(model, x, condition=given).log_p, found.log_p)

    def test_what_is_no_flow_along_an_ode(self) -> None:
        with pytest.raises(InputError, match="standard normal"):
            idode.adapt(self.flow(2.0))
        with pytest.raises(InputError, match="only zuko's CNF"):
            idode.adapt(SimpleNamespace(transform=nn.Identity(), base=None))


class VPSDE:
    """As score_sde has it."""

    beta_0, beta_1 = 0.1, 20.0

    def marginal_prob(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        log_mean = -0.25 * t**2 * (self.beta_1 - self.beta_0) - 0.5 * t * self.beta_0
        return torch.exp(log_mean)[:, None] * x, 1 - torch.exp(2 * log_mean)


class subVPSDE(VPSDE):
    pass


class TestScoreSDE:
    def test_vp_is_told_999_times_the_time(self) -> None:
        def gamma(label: Tensor) -> Tensor:
            t = label / 999
            integral = 0.1 * t + 19.9 * t**2 / 2
            return integral + torch.log(-torch.expm1(-integral))

        net = Perfect(scaled(-1, 1), VP, gamma, noise)
        same(idode.adapt((net, VPSDE()), levels=LEVELS), LATTICE.mixture, VP)

    def test_sub_vp_has_its_own_path(self) -> None:
        sde = subVPSDE()

        def net(x: Tensor, label: Tensor) -> Tensor:
            mean, std = sde.marginal_prob(torch.ones_like(x[:, :1]), label.double() / 999)
            gamma = 2 * torch.log(std / mean[:, 0])
            alpha, ratio = mean, torch.exp(gamma / 2)[:, None]
            # The same information as in a variance-exploding state, x / alpha.
            assert ratio.shape == alpha.shape
            return scaled(-1, 1).noise(x / alpha, gamma, VE)

        model = idode.adapt((net, sde), levels=LEVELS)
        same(model, LATTICE.mixture, model.schedule)

    def test_ve_is_told_sigma(self) -> None:
        sde = SimpleNamespace(sigma_min=0.01, sigma_max=50.0, marginal_prob=None)
        net = Perfect(scaled(0, 1), VE, lambda t: 2 * t.log(), lambda x, e, a, s: -e / s)
        same(idode.adapt((net, sde), levels=LEVELS), LATTICE.mixture, VE)


def test_what_nobody_knows_is_refused_with_what_there_is() -> None:
    with pytest.raises(InputError, match=r"a Linear is not recognised \(diffusers: a pipeline"):
        idode.adapt(nn.Linear(2, 2))
    with pytest.raises(InputError, match="a pair of Linear and str is not recognised"):
        idode.adapt((nn.Linear(2, 2), "ddpm"))


def test_sources_are_listed_without_their_libraries() -> None:
    assert set(ADAPTERS) == {
        "diffusers", "denoising-diffusion-pytorch", "guided-diffusion", "k-diffusion", "torchcfm",
        "flow_matching", "zuko", "score_sde",
    }  # fmt: skip
    assert all(ADAPTERS.summaries.values())


def test_an_adapted_model_is_evaluated_sampled_and_conditioned_like_any_other() -> None:
    """Labels travel with their images; samples come with their log-density."""

    class Labelled(Wrapped):
        def forward(self, x: Tensor, time: Tensor, class_labels: Tensor | None = None) -> Output:  # type: ignore[override]
            flat = super().forward(x.flatten(1).double(), time.double()).sample
            shift = 0.0 if class_labels is None else class_labels[:, None].double()
            return Output(sample=(flat + shift).reshape(x.shape).to(x.dtype))

    net = Labelled(scaled(-1, 1), VP, table_gamma, noise)
    model = idode.adapt(
        (net, scheduler("DDPMScheduler")), levels=LEVELS, shape=(2, 1, 1), verbose=False
    )
    pixels = LATTICE.pixels.reshape(3, 2, 1, 1)
    how = LikelihoodSettings(n_probes=0, solver=Adams(steps=60))
    right = model.bits_per_dim(pixels, how, labels=torch.zeros(3))
    wrong = model.bits_per_dim(pixels, how, labels=torch.full((3,), 0.1))
    assert right.mean == pytest.approx(float(-LATTICE.probabilities.log2().mean()) / 2, abs=0.15)
    assert wrong.mean > right.mean + 0.01
    drawn = model.sample(4, log_prob=True, solver=Adams(steps=60), labels=torch.zeros(4))
    assert drawn.log_p is not None
    assert drawn.data.shape == (4, 2, 1, 1)


class TestFolders:
    def test_a_model_is_saved_and_read_back_without_a_network(self, tmp_path) -> None:
        ode = idode.load("pretrained:digits", device="cpu")
        ode.uniform_start = -5.0
        ode.save_pretrained(tmp_path / "mine", data="digits")
        names = {path.name for path in (tmp_path / "mine").iterdir()}
        assert {"config.json", "model.safetensors"} <= names
        again = idode.DiffusionODE.from_pretrained(tmp_path / "mine")
        x, gamma = torch.zeros(2, 1, 8, 8), torch.tensor(0.0)
        assert torch.equal(ode.velocity(x, gamma), again.velocity(x, gamma))
        assert (again.levels, again.shape) == (ode.levels, ode.shape)
        assert (again.gamma_min, again.gamma_max) == (ode.gamma_min, ode.gamma_max)
        assert again.uniform_start == -5.0
        with pytest.raises(InputError):
            ode.save_pretrained(tmp_path / "mine")

    def test_a_model_is_replaced_only_once_the_new_one_is_there(
        self, tmp_path, monkeypatch
    ) -> None:
        ode, place = idode.load("pretrained:digits", device="cpu"), tmp_path / "mine"
        ode.save_pretrained(place)
        before = {path.name: path.read_bytes() for path in place.iterdir()}

        def full(*given: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("idode.runs.sharing.save_model", full)
            with pytest.raises(OSError, match="No space"):
                save_pretrained(ode, place, data="digits", force=True)
        assert {path.name: path.read_bytes() for path in place.iterdir()} == before
        save_pretrained(ode, place, data="digits", force=True)
        assert {path.name for path in place.iterdir()} == set(before)
        assert open_run(place).config.data == "digits"

    def test_other_peoples_networks_are_theirs_to_save(self, tmp_path) -> None:
        model = idode.wrap(nn.Identity(), "noise", "vp")
        with pytest.raises(InputError, match="CheckedNetwork cannot be rebuilt"):
            model.save_pretrained(tmp_path / "x")

    def test_export_says_why_not(self, capsys: pytest.CaptureFixture[str]) -> None:
        from idode.cli.main import main

        assert main(["export", "pretrained:digits", "--to", "diffusers"]) == 2
        said = capsys.readouterr().err
        assert "no equivalent in diffusers: the U-Net keeps its resolution" in said
        assert "idode.load" in said


POINTS = torch.tensor([[40, 200], [120, 30]])  # images of 1 x 2 pixels


@pytest.fixture
def saved(tmp_path, monkeypatch) -> str:
    """The specification of a pipeline's folder, whose network is perfect for POINTS."""
    theirs = exact.mixture([0.5, 0.5], 2 * POINTS.double() / 255 - 1, f64(0, 0))

    class Images(Wrapped):
        def forward(self, x: Tensor, time: Tensor, class_labels: Tensor | None = None) -> Output:  # type: ignore[override]
            said = super().forward(x.flatten(1).double(), time.double()).sample
            said = said if class_labels is None else said + 0.1 * class_labels[:, None]
            return Output(sample=said.reshape(x.shape).to(x.dtype))

    net = Images(theirs, VP, table_gamma, noise)
    net.config |= {"sample_size": (1, 2), "in_channels": 1}
    pipeline = SimpleNamespace(unet=net, scheduler=scheduler("DDPMScheduler"))
    loader = SimpleNamespace(from_pretrained=lambda folder, **_: pipeline)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "diffusers", SimpleNamespace(DiffusionPipeline=loader))
    (tmp_path / "model_index.json").write_text("{}")
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "scheduler_config.json").write_text("{}")
    return f"diffusers:{tmp_path}"


def test_a_folder_stands_in_the_place_of_a_run(saved: str) -> None:
    """What ``idode evaluate diffusers:FOLDER --data ...`` does."""
    images = POINTS.reshape(2, 1, 1, 2).numpy().astype("uint8")
    how = LikelihoodSettings(n_probes=0, solver=Adams(steps=60))

    def evaluated(run: str) -> BitsPerDim:
        data = (images, images)
        found = idode.evaluate(run, data=data, settings=how, device="cpu", progress=False)
        return found.results[0]

    value = evaluated(saved)
    # A bit for the two points, and what the least noise of the table costs isolated levels.
    assert value.mean == pytest.approx(0.5 + 1.72, abs=0.1)
    assert any("1.7" in note for note in value.notes)
    # Held at its last time, the network costs nothing; the first value is not taken from disk.
    held = evaluated(f"{saved}?extend=true")
    assert held.mean == pytest.approx(0.5, abs=0.02)
    assert not any("least noise" in note for note in held.notes)
    with pytest.raises(InputError, match="does not record its data set: give the data"):
        idode.evaluate(saved, device="cpu", progress=False)


def test_a_folder_is_scored_and_its_commands_name_it(saved: str, capsys) -> None:
    """``idode calibrate diffusers:FOLDER`` and ``idode score diffusers:FOLDER``."""
    from idode.cli.main import main

    images = POINTS[torch.arange(80) % 2].reshape(80, 1, 1, 2).numpy().astype("uint8")
    strange = np.full((1, 1, 1, 2), 128, np.uint8)
    with pytest.raises(InputError, match=f"run `idode calibrate {saved}` with known"):
        idode.score(saved, images[:2], device="cpu")
    idode.calibrate(saved, data=(images, images), device="cpu", progress=False)
    found = idode.score(saved, np.concatenate([images[:4], strange]), device="cpu")
    assert found.flagged.tolist()[-1]
    assert int(found.score.argmax()) == 4
    for words, message in (
        (["export", saved, "--to", "diffusers"], "format of another library already"),
        (["dequantize", saved, "--quiet"], "no run folder, which a learned dequantization"),
        (["evaluate", f"{saved}?lower=1"], "no option of diffusers:FOLDER called 'lower'"),
        (["evaluate", f"{saved}?data_range=1,0"], "in this order, got 1.0 and 0.0"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err


def test_labels_go_through_the_journal_with_their_images(saved: str, tmp_path) -> None:
    """Values stored for some labels are not taken for others, and are found again for these."""
    images = POINTS[torch.arange(5) % 2].reshape(5, 1, 1, 2).numpy().astype("uint8")
    how = LikelihoodSettings(n_probes=0, batch_size=2, solver=Adams(steps=12))

    def evaluated(labels: Tensor, limit: int | None = None) -> Evaluation:
        return idode.evaluate(
            saved, data=(images, images), settings=how, condition={"labels": labels}, limit=limit,
            device="cpu", progress=False,
        )  # fmt: skip

    first, second = torch.tensor([0, 1, 0, 0, 2]), torch.tensor([0, 1, 0, 1, 2])
    one, two, again = (evaluated(labels) for labels in (first, second, first))
    values = [found.results[0].per_image for found in (one, two, again)]
    apart = values[0] != values[1]
    assert apart.tolist() == [False, False, False, True, False]
    assert torch.equal(values[0], values[2])
    assert again.results[0].seconds == one.results[0].seconds  # read from the file
    assert one.sde is not None
    assert two.sde is not None
    assert one.sde.mean != two.sde.mean
    torch.testing.assert_close(evaluated(first, limit=3).results[0].per_image, values[0][:3])
    with pytest.raises(InputError, match="one row for each of 5 samples"):
        evaluated(first[:4])
    with pytest.raises(InputError, match="one row for each of 5 samples, got int"):
        evaluated(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="leave out the table of bounds and the condition"):
        idode.evaluate(
            saved, data=(images, images), precision=0.1, condition={"labels": first},
            device="cpu", progress=False,
        )  # fmt: skip


def test_stored_values_of_another_scheduler_are_not_used(saved: str) -> None:
    from idode.evaluation.run_store import model_hash
    from idode.runs.run import open_run

    def identity() -> str:
        opened = open_run(saved)
        return model_hash(opened, opened.model("cpu"))

    first = identity()
    assert identity() == first
    folder = Path(saved.removeprefix("diffusers:"))
    (folder / "scheduler" / "scheduler_config.json").write_text('{"beta_end": 0.01}')
    assert identity() != first
