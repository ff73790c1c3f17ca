from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from idode.errors import InputError
from idode.nets.config import UNetConfig
from idode.nets.flax_format import decode, encode, leaves, read
from idode.nets.unet import UNet
from idode.nets.vdm_weights import (
    from_state_dict,
    infer_config,
    learned_gamma_range,
    to_state_dict,
)

REFERENCE = Path(__file__).parent / "reference"
NAMES = ("tiny", "tiny_attention")
GAMMA_MIN, GAMMA_MAX = -13.3, 5.0


def images(array):
    return torch.from_numpy(array).permute(0, 3, 1, 2)


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


@pytest.fixture(scope="module", params=NAMES)
def reference(request):
    tree = read(REFERENCE / f"{request.param}.flax")
    config = infer_config(tree)
    net = UNet(config).eval()
    net.load_state_dict(to_state_dict(tree, config))
    with np.load(REFERENCE / f"{request.param}.npz") as file:
        arrays = dict(file)
    return request.param, tree, config, net, arrays


@pytest.mark.parametrize("schedule", ["VP", "SP"])
def test_the_network_agrees_with_the_authors_own(reference, schedule):
    _, _, _, net, arrays = reference
    t = (torch.from_numpy(arrays["gamma"]) - GAMMA_MIN) / (GAMMA_MAX - GAMMA_MIN)
    flag = torch.from_numpy(arrays["cond"])
    for given, wanted in [("velocity_z", "net"), ("noise_z", "noise_eps_hat")]:
        expected = images(arrays[f"{schedule}_{wanted}"])
        with torch.no_grad():
            y = net(images(arrays[f"{schedule}_{given}"]), t, flag)
        # the change, not the value: the network adds its input, which hides half of an error
        x = images(arrays[f"{schedule}_{given}"])
        for a, b in zip(y - x, expected - x, strict=True):
            assert relative(a, b) < 1e-4


def test_the_tiny_references_cannot_see_their_time_or_flag(reference):
    # 32 channels in 32 groups: the second normalisation subtracts just what the condition adds.
    # So parity on them says nothing of the conditioning; the next test does.
    _, _, _, net, arrays = reference
    x = images(arrays["VP_velocity_z"])
    with torch.no_grad():
        elsewhere = net(x, torch.full((3,), 0.5), 1 - torch.from_numpy(arrays["cond"]))
    assert relative(elsewhere - x, images(arrays["VP_net"]) - x) < 1e-4


def formula_weights(config):
    """Weights from a formula, so that the reference of 64 channels needs no file of weights."""
    tree = from_state_dict(UNet(config).state_dict(), config)
    for seed, (name, array) in enumerate(sorted(leaves(tree["score_model"]))):
        i = np.arange(array.size, dtype=np.float64)
        value = np.cos(0.7548776662 * ((i + 1 + seed) ** 2 % 8191)).reshape(array.shape)
        if name.endswith("kernel"):
            value *= np.sqrt(2 / np.prod(array.shape[:-1])) * (3 if "cond_proj" in name else 1)
        else:
            value = 0.3 * value + name.endswith("scale")
        array[...] = value
    return tree


def test_time_and_flag_enter_as_in_the_published_network():
    # Output of the published flax network (64 channels, attention everywhere, run apart from
    # this project); images 1 and 2 are equal in all but the flag.
    config = UNetConfig(width=64, depth=1, attention="everywhere")
    net = UNet(config).eval()
    net.load_state_dict(to_state_dict(formula_weights(config), config))
    with np.load(REFERENCE / "conditioned.npz") as file:
        x, expected = images(file["z"]), images(file["net"])
        t = (torch.from_numpy(file["gamma"]) - GAMMA_MIN) / (GAMMA_MAX - GAMMA_MIN)
        flag = torch.from_numpy(file["cond"])
    with torch.no_grad():
        y, later, flipped = net(x, t, flag), net(x, t + 0.05, flag), net(x, t, 1 - flag)
    assert relative(y - x, expected - x) < 1e-4
    assert relative(later - x, expected - x) > 1e-2
    assert relative(flipped - x, expected - x) > 1e-2
    assert relative(y[1], y[2]) > 1e-2


@pytest.mark.parametrize("schedule", ["VP", "SP"])
def test_one_backward_pass_gives_the_authors_divergence(reference, schedule):
    _, _, _, net, arrays = reference
    gamma = torch.from_numpy(arrays["gamma"])
    x = images(arrays[f"{schedule}_velocity_z"]).requires_grad_()
    probe = images(arrays[f"{schedule}_div_probe"])
    t = (gamma - GAMMA_MIN) / (GAMMA_MAX - GAMMA_MIN)
    (vjp,) = torch.autograd.grad(net(x, t, torch.from_numpy(arrays["cond"])), x, probe)
    if schedule == "VP":  # the drift is speed times the network
        speed = torch.sqrt(torch.sigmoid(gamma) * torch.sigmoid(-gamma)) / 2
    else:
        speed = torch.sigmoid(gamma / 2) * torch.sigmoid(-gamma / 2) / 2**0.5
    div = speed * (vjp * probe).flatten(1).sum(1)
    torch.testing.assert_close(div, torch.from_numpy(arrays[f"{schedule}_div"]), rtol=1e-4, atol=0)


def test_our_weights_to_their_format_to_ours_is_the_identity(reference):
    _, tree, config, net, _ = reference
    state = net.state_dict()
    theirs = decode(encode(from_state_dict(state, config)))
    assert infer_config(theirs) == config
    back = to_state_dict(theirs, config)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)
    assert encode(theirs["score_model"]) == encode(tree["ema_params"]["score_model"])


def test_the_average_is_the_default_and_raw_weights_are_on_request(reference):
    _, tree, config, _, _ = reference
    average, raw = to_state_dict(tree, config), to_state_dict(tree, config, raw=True)
    kernel = tree["params"]["score_model"]["dense0"]["kernel"]
    assert np.array_equal(raw["time.dense0.weight"].numpy(), kernel.T)
    assert not torch.equal(average["time.dense0.weight"], raw["time.dense0.weight"])


@pytest.mark.parametrize(
    "config",
    [
        UNetConfig(width=64, depth=1, channels=1),
        UNetConfig(width=32, depth=12, fourier=False, flag=False, attention="none"),
        UNetConfig(width=32, depth=3, channels=4, attention="everywhere", levels=17),
    ],
    ids=str,
)
def test_any_network_of_the_family_is_recognised_from_its_weights(config):
    tree = from_state_dict(UNet(config).state_dict(), config)
    assert infer_config(tree, levels=config.levels) == config


@pytest.mark.parametrize("change", [{"halvings": 1}, {"groups": 16}, {"fade": 0.1}])
def test_networks_their_format_cannot_say_are_refused(change):
    config = UNetConfig(width=32, depth=1, **change)
    with pytest.raises(InputError, match="published format holds only"):
        from_state_dict(UNet(config).state_dict(), config)


def tiny():
    return read(REFERENCE / "tiny.flax")


def test_a_missing_an_extra_and_a_misshapen_array_are_named():
    tree = tiny()
    network = tree["ema_params"]["score_model"]
    del network["mid.block_1"]["conv2"]["bias"]
    network["up.block_0"]["conv3"] = {"kernel": np.zeros(2, np.float32)}
    network["conv_out"]["bias"] = np.zeros(4, np.float32)
    with pytest.raises(InputError) as refusal:
        infer_config(tree)
    message = str(refusal.value)
    assert "lacks mid.block_1/conv2/bias" in message
    assert "besides up.block_0/conv3/kernel" in message
    assert "conv_out/bias (4,) instead of (3,)" in message


def test_weights_that_do_not_fit_the_settings_are_refused():
    with pytest.raises(InputError, match=r"lacks down.block_2/.* and \d+ more"):
        to_state_dict(tiny(), replace(infer_config(tiny()), depth=3))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.full(3, np.nan, np.float32), "not finite"),
        (np.zeros(3, np.int32), "floating-point"),
        (1.5, "floating-point"),
    ],
)
def test_values_that_are_no_weights_are_refused(value, message):
    tree = tiny()
    tree["ema_params"]["score_model"]["conv_out"]["bias"] = value
    with pytest.raises(InputError, match=message):
        to_state_dict(tree, UNetConfig(width=32, depth=2))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "has nothing and no ema_params/score_model"),
        ({"params": {"score_model": {}}}, "has params and no ema_params"),
        ({"ema_params": {"score_model": 3}}, "no ema_params/score_model"),
        ({"score_model": 3}, "not a tree"),
        ({"ema_params": {"score_model": {}}}, "no conv_in/kernel"),
        ({"ema_params": {"score_model": {}, "decoder": {}}}, "the checkpoint has decoder"),
    ],
)
def test_trees_that_are_no_checkpoint_are_refused(tree, message):
    with pytest.raises(InputError, match=message):
        infer_config(tree)


def test_a_million_claimed_blocks_are_refused_before_any_is_built():
    tree = tiny()
    network = tree["ema_params"]["score_model"]
    network.update({f"down.block_{i}": {"x": 0} for i in range(2, 5000)})
    with pytest.raises(InputError, match="5000 blocks"):
        infer_config(tree)


def with_gamma(gamma):
    tree = tiny()
    tree["ema_params"]["gamma"] = gamma
    return tree


def test_a_fixed_schedule_has_no_learned_range():
    assert learned_gamma_range(tiny()) is None


def test_a_learned_line_gives_its_ends_and_leaves_the_network_alone():
    tree = with_gamma({"w": np.float32([-17.5]), "b": np.float32([-12.0])})
    assert learned_gamma_range(tree) == (-12.0, 5.5)
    assert infer_config(tree) == infer_config(tiny())


def test_a_learned_monotone_network_gives_its_ends():
    generator = np.random.default_rng(0)
    one, two, three = (generator.normal(size=(1, n)).astype(np.float32) for n in (1, 64, 64))
    bias1, bias2 = np.float32([-13.0]), generator.normal(size=64).astype(np.float32)
    tree = with_gamma(
        {
            "l1": {"kernel": 18 * one, "bias": bias1},
            "l2": {"kernel": two, "bias": bias2},
            "l3": {"kernel": three.T},
        }
    )

    def gamma(t):  # the published definition, layer by layer
        hidden = (2 * t - 1) * np.abs(two[0]) + bias2
        hidden = 2 * (1 / (1 + np.exp(-hidden)) - 0.5)
        return float(np.abs(18 * one[0, 0]) * t + bias1[0] + hidden @ np.abs(three[0]) / 64)

    assert learned_gamma_range(tree) == pytest.approx((gamma(0.0), gamma(1.0)), rel=1e-5)


@pytest.mark.parametrize(
    ("gamma", "message"),
    [
        ({"w": np.float32([1.0])}, "has w: none we know"),
        ({"w": np.float32([0.0]), "b": np.float32([1.0])}, "from 1 to 1"),
        ({"w": np.float32([np.nan]), "b": np.float32([1.0])}, "to nan"),
        ({"w": "text", "b": np.float32([1.0])}, "not numbers"),
        (7, "not a tree"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(gamma, message):
    with pytest.raises(InputError, match=message):
        learned_gamma_range(with_gamma(gamma))


def test_every_leaf_of_the_reference_is_accounted_for(reference):
    _, tree, config, net, _ = reference
    count = sum(array.size for _, array in leaves(tree["params"]["score_model"]))
    assert count == sum(p.numel() for p in net.parameters())
    assert config.depth == 2
