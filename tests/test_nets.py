import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from idode.errors import InputError
from idode.nets.config import MLPConfig, UNetConfig
from idode.nets.flax_format import leaves, read
from idode.nets.layers import (
    Conv,
    Dense,
    dropout,
    fading,
    fourier_features,
    sinusoid,
    with_skip,
)
from idode.nets.mlp import MLP
from idode.nets.unet import UNet
from idode.runs.presets import PRESETS

REFERENCE = Path(__file__).parent / "reference"
TINY = UNetConfig(channels=2, levels=17, width=8, depth=3, dropout=0.0, groups=4)
CONFIGS = [
    TINY,
    replace(TINY, attention="everywhere"),
    replace(TINY, attention="none", fourier=False, flag=False),
    replace(TINY, channels=3),
    replace(TINY, halvings=2, channels=1),
    replace(TINY, halvings=1, attention="everywhere"),
]
PAPER = {
    "cifar10": UNetConfig(),
    "imagenet32": UNetConfig(width=256),
    "imagenet32_new": UNetConfig(width=256),
    "cifar10_aug": UNetConfig(width=256, attention="everywhere", dropout=0.05),
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def scrambled(net, seed=0):
    """Give the zero kernels values too, or nothing inside the network shows."""
    generator = seeded(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator) / math.sqrt(p[0].numel()))
    return net


def batch(config, side=8, dtype=torch.float32):
    generator = seeded(1)
    x = torch.randn(3, config.channels, side, side, generator=generator).to(dtype)
    return x, torch.tensor([0.0, 0.3, 1.0], dtype=dtype), torch.tensor([0.0, 1.0, 0.0])


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_fresh_unet_predicts_exactly_its_input(config):
    x, t, flag = batch(config)
    assert torch.equal(UNet(config, seeded())(x, t, flag), x)


def test_a_fresh_mlp_predicts_exactly_its_input():
    x, t = torch.randn(4, 5, generator=seeded()), torch.rand(4, generator=seeded())
    for fourier in (False, True):
        assert torch.equal(MLP(MLPConfig(features=5, fourier=fourier), seeded())(x, t), x)


def closed_form_count(config):
    w, c = config.width, config.channels

    def block(inputs):
        shortcut = inputs * w + w if inputs != w else 0
        return 2 * inputs + 9 * inputs * w + w + 4 * w * w + 2 * w + 9 * w * w + w + shortcut

    attention = 2 * w + 4 * (w * w + w)
    attentions = 1 + (2 * config.depth + 1) * (config.attention == "everywhere")
    time = (w + 1) * 4 * w + 4 * w + 16 * w * w + 4 * w
    ends = 9 * 5 * c * w + w + 2 * w + 9 * w * c + c
    blocks = (config.depth + 2) * block(w) + (config.depth + 1) * block(2 * w)
    return time + ends + blocks + attentions * attention


@pytest.mark.parametrize("name", PAPER)
def test_parameter_counts_of_the_paper_are_those_of_the_closed_form(name):
    # Neither the paper nor its code prints a count: two derivations must agree instead, and
    # the next test holds the closed form against files the authors' code wrote.
    with torch.device("meta"):
        net = UNet(PAPER[name])
    assert sum(p.numel() for p in net.parameters()) == closed_form_count(PAPER[name])


@pytest.mark.parametrize(("name", "place"), [("tiny", "middle"), ("tiny_attention", "everywhere")])
def test_the_closed_form_counts_the_numbers_in_a_file_of_the_authors(name, place):
    network = read(REFERENCE / f"{name}.flax")["params"]["score_model"]
    config = UNetConfig(width=32, depth=2, attention=place)
    assert closed_form_count(config) == sum(array.size for _, array in leaves(network))


def test_kernels_start_lecun_normal_from_the_given_generator():
    before = torch.get_rng_state()
    one, two, other = (UNet(replace(TINY, width=64), seeded(s)) for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.conv_in.weight, two.conv_in.weight)
    assert not torch.equal(one.conv_in.weight, other.conv_in.weight)
    kernels = [m for m in one.modules() if isinstance(m, Dense | Conv)]
    assert sum(m.zero for m in kernels) == 2 * (2 * TINY.depth + 3) + 1 + 1
    for kernel in kernels:
        assert not kernel.zero or not kernel.weight.any()
    weight = one.up[0].block.conv1.weight  # 73,728 entries: 2% is five standard errors
    std = 1 / math.sqrt(9 * 128)
    assert weight.std().item() == pytest.approx(std, rel=0.02)
    assert weight.abs().max().item() <= 2 * std / 0.8796256610342398 + 1e-7


def test_time_and_flag_reach_the_output_and_no_flag_means_zero():
    net = scrambled(UNet(TINY)).eval()
    x, t, flag = batch(TINY)
    y = net(x, t, flag)
    assert torch.equal(net(x, t), net(x, t, torch.zeros(3)))
    moved = (y - net(x, t)).flatten(1).abs().amax(1) > 1e-5
    assert moved.tolist() == [False, True, False]
    assert ((y - net(x, t + 0.01, flag)).flatten(1).abs().amax(1) > 1e-5).all()


def test_the_sinusoid_runs_from_one_turn_per_unit_to_a_ten_thousandth():
    features = sinusoid(torch.tensor([0.25]), 6)[0]
    angles = torch.tensor([250.0, 2.5, 0.025])
    torch.testing.assert_close(
        features, torch.cat([angles.sin(), angles.cos()]), atol=2e-5, rtol=0
    )


@pytest.mark.parametrize("levels", [2, 17, 256])
def test_fourier_features_repeat_every_bin_and_every_second_bin(levels):
    x = torch.linspace(-1, 1, 11, dtype=torch.float64).reshape(1, 1, 11)
    here, next_bin = fourier_features(x, levels), fourier_features(x + 2 / levels, levels)
    _, slow_sine, fast_sine, slow_cosine, fast_cosine = range(5)
    fast, slow = [fast_sine, fast_cosine], [slow_sine, slow_cosine]
    torch.testing.assert_close(next_bin[:, fast], here[:, fast])
    torch.testing.assert_close(next_bin[:, slow], -here[:, slow])


def test_fourier_features_fade_with_time_and_x_stays():
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(2, 2, 3)
    t = torch.tensor([0.0, 0.3], dtype=torch.float64)
    full, faded = fourier_features(x, 17), fourier_features(x, 17, fading(t, 0.15))
    torch.testing.assert_close(faded[0], full[0])
    torch.testing.assert_close(faded[1, :2], full[1, :2])
    torch.testing.assert_close(faded[1, 2:], full[1, 2:] * math.exp(-4))


def test_the_small_presets_fade_and_the_papers_networks_do_not():
    fades = {name: p.net.fade for name, p in PRESETS.items() if name != "vectors"}
    small = {"digits", "fashion-mnist-small", "cifar10-small", "images"}
    assert {name for name, fade in fades.items() if fade} == small


@pytest.mark.parametrize(
    "change", [{"fade": -1.0}, {"fade": float("nan")}, {"fade": 0.1, "fourier": False}]
)
def test_a_fade_that_makes_no_sense_is_refused(change):
    for config in (TINY, MLPConfig(features=2, fourier=True)):
        with pytest.raises(InputError, match="^fade"):
            replace(config, **change)


@pytest.mark.parametrize("fade", [0.0, 0.1])
def test_a_network_with_fading_features_is_smooth_late_and_sees_bins_early(fade):
    # How much its output changes when an image moves by half a bin, which turns every wave.
    networks = [
        UNet(replace(TINY, fade=fade), seeded()),
        MLP(MLPConfig(features=6, levels=17, fourier=True, fade=fade), seeded()),
    ]
    for net, shape in zip(networks, [(1, 2, 8, 8), (1, 6)], strict=True):
        torch.manual_seed(0)
        for weight in net.parameters():
            weight.data += 0.1 * torch.randn_like(weight)
        x = torch.rand(shape)
        moved = [
            (net(x + 1 / 17, time) - net(x, time) - 1 / 17).abs().max().item()
            for time in (torch.tensor([0.0]), torch.tensor([0.5]))
        ]
        assert (moved[1] < 0.3 * moved[0]) == bool(fade)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_dropout_drops_independent_entries_at_its_rate_and_keeps_the_mean(layout):
    x = torch.ones(5, 7, 31, 33).contiguous(memory_format=layout)  # 35,805: no multiple of 4
    torch.manual_seed(0)
    y, again = dropout(x, 0.1), dropout(x, 0.1)
    dropped = (y == 0).double()
    assert y.stride() == x.stride()
    assert set(y.unique().tolist()) == {0.0, y.max().item()}
    assert y.max().item() == pytest.approx(1 / 0.9, rel=1e-4)
    # 5 standard errors: sqrt(0.09 / 35805) = 0.0016; of a correlation, 1 / sqrt(35805) = 0.0053
    assert dropped.mean().item() == pytest.approx(0.1, abs=0.008)
    flat = dropped.permute(0, 2, 3, 1).flatten() - dropped.mean()
    for shift in (1, 2, 3, 4, 7):  # neighbours share a 64-bit draw
        correlation = (flat * flat.roll(shift)).mean() / flat.square().mean()
        assert abs(correlation.item()) < 0.027
    assert not torch.equal(y, again)


def test_dropout_acts_only_while_training():
    net = scrambled(UNet(replace(TINY, dropout=0.5)))
    x, t, _ = batch(TINY)
    assert not torch.equal(net(x, t), net(x, t))
    net.eval()
    assert torch.equal(net(x, t), net(x, t))


def test_images_that_do_not_divide_are_refused_with_advice():
    x, t, _ = batch(TINY, side=6)
    with pytest.raises(InputError, match=r"6x6 pixels.*multiples of 4.*fewer halvings"):
        UNet(replace(TINY, halvings=2))(x, t)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 10}, "multiple of groups=4"),
        ({"depth": 0}, "depth: must be at least 1, got 0"),
        ({"attention": "nowhere"}, "middle, everywhere, none"),
        ({"dropout": 1.0}, "less than 1"),
        ({"halvings": 4}, "at most depth=3"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        replace(TINY, **changes)


def test_impossible_settings_of_an_mlp_are_refused():
    with pytest.raises(InputError, match="features: must be at least 1, got 0"):
        MLPConfig(features=0)
    with pytest.raises(InputError, match="even"):
        MLPConfig(features=2, width=7)


def divergence_and_its_gradient(net, x, t, flag):
    """Second-order use: the gradient, in the weights, of a squared probed divergence."""
    x = x.clone().requires_grad_()
    torch.manual_seed(0)  # dropout draws from the global state
    y = net(x, t, flag)
    probe = torch.randn(x.shape, generator=seeded(5)).sign()
    (vjp,) = torch.autograd.grad(y, x, probe, create_graph=True)
    loss = (vjp * probe).flatten(1).sum(1).square().sum() + y.square().sum()
    return y, vjp, torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)


@pytest.mark.parametrize("depth", [1, 9])  # 9: segments of two blocks, the last of one
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_checkpointing_changes_no_value_and_no_first_or_second_derivative(depth, dropout):
    config = replace(TINY, depth=depth, dropout=dropout, halvings=min(2, depth))
    plain = scrambled(UNet(config)).double()
    frugal = UNet(replace(config, checkpointing=True)).double()
    frugal.load_state_dict(plain.state_dict())
    args = batch(config, dtype=torch.float64)
    # Dropout is drawn in the same order by both: recomputation replays, it does not draw.
    for a, b in zip(
        divergence_and_its_gradient(plain, *args),
        divergence_and_its_gradient(frugal, *args),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_recomputation_leaves_the_random_state_as_a_plain_pass_does():
    config = replace(TINY, depth=9, dropout=0.5)
    x, t, _ = batch(config)
    states = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        UNet(replace(config, checkpointing=checkpointing))(x, t).sum().backward()
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def load_benchmark():
    path = Path(__file__).parent.parent / "benchmarks" / "networks.py"
    spec = importlib.util.spec_from_file_location("networks_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.once
def test_memory_with_checkpointing_grows_with_the_root_of_depth():
    benchmark = load_benchmark()
    plain = UNetConfig(width=32, depth=8, attention="none")
    for config, low, high in [(plain, 3.0, 4.2), (replace(plain, checkpointing=True), 1.0, 2.2)]:
        growth = benchmark.peak_memory(replace(config, depth=32)) / benchmark.peak_memory(config)
        assert low < growth < high  # 4 times the depth


def test_gradients_agree_with_finite_differences():
    config = replace(TINY, depth=1, halvings=1, attention="everywhere", levels=2)
    net = scrambled(UNet(config)).double()
    x = 0.1 * torch.randn(1, 2, 4, 4, dtype=torch.float64, generator=seeded())
    x.requires_grad_()
    t = torch.tensor([0.4], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: net(x, t), x, fast_mode=True)


def test_bfloat16_autocast_is_near_and_keeps_the_skip_exact():
    net = scrambled(UNet(replace(TINY, attention="everywhere"))).eval()
    x, t, flag = batch(TINY)
    exact = net(x, t, flag)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = net(x, t, flag)
        fresh = UNet(TINY)(x, t, flag)
    assert near.dtype == torch.float32
    assert torch.equal(fresh, x)
    # 8 bits of mantissa through a dozen layers
    assert ((near - exact).norm() / (exact - x).norm()).item() < 0.05


def test_skips_are_joined_in_the_dtype_that_the_next_layer_computes_in():
    h, skip = torch.rand(1, 2, 3, 3).bfloat16(), torch.rand(1, 2, 3, 3)
    assert with_skip(h, skip).dtype == torch.float32  # nothing is lost where nothing is lowered
    assert torch.equal(with_skip(h, skip)[:, 2:], skip)
    with torch.autocast("cpu", torch.bfloat16):
        both = with_skip(h, skip)
        assert with_skip(h.double(), skip.double()).dtype == torch.float64  # as autocast leaves it
    assert both.dtype == torch.bfloat16
    assert torch.equal(both, torch.cat([h, skip.bfloat16()], dim=1))


def test_layouts_agree_and_the_output_is_laid_out_like_the_input():
    net = scrambled(UNet(TINY)).eval()
    x, t, flag = batch(TINY)
    fast = net(x, t, flag)
    assert fast.is_contiguous()
    assert net.conv_in.weight.is_contiguous(memory_format=torch.channels_last)
    # Strides that DistributedDataParallel finds in gradients too: else it warns, on every process.
    assert all(p.stride(1) == 1 for p in net.parameters() if p.ndim == 4)
    assert all(p.stride(3) == p.shape[1] for p in net.parameters() if p.ndim == 4)
    plain = net.to(memory_format=torch.contiguous_format)(x, t, flag)
    torch.testing.assert_close(plain, fast, rtol=1e-4, atol=1e-5)


def test_an_mlp_uses_time_flag_and_dropout():
    config = MLPConfig(features=5, width=16, depth=2, dropout=0.5, flag=True)
    net = scrambled(MLP(config))
    x, t = torch.randn(4, 5, generator=seeded()), torch.rand(4, generator=seeded())
    torch.manual_seed(0)
    assert not torch.equal(net(x, t), net(x, t))
    net.eval()
    assert not torch.equal(net(x, t), net(x, t, torch.ones(4)))
    assert not torch.equal(net(x, t), net(x, t / 2))
    assert torch.equal(net(x, t), net(x, t, torch.zeros(4)))
