"""The weight gradient of our own against the library's."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch.nn import functional as F

from idode.nets import UNet, UNetConfig, quicken
from idode.nets.convolution import convolve, pays, weight_gradient
from idode.nets.layers import Conv


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
    [(5, 3, 2, 4, 6), (1, 1, 1, 2, 2), (3, 2, 2, 7, 9), (7, 64, 64, 8, 8), (4, 256, 128, 32, 32)],
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
    x, _, _, grad = tensors(6, 5, 3, 4, 6)
    room = images * 4 * 8 * (5 + 3)  # entries of so many images, in whole tiles
    monkeypatch.setattr("idode.nets.convolution.ENTRIES", room)
    truth = torch.nn.grad.conv2d_weight(x, (3, 5, 3, 3), grad, padding=1)
    torch.testing.assert_close(weight_gradient(x, grad), truth)


def test_it_is_more_exact_than_the_librarys_in_float32():
    x, weight, _, grad = tensors(16, 64, 64, 32, 32)
    truth = weight_gradient(x, grad)
    ours = weight_gradient(x.float(), grad.float()).double()
    theirs = torch.nn.grad.conv2d_weight(x.float(), weight.shape, grad.float(), padding=1)
    assert (ours - truth).norm() < 3e-6 * truth.norm()
    assert (ours - truth).norm() < (theirs.double() - truth).norm()


def test_it_can_be_differentiated_again():
    x, weight, bias, _ = (z.requires_grad_() for z in tensors(2, 3, 2, 4, 4))
    assert torch.autograd.gradgradcheck(convolve, (x, weight, bias))


def test_it_is_used_where_it_pays_and_nowhere_else():
    conv = Conv(64, 64)
    x, *_ = tensors(2, 64, 64, 8, 8, torch.float32)
    assert type(conv(x).grad_fn).__name__ != "ConvolutionBackward"  # until it is asked for
    quicken(conv)
    assert pays(x, conv.weight)
    assert type(conv(x).grad_fn).__name__ == "ConvolutionBackward"
    assert not pays(x.contiguous(), conv.weight)
    assert not pays(x, Conv(64, 32).weight)
    assert not pays(x, Conv(64, 64, size=1).weight)
    with torch.no_grad():
        assert not pays(x, conv.weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert not pays(x, conv.weight)
    assert not pays(x, conv.weight.detach())


def test_a_network_has_the_gradients_it_had():
    config = UNetConfig(channels=3, width=64, depth=2, dropout=0.0, attention="none")
    net = UNet(config)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))

    def gradients():
        net.zero_grad()
        net(x, torch.tensor([0.2, 0.7])).square().sum().backward()
        return [p.grad.clone() for p in net.parameters()]

    theirs = gradients()
    quicken(net)
    for a, b in zip(gradients(), theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(b.abs().max()) + 1e-7)


@pytest.mark.parametrize(("order", "quick"), [(1, True), (2, False)])
def test_training_takes_it_where_the_network_is_not_differentiated(tmp_path, order, quick):
    trainer = tiny.train(tmp_path, f"objective.order={order}", "train.steps=1")
    assert trainer.state.net.conv_in.quick is quick
