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
        assert (type(y.grad_fn).__name__ == "SwishedBackward") is quick
        found.append((y, *torch.autograd.grad(y, (x, norm.weight, norm.bias), grad)))
    for ours, theirs in zip(*found, strict=True):
        assert ours.is_contiguous(memory_format=torch.channels_last) or ours.ndim == 1
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_it_can_be_differentiated_again():
    norm, x, _ = made(4, 2)
    inputs = (x, norm.weight, norm.bias)
    assert torch.autograd.gradgradcheck(lambda *z: Swished.apply(*z, 2, 1e-6), inputs)


def test_it_is_used_where_it_pays_and_nowhere_else():
    norm, x, _ = made(8, 4)
    norm.quick = True
    assert norm.pays(x)
    assert not SwishNorm(1, 8).double().pays(x)  # eight channels in a group
    assert not norm.pays(x.contiguous())
    assert not norm.pays(x.float())
    with torch.no_grad():
        assert not norm.pays(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert not norm.pays(x)
    theirs = F.silu(F.group_norm(x, 4, norm.weight, norm.bias, 1e-6))
    torch.testing.assert_close(norm(x), theirs)
