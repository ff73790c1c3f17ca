"""Parts that were tried and are not in the program: ``recipes.py --try variant=NAME ...``.

Each replaces one part of the program while its context is open, and needs settings beside it:
those that replace what grey levels say about the noise, ``model.quantization=closed-form``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from idode.data import Dataset
from idode.diffusion.clocks import ScaledGamma
from idode.diffusion.predictors import NORMALIZED_VELOCITY
from idode.diffusion.quantization import FADE, FADE_SHARE, QUANTIZATIONS, REACH, Quantization
from idode.diffusion.schedules import SCHEDULES, Schedule
from idode.errors import InputError
from idode.likelihood.dequantization import centres
from idode.nets import layers, unet
from idode.nets.config import UNetConfig
from idode.nets.layers import Conv, ResidualBlock, initialise
from idode.nets.unet import Stage, UNet
from idode.numerics import like
from idode.runs.config import Config
from idode.runs.run import diffusion_ode
from idode.training.objective import Batch
from idode.training.randomness import Purpose, generator
from idode.training.trainer import Trainer
from idode.training.watch import Watch

__all__ = ["VARIANTS", "applied", "split"]

Context = AbstractContextManager[Any]


# Predictions of the noise that are added to the network's


@dataclass(frozen=True)
class Bells:
    """Quantization whose levels need not be equally likely, nor end at black and white."""

    levels: int
    log_weights: Tensor | None = None  # (levels,); None: equal, and going on for ever

    def noise(self, x: Tensor, gamma: Tensor, schedule: Schedule) -> Tensor:
        """The noise expected from the levels alone, faded as in the program."""
        scale = self.levels / 2
        u = (x * like(torch.exp(-schedule.log_alpha(gamma)), x) + 1) * scale - 0.5
        s = like(torch.exp(gamma / 2) * scale, x)
        nearest = torch.round(u).detach()
        if self.log_weights is not None:
            nearest = nearest.clamp(0, self.levels - 1)
        reach = min(REACH, self.levels - 1)
        steps = torch.arange(-reach, reach + 1).to(x).reshape(-1, *[1] * x.ndim)
        height = -((u - nearest - steps) ** 2) / (2 * s**2)
        if self.log_weights is not None:
            place = (nearest + steps).long()
            inside = (place >= 0) & (place < self.levels)
            weights = self.log_weights.to(x)[place.clamp(0, self.levels - 1)]
            height = (height + weights).where(inside, -torch.inf)
        mean = (height.softmax(0) * steps).sum(0)
        faded = torch.exp(-((s / min(FADE, FADE_SHARE * self.levels)) ** 2))
        return faded * (u - nearest - mean) / s


@dataclass(frozen=True)
class Gaussian:
    """The noise expected of data that is Gaussian, for networks of the normalised velocity.

    A fresh network gives its input back, which is taken off: it starts as the Gaussian's own.
    """

    levels: int
    mean: Tensor  # (D,)
    variances: Tensor  # (D,), along the columns of
    axes: Tensor  # (D, D)

    def noise(self, x: Tensor, gamma: Tensor, schedule: Schedule) -> Tensor:
        """``sigma axes (x - alpha mean) / (alpha^2 variances + sigma^2)`` in these axes."""
        alpha, sigma = (torch.exp(f(gamma)) for f in (schedule.log_alpha, schedule.log_sigma))
        flat = x.flatten(1)
        alpha, sigma = like(alpha, flat), like(sigma, flat)
        along = (flat - alpha * self.mean.to(x)) @ self.axes.to(x)
        along = sigma * along / (alpha**2 * self.variances.to(x) + sigma**2)
        a, b = NORMALIZED_VELOCITY.coefficients(schedule, gamma)
        fresh = like((1 - a) / b, x) * x
        return (along @ self.axes.to(x).mT).reshape_as(x) - fresh


def _instead(made: Any) -> Context:
    return patch.dict(QUANTIZATIONS, {"closed-form": lambda levels: made})


def _endless(config: Config, data: Dataset) -> Context:
    return _instead(Bells(data.levels or 0))


def _frequencies(config: Config, data: Dataset) -> Context:
    counts = np.bincount(np.asarray(data.train).ravel(), minlength=data.levels or 0)
    return _instead(Bells(data.levels or 0, torch.from_numpy(np.log(counts + 1.0))))


def _gaussian(data: Dataset, *, separable: bool) -> Context:
    states = centres(torch.from_numpy(np.asarray(data.train)), data.levels or 0).double()
    mean, rest = states.mean(0), states - states.mean(0)
    covariance = torch.einsum("bi,bj->ij", rest.flatten(1), rest.flatten(1)) / len(rest)
    if separable:
        rows = torch.einsum("bchw,bcvw->hv", rest, rest)
        columns = torch.einsum("bchw,bchv->wv", rest, rest)
        shape = torch.kron(rows, columns)
        covariance = shape * (covariance.trace() / shape.trace())
    variances, axes = torch.linalg.eigh(covariance)
    return _instead(Gaussian(data.levels or 0, mean.flatten(), variances.clamp(min=0), axes))


# Networks


def _slow_time(config: Config, data: Dataset) -> Context:
    embed = layers.sinusoid
    return patch.object(layers, "sinusoid", lambda t, width: embed(0.03 * t, width))


def _levels_as_input(config: Config, data: Dataset) -> Context:
    """What grey levels say about the noise, in the place of the sines and cosines of the input."""
    model = diffusion_ode(nn.Identity(), config)
    clock, levels = ScaledGamma(model.gamma_min, model.gamma_max), Quantization(data.levels or 0)
    schedule = SCHEDULES[config.model.schedule]

    def features(x: Tensor, count: int, time: Tensor) -> Tensor:
        said = levels.noise(x, clock.gamma(time), schedule)
        return torch.cat([x, said, *[torch.zeros_like(x)] * 3], dim=1)

    stack = ExitStack()
    stack.enter_context(patch.object(unet, "fading", lambda time, fade: time))
    stack.enter_context(patch.object(unet, "fourier_features", features))
    return stack


class Kernel(Conv):
    """A convolution of any shape that keeps the image size."""

    def __init__(
        self, inputs: int, outputs: int, size: tuple[int, int], *, groups: int, zero: bool
    ) -> None:
        nn.Conv2d.__init__(
            self, inputs, outputs, size, padding=(size[0] // 2, size[1] // 2), groups=groups
        )
        self.zero, self.quick = zero, False

    forward = nn.Conv2d.forward


def _factorised(old: Conv) -> nn.Module:
    inputs, outputs = old.in_channels, old.out_channels
    return nn.Sequential(
        Kernel(inputs, outputs, (1, 3), groups=1, zero=False),
        Kernel(outputs, outputs, (3, 1), groups=1, zero=old.zero),
    )


def _depthwise(old: Conv) -> nn.Module:
    inputs, outputs = old.in_channels, old.out_channels
    return nn.Sequential(
        Kernel(inputs, inputs, (3, 3), groups=inputs, zero=False),
        Kernel(inputs, outputs, (1, 1), groups=1, zero=old.zero),
    )


def _kernels(change: Callable[[Conv], nn.Module]) -> Context:
    build = ResidualBlock.__init__

    def changed(block: ResidualBlock, *sizes: int, **settings: Any) -> None:
        build(block, *sizes, **settings)
        block.conv1, block.conv2 = change(block.conv1), change(block.conv2)  # type: ignore[assignment]

    return patch.object(ResidualBlock, "__init__", changed)


def _wide_inside(config: Config, data: Dataset) -> Context:
    """Twice the channels after the first halving."""
    build = UNet.__init__

    def changed(net: UNet, config: Any, generator: Any = None, code: int = 0) -> None:
        build(net, config, generator, code)
        width, depth, first = config.width, config.depth, min(net.halving)

        def stage(inputs: int, outputs: int) -> Stage:
            made = Stage(config, inputs, attention=False)
            made.block = ResidualBlock(
                inputs, outputs, condition=4 * width, groups=config.groups, dropout=config.dropout
            )
            return made

        for i in range(first, depth):
            net.down[i] = stage(width if i == first else 2 * width, 2 * width)
        net.middle1, net.middle2 = stage(2 * width, 2 * width), stage(2 * width, 2 * width)
        for i in range(first + 1, depth + 1):  # the skips of the coarse grid
            net.up[depth - i] = stage(4 * width, 2 * width)
        net.up[depth - first] = stage(3 * width, width)
        initialise(net, generator)

    return patch.object(UNet, "__init__", changed)


# Training


def _growing_batches(config: Config, data: Dataset) -> Context:
    """A quarter of every batch for half of the steps, half of it up to four fifths, then all."""
    see, steps, whole = Watch.see, config.train.steps, config.train.batch_size

    def some(trainer: Trainer, step: int, samples: Tensor) -> Batch:
        size = whole // (4 if 2 * step < steps else 2 if 5 * step < 4 * steps else 1)
        drawn = generator(config.train.seed, Purpose.BATCH, step)
        draw = trainer.state.objective.draw
        return draw(samples[:size], trainer.model.levels, drawn, 0, size)

    def padded(watch: Watch, step: int, losses: Tensor, norm: Tensor) -> None:
        see(watch, step, functional.pad(losses, (0, whole - len(losses))), norm)

    stack = ExitStack()
    stack.enter_context(patch.object(Trainer, "prepare", some))
    stack.enter_context(patch.object(Watch, "see", padded))
    return stack


# What they need


def _closed_form(config: Config, data: Dataset) -> str | None:
    given = config.model.quantization
    return None if given == "closed-form" else f"model.quantization=closed-form, not {given}"


def _learned(config: Config, data: Dataset) -> str | None:
    given = config.model.quantization
    return None if given == "learned" else f"model.quantization=learned, not {given}"


def _one_colour(config: Config, data: Dataset) -> str | None:
    return _closed_form(config, data) if data.shape[0] == 1 else "images of one colour"


def _unet(config: Config, data: Dataset) -> str | None:
    return None if isinstance(config.net, UNetConfig) else "a U-Net"


def _quarters(config: Config, data: Dataset) -> str | None:
    whole = config.train.batch_size % 4 == 0 and config.train.accumulate == 1
    return None if whole else "a batch_size that four divides, and accumulate=1"


def _halved(config: Config, data: Dataset) -> str | None:
    return None if isinstance(config.net, UNetConfig) and config.net.halvings else "net.halvings=1"


@dataclass(frozen=True)
class Variant:
    """A part of the program, and what is missing of what it needs beside it."""

    opened: Callable[[Config, Dataset], Context]
    lacks: Callable[[Config, Dataset], str | None]


VARIANTS = {
    "endless-levels": Variant(_endless, _closed_form),
    "level-frequencies": Variant(_frequencies, _closed_form),
    "gaussian": Variant(lambda *given: _gaussian(given[1], separable=False), _closed_form),
    "separable-gaussian": Variant(lambda *given: _gaussian(given[1], separable=True), _one_colour),
    "slow-time": Variant(_slow_time, _unet),
    "levels-as-input": Variant(_levels_as_input, _learned),
    "factorised-kernels": Variant(lambda *_: _kernels(_factorised), _unet),
    "depthwise-kernels": Variant(lambda *_: _kernels(_depthwise), _unet),
    "wide-inside": Variant(_wide_inside, _halved),
    "growing-batches": Variant(_growing_batches, _quarters),
}


def split(settings: list[str]) -> tuple[list[str], list[str]]:
    """Names of variants among the settings of a candidate, and its other settings."""
    names = [each.removeprefix("variant=") for each in settings if each.startswith("variant=")]
    return names, [each for each in settings if not each.startswith("variant=")]


@contextmanager
def applied(settings: list[str], config: Config, data: Dataset) -> Iterator[None]:
    """A context in which the variants among the settings stand in for parts of the program."""
    with ExitStack() as stack:
        for name in split(settings)[0]:
            if (lacking := VARIANTS[name].lacks(config, data)) is not None:
                raise InputError(f"variant={name} needs {lacking}")
            stack.enter_context(VARIANTS[name].opened(config, data))
        yield
