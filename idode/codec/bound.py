r"""What an image costs by the formulas, without coding it.

The cost is the T-step bound of the plan: for each step
:math:`\frac12[\log(1+\Delta\lambda) + (1 + \Delta e^2)/(1+\Delta\lambda) - 1]` with
:math:`e^2` the squared error at a noisy version of the image. Of many images only some steps each
are evaluated: that of the pixels, which costs most, and a few that are spread over the chain.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from idode.codec.network import one_thread
from idode.codec.scheme import Scheme

__all__ = ["every_step", "image_bits"]

STEPS_OF_FEW = 4096  # evaluations of the network that even a few images get
LEAST_STEPS = 4  # of each image
CHUNK = 64


def every_step(scheme: Scheme, count: int) -> bool:
    """Whether :func:`image_bits` of so many images evaluates all steps of each."""
    return _steps_of(scheme, count) == scheme.plan.steps + 1


def _steps_of(scheme: Scheme, count: int) -> int:
    """Steps to evaluate of each image, that of the pixels among them."""
    return min(scheme.plan.steps + 1, max(LEAST_STEPS, STEPS_OF_FEW // count))


def image_bits(scheme: Scheme, images: NDArray[np.uint8], seed: int = 0) -> NDArray[np.float64]:
    """An unbiased estimate of the bits of each image ``(N,)``."""
    plan = scheme.plan
    rng = np.random.default_rng(seed)
    bits = np.zeros(len(images))
    chosen = _chosen(plan.steps, len(images), _steps_of(scheme, len(images)) - 1, rng)
    with one_thread():
        for lo in range(0, len(images), CHUNK):
            bits[lo : lo + CHUNK] = _prior_bits(scheme, images[lo : lo + CHUNK])
        for t in range(plan.steps + 1):
            rows = np.flatnonzero((chosen == t).any(1)) if t else np.arange(len(images))
            weight = plan.steps / chosen.shape[1] if t else 1.0
            for lo in range(0, len(rows), CHUNK):
                part = rows[lo : lo + CHUNK]
                bits[part] += weight * _step_bits(scheme, images[part], t, rng)
    return bits


def _chosen(steps: int, count: int, some: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Steps from 1 to ``steps`` to evaluate of each image ``(count, some)``.

    Spread evenly from an offset of each image. Offsets take turns, so every step is evaluated
    equally often, and that steps differ in cost adds no error to the sum over images.
    """
    offset = rng.permutation(count)[:, None] + rng.integers(steps)
    return 1 + (offset + np.arange(some) * steps // some) % steps


def _step_bits(
    scheme: Scheme, images: NDArray[np.uint8], t: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Bits of step ``t`` for each image; step 0 is that of the pixels."""
    plan, denoiser = scheme.plan, scheme.denoiser
    clean = scheme.clean(images)
    noise = torch.from_numpy(rng.standard_normal(tuple(clean.shape)))
    scale = math.exp((plan.told[t] - plan.gamma[t]) / 2)
    z = plan.alpha[t] * clean + plan.sigma[t] * scale * noise
    if t == 0:
        state = np.rint(z.numpy() / plan.bins[0]).astype(np.int64)
        return scheme.pixel_bits(images.astype(np.int64), state)
    estimate = denoiser.coefficients(z, float(plan.told[t]))
    inflation = torch.from_numpy(plan.inflation[t - 1])[scheme.groups(t, estimate)]
    gained = math.exp(-plan.gamma[t - 1]) - math.exp(-plan.gamma[t])
    squares = (estimate - clean).square()
    nats = 0.5 * (inflation.log() + (1 + gained * squares) / inflation - 1)
    return np.asarray(nats.flatten(1).sum(1).numpy() / math.log(2))


def _prior_bits(scheme: Scheme, images: NDArray[np.uint8]) -> NDArray[np.float64]:
    plan = scheme.plan
    clean = scheme.clean(images).numpy()
    sigma = plan.sigma[-1]
    variance = (plan.prior * plan.bins[-1]) ** 2
    mean = plan.alpha[-1] * clean
    nats = 0.5 * (np.log(variance / sigma**2) + (sigma**2 + mean**2) / variance - 1)
    return np.asarray(nats.sum((1, 2))) / math.log(2)
