"""The backward pass of our swished norm against the library's."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from idode.nets.normalisation import Swished, SwishNorm


def made(channels, groups, dtype=torch.float64):
    drawn = torch.Generator().manual_seed(0)
    norm = SwishNorm(groups, channels).to(dtype)
    with torch.no_grad():
        for p in norm.parameters():
            p.copy_(torch.randn(p.shape, generator=drawn, dtype=dtype))
    x, grad = (
        # A mean far from nought would show a term that is left out.
        (3 + torch.randn(3, channels, 5, 4, generator=drawn, dtype=dtype)).to(
            memory_format=torch.channels_last
        )
        for _ in range(2)
    )
    return norm, x.requires_grad_(), grad


@pytest.mark.parametrize(("channels", "groups"), [(8, 8), (8, 4), (12, 3)])
def test_value_and_gradients_are_the_librarys(channels, groups):
    norm, x, grad = made(channels, groups)
    found = []
    for quick in (True, False):
        norm.quick = quick
        y = norm(x)
        assert isinstance(y.grad_fn, Swished._backward_cls) is quick
        found.append((y, *torch.autograd.grad(y, (x, norm.weight, norm.bias), grad)))
    for ours, theirs in zip(*found, strict=True):
        assert ours.is_contiguous(memory_format=torch.channels_last) or ours.ndim == 1
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_a_gradient_in_another_layout_gives_the_same_in_ours():
    norm, x, grad = made(8, 4)
    norm.quick = True
    found = [torch.autograd.grad(norm(x), x, g)[0] for g in (grad, grad.contiguous())]
    assert torch.equal(*found)
    assert all(z.is_contiguous(memory_format=torch.channels_last) for z in found)


def test_input_without_gradient_leaves_those_of_scale_and_shift():
    norm, x, grad = made(8, 4)
    # All three: without that of the input the library crashes in this layout (torch 2.13).
    _, *wanted = torch.autograd.grad(norm(x), (x, norm.weight, norm.bias), grad)
    norm.quick = True
    found = torch.autograd.grad(norm(x.detach()), (norm.weight, norm.bias), grad)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_second_derivative_is_refused_instead_of_wrong():
    norm, x, _ = made(4, 2)
    norm.quick = True
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.grad(norm(x).sum(), x, create_graph=True)


@pytest.mark.parametrize(("channels", "groups"), [(8, 8), (16, 4), (24, 2)])
def test_under_autocast_gradients_are_those_of_float64_to_the_digits_of_bfloat16(channels, groups):
    norm, x, grad = made(channels, groups, torch.float32)
    norm.quick = True
    truth, exact, _ = made(channels, groups)
    with torch.no_grad():
        exact.copy_(x.bfloat16())  # as the layer sees it
        for p, q in zip(truth.parameters(), norm.parameters(), strict=True):
            p.copy_(q)
    y = truth(exact)
    grad = grad.bfloat16()
    wanted = (y, *torch.autograd.grad(y, (exact, truth.weight, truth.bias), grad.double()))
    with torch.autocast("cpu", torch.bfloat16):
        y = norm(x)
    assert y.dtype == torch.bfloat16
    assert isinstance(y.grad_fn, Swished._backward_cls)
    found = (y, *torch.autograd.grad(y, (x, norm.weight, norm.bias), grad))
    assert [z.dtype for z in found[1:]] == [torch.float32] * 3
    for ours, theirs in zip(found, wanted, strict=True):
        # A unit in the last place is 0.008, and terms of the mean cancel.
        assert (ours - theirs).norm() < 0.03 * theirs.norm()


def test_it_is_used_where_it_pays_and_nowhere_else():
    norm, x, _ = made(8, 4)
    norm.quick = True
    assert norm.pays(x)
    assert not SwishNorm(1, 8).double().pays(x)  # eight channels in a group
    assert not norm.pays(x.contiguous())
    assert not norm.pays(x.float())
    assert not norm.requires_grad_(False).pays(x)
    norm.requires_grad_()
    with torch.no_grad():
        assert not norm.pays(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert not norm.pays(x)  # weights of float64
        assert norm.float().pays(x.float())
        assert not SwishNorm(1, 16).pays(x.float())  # sixteen channels in a group
    with torch.autocast("cpu", torch.float16):
        assert not norm.pays(x.float())
    assert not norm.bfloat16().pays(x.bfloat16())  # its sums would be of bfloat16
    norm.double()
    theirs = F.silu(F.group_norm(x, 4, norm.weight, norm.bias, 1e-6))
    torch.testing.assert_close(norm(x), theirs)
