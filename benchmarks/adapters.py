"""Every adapter beside its library's own likelihood, or one made by hand with torchdiffeq.

    make adapters

Small networks are trained for some seconds with each library, in its own words; the table says
how far `idode.adapt` is from the reference, sample by sample, and the lines a user writes.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from unittest.mock import MagicMock

import torch
from torch import nn
from torchdiffeq import odeint

import idode
from idode.batches import Batch
from idode.data.loading import load
from idode.likelihood.estimator import LikelihoodSettings, LogWeightEstimator
from idode.ode.adams import Adams

STEPS = 400
REFERENCE_STEPS = 300  # of four evaluations each
IMAGE_STEPS = 400  # both errors are then far below the goal
# What two libraries import and none of their mathematics needs: torchvision, metrics, trainers.
STUBS = (
    "torchvision torchvision.transforms torchvision.transforms.functional torchvision.utils clip "
    "cleanfid cleanfid.inception_torchscript skimage skimage.transform pytorch_fid kornia "
    "pytorch_fid.inception pytorch_fid.fid_score kornia.augmentation"
)


@dataclass
class Row:
    """One line of the table."""

    library: str
    what: str
    reference: str
    lines: int
    difference: float
    unit: str
    nfe: float
    seconds: float
    line: str  # printed by adapt

    def __str__(self) -> str:
        return (
            f"| {self.library} | {self.what} | {self.reference} | {self.lines} | "
            f"{self.difference:.1e} {self.unit} | {self.nfe:.0f} | {self.seconds:.1f} |"
        )


class Vectors(nn.Module):
    """A small network of vectors and a time."""

    def __init__(self, dim: int = 2, width: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(dim + 5, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, dim),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Predict."""
        t = t.reshape(-1, 1).expand(len(x), 1)
        waves = [t, *((k * math.pi * t).sin() for k in (1, 2)), *((k * t).cos() for k in (1, 2))]
        return self.body(torch.cat([x, *waves], dim=1))


def moons(count: int, dim: int = 2) -> torch.Tensor:
    """Two half circles, not centred, with noise; more dimensions hold their products."""
    angle, side = math.pi * torch.rand(count), torch.randint(2, (count,)) * 2 - 1
    x = torch.stack([side * angle.cos() + side * 0.5, side * angle.sin() - side * 0.25], dim=1)
    x = x + 0.1 * torch.randn(count, 2) + torch.tensor([0.3, 0.0])
    extra = [0.5 * x[:, :1] ** k * x[:, 1:] + 0.2 * torch.randn(count, 1) for k in range(dim - 2)]
    return torch.cat([x, *extra], dim=1)


def trained(net: nn.Module, loss, steps: int = STEPS) -> nn.Module:
    """Adam on a loss."""
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return net.eval().requires_grad_(False)


def by_hand(field, x, start, end, log_prior):
    """Log-density by torchdiffeq at 1e-7, with the exact divergence: ``field(t, x)``."""
    dim = x[0].numel()

    def both(t, state):
        with torch.enable_grad():
            y = state[0].requires_grad_()
            v = field(t, y)
            div = sum(
                torch.autograd.grad(v.flatten(1)[:, i].sum(), y, retain_graph=True)[0].flatten(1)[
                    :, i
                ]
                for i in range(dim)
            )
        return v.detach(), div.detach()

    ends = torch.tensor([start, end], dtype=torch.float64)
    zero = torch.zeros(len(x), dtype=torch.float64)
    z, integral = odeint(both, (x.double(), zero), ends, rtol=1e-7, atol=1e-7, method="dopri5")
    return log_prior(z[-1]) + integral[-1]


def normal(std: float = 1.0):
    """Log-density of a centred normal of this deviation."""
    return lambda z: torch.distributions.Normal(0.0, std).log_prob(z).flatten(1).sum(1)


def compared(library, what, reference, user, truth) -> Row:
    """The user's lines, run and timed, against the truth of each sample."""
    began = time.perf_counter()
    model, found = user()
    seconds = time.perf_counter() - began
    lines = inspect.getsource(user).strip().splitlines()[1:]
    count = sum(1 for line in lines if "return" not in line)
    difference = float((found.log_p.detach() - truth).square().mean().sqrt())
    return Row(
        library, what, reference, count, difference, "nats", found.nfe, seconds, model.description
    )


def torchcfm_rows() -> Iterator[Row]:
    """Independent coupling, coupling by optimal transport, and some noise left at the data."""
    from torchcfm import conditional_flow_matching as cfm

    for dim, matcher in (
        (2, cfm.ConditionalFlowMatcher(sigma=0.0)),
        (5, cfm.TargetConditionalFlowMatcher(sigma=0.02)),
        (2, cfm.ConditionalFlowMatcher(sigma=0.1)),
        (2, cfm.ExactOptimalTransportConditionalFlowMatcher(sigma=0.0)),
        (2, cfm.VariancePreservingConditionalFlowMatcher(sigma=0.0)),
    ):
        net = Vectors(dim)

        def loss(net=net, matcher=matcher, dim=dim):
            x1 = moons(256, dim)
            t, xt, ut = matcher.sample_location_and_conditional_flow(torch.randn_like(x1), x1)
            return ((net(xt, t) - ut) ** 2).mean()

        net = trained(net, loss).double()
        x = moons(64, dim).double()

        def user(net=net, matcher=matcher, x=x):
            model = idode.adapt((net, matcher))
            found = idode.log_prob(model, x, clean=True)
            return model, found

        std = math.sqrt(1 + float(matcher.sigma) ** 2) if dim == 2 else 1.0
        truth = by_hand(lambda t, y, net=net: net(y, t), x, 1.0, 0.0, normal(std))
        name = type(matcher).__name__.replace("ConditionalFlowMatcher", "") or "independent"
        what = f"{dim}-D, {name}, sigma {matcher.sigma:g}"
        yield compared("torchcfm", what, "torchdiffeq by hand", user, truth)


def flow_matching_rows() -> Iterator[Row]:
    """Its own compute_likelihood, with the exact divergence."""
    from flow_matching.path import AffineProbPath, CondOTProbPath
    from flow_matching.path.scheduler import CosineScheduler
    from flow_matching.solver import ODESolver
    from flow_matching.utils import ModelWrapper

    for path in (CondOTProbPath(), AffineProbPath(CosineScheduler())):
        net = Vectors()

        def loss(net=net, path=path):
            x1 = moons(256)
            some = path.sample(x_0=torch.randn_like(x1), x_1=x1, t=torch.rand(256))
            return ((net(some.x_t, some.t) - some.dx_t) ** 2).mean()

        class Wrapped(ModelWrapper):
            def forward(self, x, t, **extras):
                return self.model(x, t)

        net = Wrapped(trained(net, loss).double())
        x = moons(64).double()
        prior = normal()
        _, truth = ODESolver(net).compute_likelihood(
            x_1=x, log_p0=prior, step_size=None, method="dopri5", atol=1e-7, rtol=1e-7,
            exact_divergence=True,
        )  # fmt: skip

        def user(net=net, path=path, x=x):
            model = idode.adapt((net, path))
            found = idode.log_prob(model, x, clean=True)
            return model, found

        what = f"2-D, {type(path.scheduler).__name__}"
        yield compared("flow_matching", what, "compute_likelihood", user, truth.detach())


def zuko_rows() -> Iterator[Row]:
    """Its own log_prob."""
    import zuko

    flow = zuko.flows.CNF(5, hidden_features=(32, 32), exact=True)
    trained(flow, lambda: -flow().log_prob(moons(32, 5)).mean(), steps=40)
    flow.double()
    flow.transform.atol = flow.transform.rtol = 1e-8
    x = moons(64, 5).double()
    with torch.no_grad():
        truth = flow().log_prob(x)

    def user():
        model = idode.adapt(flow)
        found = idode.log_prob(model, x, clean=True)
        return model, found

    yield compared("zuko", "5-D, CNF", "its log_prob", user, truth)


def k_diffusion_rows() -> Iterator[Row]:
    """Its own log_likelihood draws a probe: many of them tell the exact value less well."""
    import k_diffusion

    inner = Vectors()

    class Told(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x, sigma):
            return self.inner(x, sigma.log() / 4)

    denoiser = k_diffusion.Denoiser(Told(), sigma_data=1.0)

    def loss():
        x = moons(256)
        sigma = torch.exp(torch.randn(256) * 1.6 - 1.2)
        return denoiser.loss(x, torch.randn_like(x), sigma).mean()

    trained(denoiser, loss)
    denoiser.double()
    x = moons(64).double()

    def user():
        model = idode.adapt(denoiser)
        found = idode.log_prob(model, x, clean=True)
        return model, found

    low, high = 0.004, 160.0  # EDM's range for data of unit deviation
    field = lambda s, y: (y - denoiser(y, s.expand(len(y)))) / s  # noqa: E731
    truth = by_hand(field, x, low, high, normal(high))
    row = compared("k-diffusion", "2-D, Denoiser", "torchdiffeq by hand", user, truth)
    own = torch.stack([
        k_diffusion.sampling.log_likelihood(denoiser, x, low, high, atol=1e-7, rtol=1e-7)[0]
        for _ in range(100)
    ])  # fmt: skip
    found = user()[1]
    spread = float((own.var(0) / len(own)).mean().sqrt())
    away = float((own.mean(0) - found.log_p).square().mean().sqrt())
    row.what += f"; mean of 100 of its one-probe values: {away:.1e} ± {spread:.1e}"
    yield row


def score_sde_rows() -> Iterator[Row]:
    """Formulas of its VPSDE, on networks of vectors."""

    class VPSDE:
        beta_0, beta_1, N = 0.1, 20.0, 1000

        def marginal_prob(self, x, t):
            log_mean = -0.25 * t**2 * (self.beta_1 - self.beta_0) - 0.5 * t * self.beta_0
            return torch.exp(log_mean)[:, None] * x, torch.sqrt(1 - torch.exp(2 * log_mean))

    class subVPSDE(VPSDE):
        def marginal_prob(self, x, t):
            log_mean = -0.25 * t**2 * (self.beta_1 - self.beta_0) - 0.5 * t * self.beta_0
            return torch.exp(log_mean)[:, None] * x, 1 - torch.exp(2 * log_mean)

    for sde in (VPSDE(), subVPSDE()):
        inner = Vectors()
        net = lambda x, label, inner=inner: inner(x, label / 999)  # noqa: E731

        def loss(sde=sde, net=net):
            x, t, eps = moons(256), torch.rand(256) * (1 - 1e-5) + 1e-5, torch.randn(256, 2)
            mean, std = sde.marginal_prob(x, t)
            return ((net(mean + std[:, None] * eps, 999 * t) - eps) ** 2).mean()

        trained(inner, loss)
        inner.double()
        x = moons(64).double()

        def field(t, y, sde=sde, net=net):
            t = t.expand(len(y))
            beta = (sde.beta_0 + t * (sde.beta_1 - sde.beta_0))[:, None]
            _, std = sde.marginal_prob(y, t)
            squared = beta
            if isinstance(sde, subVPSDE):
                integral = 2 * sde.beta_0 * t + (sde.beta_1 - sde.beta_0) * t**2
                squared = beta * -torch.expm1(-integral)[:, None]
            score = -net(y, 999 * t) / std[:, None]
            return -0.5 * beta * y - 0.5 * squared * score

        def user(sde=sde, net=net, x=x):
            model = idode.adapt((net, sde), levels=None, gamma_min=-8.0)
            found = idode.log_prob(model, x)
            return model, found

        model, _ = user()
        at = torch.tensor([-8.0, model.gamma_max], dtype=torch.float64)
        start, end = (float(t) for t in model.clock.time(at))
        prior = normal(float(model.schedule.sigma(at[1])))
        truth = by_hand(field, x, start, end, prior)
        name = f"2-D, {type(sde).__name__}"
        yield compared("score_sde", name, "torchdiffeq by hand", user, truth)


def images_compared(library, what, thing, field, clock_of, scale) -> Row:
    """Bits/dim of digits against the library's ODE by hand, from the same states and probes.

    ``field(t, y)`` is the ODE in the library's own units y = scale x and time; ``clock_of`` maps
    their gamma to that time.
    """
    pixels = torch.from_numpy(load("digits").test[:2]).long()
    began = time.perf_counter()

    def user():
        model = idode.adapt(thing, levels=17)
        result = model.bits_per_dim(pixels, LikelihoodSettings(solver=Adams(steps=IMAGE_STEPS)))
        return model, result

    model, result = user()
    seconds = time.perf_counter() - began
    settings = result.settings
    estimator, indices = LogWeightEstimator(model, settings), list(range(len(pixels)))
    x, weight = estimator.states(Batch(pixels, indices, {}).values, indices, 0)
    probe = estimator.probes(x, indices, 0, 1)[0].double()
    at = torch.tensor([model.gamma_min, model.gamma_max], dtype=torch.float64) + 2 * math.log(
        scale
    )
    start, end, stretch, spread = clock_of(model, at, x)

    def both(t, state):
        with torch.enable_grad():
            y = state[0].requires_grad_()
            v = field(t, y)
            (row,) = torch.autograd.grad((v * probe).sum(), y)
        return v.detach(), (row * probe).flatten(1).sum(1)

    zero = torch.zeros(len(x), dtype=torch.float64)
    ends = torch.tensor([start, end], dtype=torch.float64)
    # Equal steps: an adaptive solver stops at every kink of an interpolated table.
    z, integral = odeint(
        both, (stretch * x.double(), zero), ends, method="rk4",
        options={"step_size": abs(end - start) / REFERENCE_STEPS},
    )  # fmt: skip
    log_p = normal(spread)(z[-1]) + integral[-1] + 64 * math.log(stretch)
    truth = -(log_p + weight) / (64 * math.log(2))
    difference = float((result.per_image - truth).square().mean().sqrt())
    return Row(
        library,
        what,
        "torchdiffeq by hand, rk4",
        2,
        difference,
        "bits/dim",
        result.nfe,
        seconds,
        model.description,
    )


def vp_field(net, table, predicts):
    """The probability flow of a DDPM table in gamma, float64 outside the network."""
    gammas = torch.log1p(-table.double()) - torch.log(table.double())

    def field(gamma, y):
        left = int((torch.searchsorted(gammas, gamma) - 1).clamp(0, len(gammas) - 2))
        t = left + (gamma - gammas[left]) / (gammas[left + 1] - gammas[left])
        alpha, sigma = torch.sigmoid(-gamma).sqrt(), torch.sigmoid(gamma).sqrt()
        said = net(y, t.expand(len(y)))
        eps = {
            "epsilon": lambda: said,
            "v_prediction": lambda: alpha * said + sigma * y,
            "sample": lambda: (y - alpha * said) / sigma,
        }[predicts]()
        return -0.5 * sigma**2 * y + 0.5 * sigma * eps

    return field


def vp_clock(scale):
    """Start, end, stretch of the state and deviation of the prior, on the clock gamma."""

    def found(model, at, x):
        ours = at - 2 * math.log(scale)
        ratio = scale * torch.sigmoid(-at).sqrt() / torch.sigmoid(-ours).sqrt()
        # The end is the same state on either scale, so its prior is ours, stretched.
        last = float(ratio[1]) * float(torch.sigmoid(ours[1]).sqrt())
        return float(at[0]), float(at[1]), float(ratio[0]), last

    return found


def digits_minus_one_to_one() -> torch.Tensor:
    """The training images as most libraries scale them."""
    return 2 * torch.from_numpy(load("digits").train).float() / 16 - 1


def diffusers_rows() -> Iterator[Row]:
    """A small UNet2DModel with DDPM and flow matching schedulers."""
    from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler, UNet2DModel

    images = digits_minus_one_to_one()
    for predicts in ("epsilon", "v_prediction", "sample", "flow"):
        net = UNet2DModel(
            sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8, 8),
            layers_per_block=1, norm_num_groups=4, attention_head_dim=4,
            down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2,
        )  # fmt: skip
        if predicts == "flow":
            scheduler = FlowMatchEulerDiscreteScheduler()
        else:
            scheduler = DDPMScheduler(prediction_type=predicts)

        def loss(net=net, scheduler=scheduler, predicts=predicts):
            x0 = images[torch.randint(len(images), (32,))]
            eps = torch.randn_like(x0)
            if predicts == "flow":
                s = torch.rand(32)
                wide = s[:, None, None, None]
                return (
                    (net(wide * eps + (1 - wide) * x0, 1000 * s).sample - (eps - x0)) ** 2
                ).mean()
            t = torch.randint(1000, (32,))
            target = {"epsilon": eps, "sample": x0}.get(predicts)
            target = scheduler.get_velocity(x0, eps, t) if target is None else target
            return ((net(scheduler.add_noise(x0, eps, t), t).sample - target) ** 2).mean()

        trained(net, loss, STEPS // 4)
        net.double()  # so that rounding does not keep the reference from its tolerance
        called = lambda y, t, net=net: net(y, t).sample  # noqa: E731
        scale = 17 / 16
        if predicts == "flow":
            field = lambda s, y, called=called: called(y, 1000 * s.expand(len(y)))  # noqa: E731

            def clock(model, at, x):
                ours = at - 2 * math.log(17 / 16)
                ratio = 17 / 16 * torch.sigmoid(-at / 2) / torch.sigmoid(-ours / 2)
                times = torch.sigmoid(at / 2)
                last = float(ratio[1] * torch.sigmoid(ours[1] / 2))
                return float(times[0]), float(times[1]), float(ratio[0]), last
        else:
            field, clock = vp_field(called, scheduler.alphas_cumprod, predicts), vp_clock(scale)
        what = f"8x8 digits on [-1, 1], {type(scheduler).__name__}, {predicts}"
        yield images_compared("diffusers", what, (net, scheduler), field, clock, scale)


def ddpm_rows() -> Iterator[Row]:
    """A small Unet in a GaussianDiffusion."""
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    images = (digits_minus_one_to_one() + 1) / 2
    names = {"pred_noise": "epsilon", "pred_x0": "sample", "pred_v": "v_prediction"}
    for objective, predicts in names.items():
        net = Unet(8, channels=1, dim_mults=(1, 2), flash_attn=False)
        diffusion = GaussianDiffusion(
            net, image_size=8, objective=objective, beta_schedule="linear"
        )
        pick = lambda: images[torch.randint(len(images), (32,))]  # noqa: E731
        trained(diffusion, lambda d=diffusion, p=pick: d(p()), STEPS // 4)
        net.double()
        called = lambda y, t, net=net: net(y, t.double())  # noqa: E731
        field = vp_field(called, diffusion.alphas_cumprod, predicts)
        what = f"8x8 digits, GaussianDiffusion, {objective}"
        yield images_compared(
            "denoising-diffusion-pytorch", what, diffusion, field, vp_clock(17 / 16), 17 / 16
        )


def check_hub() -> None:
    """A model that was saved by the mixin of huggingface_hub is the same when it is read."""
    from idode.adapters.hub import HubModel

    model, x = idode.load("pretrained:digits", device="cpu"), torch.randn(2, 1, 8, 8)
    with tempfile.TemporaryDirectory() as folder:
        HubModel.of(model).save_pretrained(folder)
        again = HubModel.from_pretrained(folder)
    assert torch.equal(again(x, torch.tensor(0.0)), model(x, torch.tensor(0.0)))
    print("huggingface_hub: saved and read back, the same velocity")


def check_folder() -> None:
    """A saved pipeline stands for a run in every command that takes one."""
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    from idode.cli.main import main as command

    net = UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8, 8),
        layers_per_block=1, norm_num_groups=4, attention_head_dim=4,
        down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as home:
        DDPMPipeline(net, DDPMScheduler()).save_pretrained(f"{home}/pipeline")
        run = f"diffusers:{home}/pipeline?levels=17"
        few = ["--data", "digits", "--limit"]
        for words in (
            ["evaluate", run, *few, "2", "--tolerance", "0.2"],
            ["sample", run, "--count", "2", "--out", f"{home}/samples.png"],
            ["report", run, *few, "2", "--out", f"{home}/report"],
            ["calibrate", run, *few, "40"],
            ["score", run, "digits", "--limit", "4"],
            ["compress", "digits", "--out", f"{home}/digits.idode", "--model", run, *few, "2"],
        ):
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                code = command([*words, "--quiet"])
            print(f"idode {words[0]} diffusers:FOLDER: exit code {code}", flush=True)
            assert code == 0, words


def main() -> None:
    """Run all, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of the name of a source")
    args = parser.parse_args()
    from diffusers import DDPMScheduler, UNet2DModel  # noqa: F401  they look for torchvision

    for name in STUBS.split():
        sys.modules.setdefault(name, MagicMock(name=name))
    torch.set_num_threads(1)
    print("| library | network | reference | lines | rms difference | NFE | seconds |")
    print("|---|---|---|---|---|---|---|", flush=True)
    rows: list[Row] = []
    for source in (
        torchcfm_rows, flow_matching_rows, zuko_rows, k_diffusion_rows, score_sde_rows,
        diffusers_rows, ddpm_rows,
    ):  # fmt: skip
        if args.only in source.__name__:
            torch.manual_seed(0)
            for row in source():
                print(row, flush=True)
                rows.append(row)
    print()
    for check in (check_hub, check_folder):
        if args.only in check.__name__:
            check()
    worst = max((row.difference for row in rows), default=0.0)
    print(f"\nlargest difference {worst:.1e}; goal 1e-3 nats or bits/dim")
    sys.exit(worst > 1e-3)


if __name__ == "__main__":
    main()
