r"""Bits-back coding of a batch of images over the steps of the diffusion.

The encoder follows the forward Markov chain: pop :math:`z_0\sim q(z_0|x)`, push the pixels given
the estimate at :math:`z_0`; for every step pop :math:`z_t\sim q(z_t|z_s)` and push :math:`z_s`
under the model's reverse step; at the end push :math:`z_T` under the prior. The decoder undoes
this, last first. Each way takes T + 1 evaluations of the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idode.codec.coder import DamagedError, Floats, Integers, Stack
from idode.codec.network import Denoiser
from idode.codec.steps import BIN, Plan
from idode.codec.tables import FEATURES, pixel_cost, to_levels
from idode.likelihood.dequantization import centres

__all__ = ["EmptyError", "Scheme"]

HALF_WINDOW = 32  # of forward steps, in bins: 8 deviations
SPARE_BITS = 64  # that must stay on the stack


class EmptyError(Exception):
    """The stack has too few bits for a batch: code fewer images at once."""


@dataclass(frozen=True)
class Scheme:
    """How batches of one shape are coded: the network, the plan and the number of levels."""

    denoiser: Denoiser
    plan: Plan
    levels: int
    feature: str  # by which patches are put into classes

    @property
    def dims(self) -> int:
        """Values of an image."""
        return math.prod(self.denoiser.shape)

    @property
    def start_bits(self) -> int:
        """Bits for each image that a batch draws on before it gives any back, about.

        Two pops and, since the bins of a state follow from the noise of its own step, the log of
        that noise over all noise; half of what is expected to be pushed meanwhile is counted.
        """
        plan = self.plan
        pop = math.log2(math.sqrt(2 * math.pi * math.e) / BIN)
        lost = -np.log2(plan.added / plan.sigma[1:])
        need = 2 * pop + float(np.max(lost - 0.5 * plan.gained_bits))
        return math.ceil(max(need, pop + 0.5) * self.dims)

    def encode(self, stack: Stack, images: NDArray[np.uint8]) -> Floats:
        """Push images ``(B, C, H, W)``; the bits each of them cost, ``(B,)``."""
        plan = self.plan
        pixels = images.astype(np.int64)
        clean = self.clean(pixels)
        mean = clean.numpy() * (plan.alpha[0] / plan.bins[0])
        state = self._pop_forward(stack, mean)
        bits = -_bits(state, mean, self._forward_deviation)
        about, spread = self._pixel_model(state)
        stack.push_pixels(pixels, about, spread, self.levels)
        bits += pixel_bits(pixels, about, spread, self.levels)
        for t in range(1, plan.steps + 1):
            mean = state * (plan.ratio[t - 1] * plan.bins[t - 1] / plan.bins[t])
            following = self._pop_forward(stack, mean)
            bits -= _bits(following, mean, self._forward_deviation)
            mean, deviation = self._reverse(t, following)
            stack.push(state, mean, deviation)
            bits += _bits(state, mean, deviation)
            state = following
        mean, deviation = self._prior(len(images))
        stack.push(state, mean, deviation)
        return bits + _bits(state, mean, deviation)

    def decode(self, stack: Stack, count: int) -> NDArray[np.uint8]:
        """Pop ``count`` images, and push back the bits that were drawn on."""
        plan = self.plan
        state = stack.pop(*self._prior(count))
        for t in range(plan.steps, 0, -1):
            before = stack.pop(*self._reverse(t, state))
            mean = before * (plan.ratio[t - 1] * plan.bins[t - 1] / plan.bins[t])
            self._push_forward(stack, state, mean)
            state = before
        pixels = stack.pop_pixels(*self._pixel_model(state), self.levels)
        mean = self.clean(pixels).numpy() * (plan.alpha[0] / plan.bins[0])
        self._push_forward(stack, state, mean)
        return pixels.astype(np.uint8)

    def pixel_bits(self, pixels: Integers, state: Integers) -> Floats:
        """Bits of each image's pixels given its first state, ``(B,)``."""
        return pixel_bits(pixels, *self._pixel_model(state), self.levels)

    @cached_property
    def _forward_deviation(self) -> Floats:
        return np.array([1 / BIN])

    def _pop_forward(self, stack: Stack, mean: Floats) -> Integers:
        popped = stack.pop(mean, np.full(mean.shape, 1 / BIN), HALF_WINDOW)
        if stack.bits < SPARE_BITS:
            raise EmptyError
        return popped

    def _push_forward(self, stack: Stack, state: Integers, mean: Floats) -> None:
        stack.push(state, mean, np.full(mean.shape, 1 / BIN), HALF_WINDOW)

    def clean(self, pixels: Integers | NDArray[np.uint8]) -> Tensor:
        """Coefficients ``(B, P, K)`` of images."""
        data = centres(torch.from_numpy(pixels.astype(np.int64)), self.levels, torch.float64)
        return self.denoiser.basis.to_coefficients(data)

    def _state(self, t: int, state: Integers) -> Tensor:
        z = torch.from_numpy(state * self.plan.bins[t])
        if not bool(torch.isfinite(z.float()).all()):
            raise DamagedError("a state is out of bounds")
        return z

    def groups(self, t: int, estimate: Tensor) -> Tensor:
        """Class of every patch ``(B, P)`` from the estimate of its coefficients."""
        values = FEATURES[self.feature](estimate)
        return torch.bucketize(values, torch.from_numpy(self.plan.edges[t]))

    def _reverse(self, t: int, state: Integers) -> tuple[Floats, Floats]:
        """Mean and deviation of the state at ``t - 1`` given that at ``t``, in its bins."""
        plan = self.plan
        z = self._state(t, state)
        estimate = self.denoiser.coefficients(z, float(plan.told[t]))
        of_state, of_data = plan.mean(t)
        mean = (of_state * z + of_data * estimate) / plan.bins[t - 1]
        deviation = torch.from_numpy(plan.deviation[t - 1])[self.groups(t, estimate)]
        return mean.numpy(), deviation.numpy()

    def _prior(self, count: int) -> tuple[Floats, Floats]:
        basis = self.denoiser.basis
        shape = (count, basis.patches, basis.size)
        return np.zeros(shape), np.broadcast_to(self.plan.prior, shape).copy()

    def _pixel_model(self, state: Integers) -> tuple[Floats, Floats]:
        """Mean and deviation of the pixels given the first state, in grey levels."""
        basis = self.denoiser.basis
        guess = self.denoiser.pixels(self._state(0, state), float(self.plan.told[0]))
        group = self.groups(0, basis.to_coefficients(guess))
        _, height, width = basis.shape
        of_patch = torch.from_numpy(self.plan.spread)[group]
        grid = of_patch.reshape(-1, 1, height // basis.side, width // basis.side)
        spread = grid.repeat_interleave(basis.side, 2).repeat_interleave(basis.side, 3)
        mean = to_levels(guess, self.levels)
        return mean.numpy(), spread.expand(mean.shape).contiguous().numpy()


def _bits(symbols: Integers, mean: Floats, deviation: Floats) -> Floats:
    """Information of each image's symbols under Gaussians, ``(B,)``."""
    squares = ((symbols - mean) / deviation) ** 2
    scale = np.broadcast_to(np.log2(deviation), mean.shape)
    each = 0.5 * math.log2(2 * math.pi) + scale + squares * (0.5 / math.log(2))
    return np.asarray(each.reshape(len(mean), -1).sum(1))


def pixel_bits(pixels: Integers, mean: Floats, spread: Floats, levels: int) -> Floats:
    """Information of each image's pixels, ``(B,)``."""
    nats = pixel_cost(pixels - mean, pixels, spread, levels)
    return np.asarray(nats.reshape(len(mean), -1).sum(1)) / math.log(2)
