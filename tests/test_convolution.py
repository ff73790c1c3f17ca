"""The weight gradient of our own against the library's."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import tiny
import torch
from torch.nn import functional as F

from idode.nets import normalisation
from idode.nets.config import UNetConfig
from idode.nets.convolution import Convolution, convolve, pays, weight_gradient
from idode.nets.layers import Conv, initialise, use_fast_backward
from idode.nets.unet import UNet
from idode.runs.config import TrainConfig
from idode.training.optimisation import adam


def tensors(batch, inputs, outputs, height, width, dtype=torch.float64):
    drawn = torch.Generator().manual_seed(0)
    x = torch.randn(batch, inputs, height, width, generator=drawn, dtype=dtype)
    weight = torch.randn(outputs, inputs, 3, 3, generator=drawn, dtype=dtype)
    grad = torch.randn(batch, outputs, height, width, generator=drawn, dtype=dtype)
    bias = torch.randn(outputs, generator=drawn, dtype=dtype)
    last = torch.channels_last
    return x.to(memory_format=last), weight.to(memory_format=last), bias, grad


@pytest.mark.parametrize(
    "shape",
    [(5, 3, 2, 4, 12), (1, 1, 1, 4, 4), (7, 64, 64, 8, 8), (4, 256, 128, 32, 32)],
)
def test_the_gradient_is_that_of_the_convolution(shape):
    x, weight, bias, grad = (z.requires_grad_() for z in tensors(*shape))
    ours = torch.autograd.grad(convolve(x, weight, bias), (x, weight, bias), grad)
    theirs = torch.autograd.grad(
        F.conv2d(x, weight, bias, padding=1), (x, weight, bias), grad.detach()
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("images", [1, 2, 3, 6])
def test_the_gradient_does_not_depend_on_the_pieces_it_is_taken_in(images, monkeypatch):
    x, _, _, grad = tensors(6, 5, 3, 4, 8)
    room = images * 4 * 8 * (5 + 3)  # entries of so many images
    monkeypatch.setattr("idode.nets.convolution.ENTRIES", room)
    truth = torch.nn.grad.conv2d_weight(x, (3, 5, 3, 3), grad, padding=1)
    torch.testing.assert_close(weight_gradient(x, grad), truth)


def test_its_error_in_float32_is_about_a_millionth():
    x, weight, _, grad = tensors(16, 64, 64, 32, 32)
    truth = torch.nn.grad.conv2d_weight(x, weight.shape, grad, padding=1)
    ours = weight_gradient(x.float(), grad.float()).double()
    assert (ours - truth).norm() < 3e-6 * truth.norm()


def test_a_second_derivative_is_refused_instead_of_wrong():
    x, weight, bias, _ = (z.requires_grad_() for z in tensors(2, 3, 2, 4, 4))
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.grad(convolve(x, weight, bias).sum(), weight, create_graph=True)


def test_its_matrices_stay_where_the_images_are(monkeypatch):
    from idode.nets.convolution import _transforms

    _transforms.cache_clear()
    with torch.device("meta"):
        assert all(m.device.type == "cpu" for m in _transforms())


def ours(y: torch.Tensor) -> bool:
    return isinstance(y.grad_fn, Convolution._backward_cls)


def test_it_is_used_where_it_pays_and_nowhere_else():
    conv = Conv(64, 64)
    x, *_ = tensors(2, 64, 64, 8, 8, torch.float32)
    assert not ours(conv(x))  # until it is asked for
    use_fast_backward(conv)
    assert pays(x, conv.weight)
    assert ours(conv(x))
    assert not pays(x[:0], conv.weight)
    assert not pays(x[:, :, :6], conv.weight)  # half a tile
    assert not pays(x.contiguous(), conv.weight)
    assert not pays(x, Conv(64, 32).weight)
    assert not pays(x, Conv(64, 64, size=1).weight)
    with torch.no_grad():
        assert not pays(x, conv.weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert not pays(x, conv.weight)
    assert not pays(x, conv.weight.detach())
    assert not pays(x.bfloat16(), conv.bfloat16().weight)  # the transforms would lose digits


@pytest.mark.parametrize("frugal", [False, True])
def test_a_network_has_the_gradients_it_had(frugal, monkeypatch):
    config = UNetConfig(
        channels=3, width=64, depth=2, dropout=0.0, attention="none", checkpointing=frugal
    )
    net = UNet(config)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    calls = Counter()

    def counted(function):
        def call(*args):
            calls[function.__name__] += 1
            return function(*args)

        return call

    for function in (weight_gradient, normalisation.gradients):
        monkeypatch.setattr(
            f"{function.__module__}.{function.__name__}", counted(function), raising=True
        )

    def gradients():
        net.zero_grad()
        net(x, torch.tensor([0.2, 0.7])).square().sum().backward()
        return [p.grad.clone() for p in net.parameters()]

    theirs = gradients()
    assert not calls
    use_fast_backward(net)
    for a, b in zip(gradients(), theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(b.abs().max()) + 1e-7)
    # Two norms and two kernels in each of the 2 + 2 + 3 blocks, and the norm at the end.
    assert calls == {"weight_gradient": 14, "gradients": 15}


def test_adams_steps_are_the_plain_ones(generator):
    conv = Conv(64, 64)
    initialise(conv, generator)
    twin = copy.deepcopy(conv)
    x, *_ = tensors(2, 64, 64, 8, 8, torch.float32)
    use_fast_backward(conv)
    settings = TrainConfig(lr=0.1)
    ours, plain = adam(conv.named_parameters(), settings), adam(twin.named_parameters(), settings)
    assert ours.param_groups[0]["fused"]
    for group in plain.param_groups:
        group["fused"] = False
    for _ in range(2):
        for module, optimiser in ((conv, ours), (twin, plain)):
            optimiser.zero_grad()
            module(x).square().sum().backward()
            optimiser.step()
    # Fused steps read memory in order: a gradient in another layout would move other weights.
    torch.testing.assert_close(conv.weight, twin.weight, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("order", "quick"), [(1, True), (2, False)])
def test_training_takes_it_where_the_network_is_not_differentiated(tmp_path, order, quick):
    trainer = tiny.train(tmp_path, f"objective.order={order}", "train.steps=1")
    net, average = trainer.state.net, trainer.state.average.net
    assert net.conv_in.quick is net.norm_out.quick is quick
    assert not average.conv_in.quick
    assert not average.norm_out.quick
