"""The pieces both networks are built from: kernels, time conditioning, residual blocks, attention.

Every kernel is either LeCun normal or zero. A zero kernel ends each residual branch, so a fresh
block is the identity and a fresh network predicts exactly its input.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idode.nets.convolution import convolve, pays
from idode.nets.normalisation import SwishNorm
from idode.numerics import autocast_dtype

__all__ = [
    "Attention",
    "Conv",
    "Dense",
    "ResidualBlock",
    "TimeCondition",
    "arranged",
    "dropout",
    "fourier_features",
    "initialise",
    "sinusoid",
    "use_fast_backward",
    "with_skip",
]

# Standard deviation of a unit normal cut at two of its own: dividing by it restores the variance.
CUT_STD = 0.87962566103423978


class Dense(nn.Linear):
    """Affine map of the last axis; ``zero`` starts it at nought."""

    def __init__(
        self, inputs: int, outputs: int, *, bias: bool = True, zero: bool = False
    ) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.zero = zero

    def reset_parameters(self) -> None:
        """Draw nothing: :func:`initialise` does, from the caller's generator."""


class Conv(nn.Conv2d):
    """Convolution that keeps the image size; ``zero`` starts it at nought.

    The kernel is stored channels-last, and the activations take their layout from it: our weight
    gradient needs it, and nothing is slower for it (docs/results/networks.md).
    """

    def __init__(self, inputs: int, outputs: int, size: int = 3, *, zero: bool = False) -> None:
        super().__init__(inputs, outputs, size, padding=size // 2)
        self.zero, self.quick = zero, False
        # Written out, since `contiguous` leaves the strides of 1x1 kernels, which mean nothing, as
        # they are; gradients have these, and processes that exchange them warn of others.
        strides = (inputs * size * size, 1, inputs * size, inputs)
        self.weight.data = self.weight.data.new_empty_strided(self.weight.shape, strides)

    def reset_parameters(self) -> None:
        """Draw nothing: :func:`initialise` does, from the caller's generator."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, inputs, H, W)`` to ``(B, outputs, H, W)``."""
        if self.quick and self.bias is not None and pays(x, self.weight):
            return convolve(x, self.weight, self.bias)
        return super().forward(x)


def use_fast_backward(network: nn.Module, on: bool = True) -> None:
    """Go back through convolutions and norms the quick way where it pays.

    See :mod:`idode.nets.convolution` and :mod:`idode.nets.normalisation`. For training that asks
    for gradients of the weights, once: a derivative by the input would compute those of the
    weights beside it, a second one is refused, and ``torch.func`` knows nothing of them.
    """
    for module in network.modules():
        if isinstance(module, Conv | SwishNorm):
            module.quick = on


def arranged(network: nn.Module) -> nn.Module:
    """The network with its kernels in the layout that suits its device.

    Ours is channels-last, for the CPU. On CUDA a group norm gives back the other layout
    (pytorch #111824), so channels-last would be copied to and fro at every norm.
    """
    on_cpu = all(p.device.type == "cpu" for p in network.parameters())
    if on_cpu:
        return network
    return network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload, no-any-return]


def with_skip(h: Tensor, skip: Tensor) -> Tensor:
    """Both side by side, ``(B, 2 C, H, W)``, in the dtype of autocast where that is on.

    Skips come in float32 there, and every layer would round the wide tensor for itself. A norm
    that autocast computes in float32, as on a GPU, is given the rounded skip.
    """
    lowered = autocast_dtype(h)
    if lowered is not None:  # which leaves float64 as it is
        h, skip = (z.to(lowered) if z.dtype == torch.float32 else z for z in (h, skip))
    return torch.cat([h, skip], dim=1)


def initialise(network: nn.Module, generator: torch.Generator | None) -> None:
    """Kernels LeCun normal (variance 1/inputs, cut at two standard deviations) or zero; biases 0.

    Without a generator the draw is that of seed 0: never the global one, so building a network
    disturbs nobody's random numbers.
    """
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    for module in network.modules():
        if not isinstance(module, Dense | Conv):
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)
        if module.zero:
            nn.init.zeros_(module.weight)
        else:
            std = 1 / (CUT_STD * math.sqrt(module.weight[0].numel()))
            nn.init.trunc_normal_(
                module.weight, std=std, a=-2 * std, b=2 * std, generator=generator
            )


def sinusoid(t: Tensor, width: int) -> Tensor:
    """``[sin(1000 t w_i) | cos(1000 t w_i)]`` with w_i from 1 down to 1/10000, ``(B, width)``."""
    half = width // 2
    i = torch.arange(half, dtype=t.dtype, device=t.device)
    angle = 1000 * t[:, None] * torch.exp(i * (-math.log(10000) / (half - 1)))
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def fading(t: Tensor, fade: float) -> Tensor | None:
    """Strength ``exp(-(t / fade)^2)`` of Fourier features at times ``(B,)``; 0: always full."""
    return torch.exp(-(t / fade).square()) if fade else None


def fourier_features(x: Tensor, levels: int, strength: Tensor | None = None) -> Tensor:
    """``[x | sines | cosines]`` of pi L/2 x and pi L x along axis 1, which grows fivefold.

    Their periods are two grey levels and one: without them a network is blind to differences
    as fine as the bins its likelihood is measured in. The two frequencies of one channel stand
    side by side, the order of the published weights.

    Noise wider than a bin leaves nothing to see in them, but a step of the ODE turns them many
    times, and whatever a network still makes of them roughens its field. Their ``strength``
    ``(B,)`` lets them fade (docs/results/networks.md).
    """
    frequency = math.pi * levels * (torch.arange(1, 3, dtype=x.dtype, device=x.device) / 2)
    angle = (x.unsqueeze(2) * frequency.reshape(-1, *[1] * (x.ndim - 2))).flatten(1, 2)
    waves = torch.cat([angle.sin(), angle.cos()], dim=1)
    if strength is not None:
        waves = waves * strength.to(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
    return torch.cat([x, waves], dim=1)


class TimeCondition(nn.Module):
    """Time in [0, 1], augmentation flag and code to one vector per sample, ``(B, 4 width)``."""

    def __init__(self, width: int, *, flag: bool, code: int = 0) -> None:
        super().__init__()
        self.width, self.flag = width, flag
        self.dense0 = Dense(width + flag + code, 4 * width)
        self.dense1 = Dense(4 * width, 4 * width)

    def forward(self, t: Tensor, flag: Tensor | None, code: Tensor | None = None) -> Tensor:
        """``t`` and ``flag`` of shape ``(B,)``, ``code`` ``(B, code)``; no flag: not augmented."""
        features = sinusoid(t, self.width)
        if self.flag:
            flag = torch.zeros_like(t) if flag is None else flag.to(t.dtype)
            features = torch.cat([features, flag[:, None]], dim=1)
        if code is not None:
            features = torch.cat([features, code.to(t.dtype)], dim=1)
        # The sinusoid needs the precision of t, the layers the dtype of their weights.
        hidden = F.silu(self.dense0(features.to(self.dense0.weight.dtype)))
        return F.silu(self.dense1(hidden))


def dropout(x: Tensor, rate: float) -> Tensor:
    """Entries of ``x`` zeroed at ``rate`` (on CPU in steps of 2^-16), the others scaled to match.

    On CPU four decisions per 64-bit draw: draws come one after another there, and the library's
    dropout costs a fifth of a forward pass per training step (docs/results/networks.md). GPUs have
    it in one kernel, which keeps a byte for each entry where ours would keep four.
    """
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    threshold = min(round(rate * 2**16), 2**16 - 1)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
    bits = draws.random_(-(2**63), None).view(torch.int16)
    keep = bits.as_strided(x.shape, x.stride()) >= threshold - 2**15  # laid out like x
    return x * keep.to(x.dtype).mul_(1 / (1 - threshold / 2**16))


class ResidualBlock(nn.Module):
    """``shortcut(x) + conv2(drop(act(conv1(act(x)) + condition)))``, act = swish of GroupNorm."""

    def __init__(
        self, inputs: int, outputs: int, *, condition: int, groups: int, dropout: float
    ) -> None:
        super().__init__()
        self.norm1 = SwishNorm(groups, inputs)
        self.conv1 = Conv(inputs, outputs)
        self.condition = Dense(condition, outputs, bias=False, zero=True)
        self.norm2 = SwishNorm(groups, outputs)
        self.dropout = dropout
        self.conv2 = Conv(outputs, outputs, zero=True)
        self.shortcut = Conv(inputs, outputs, size=1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """``x`` is ``(B, inputs, H, W)``, ``condition`` is ``(B, condition)``."""
        h = self.conv1(self.norm1(x))
        h = self.norm2(h + self.condition(condition)[:, :, None, None])
        if self.training and self.dropout:
            h = dropout(h, self.dropout)
        branch: Tensor = self.conv2(h)
        shortcut: Tensor = self.shortcut(x)
        return shortcut + branch


class Attention(nn.Module):
    """``x + out(softmax(q k / sqrt(C)) v)`` over all pixels, one head.

    Written out because the fused kernels have no second derivative, which second-order flow
    matching needs.
    """

    def __init__(self, channels: int, *, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, eps=1e-6)
        self.q = Dense(channels, channels)
        self.k = Dense(channels, channels)
        self.v = Dense(channels, channels)
        self.out = Dense(channels, channels, zero=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` to the same shape."""
        batch, channels, height, width = x.shape
        h = self.norm(x).permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        q, k, v = self.q(h) / math.sqrt(channels), self.k(h), self.v(h)
        h = torch.softmax(q @ k.mT, dim=-1) @ v  # (B, HW, C)
        branch: Tensor = self.out(h).reshape(batch, height, width, channels)
        return x + branch.permute(0, 3, 1, 2)
