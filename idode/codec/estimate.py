r"""The expected size of an archive, without coding.

The cost of an image is the T-step bound of the plan: for each step
:math:`\frac12[\log(1+\Delta\lambda) + (1 + \Delta e^2)/(1+\Delta\lambda) - 1]` with
:math:`e^2` the squared error at a noisy version of the image. Of many images only a few steps
each are evaluated, drawn at random.
"""

from __future__ import annotations

import io
import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from idode.codec import ordinary
from idode.codec.archive import BLOCK, STEPS, Group, arrange, write_archive
from idode.codec.blocks import check_width
from idode.codec.coding import AnyModel, model_for
from idode.codec.files import of_input
from idode.codec.network import one_thread
from idode.codec.scheme import Scheme

__all__ = ["Expected", "expected_size", "image_bits"]

STEPS_OF_FEW = 2048  # evaluations of the network that even a few images get
LEAST_STEPS = 4  # of each image
CHUNK = 64


@dataclass(frozen=True)
class Expected:
    """The size of an archive, and the part of it that the model codes."""

    bytes: float
    error: float  # standard error
    images: int  # by the model
    bits_per_dim: float  # of those
    other: int  # bytes of everything else


def expected_size(
    given: str,
    model: AnyModel,
    *,
    steps: int = STEPS,
    block: int = BLOCK,
    exact: bool = False,
    split: str = "test",
    limit: int | None = None,
    seed: int = 0,
) -> Expected:
    """What ``compress_files`` would write, with the same arguments."""
    contents = of_input(given, exact, split, limit)
    opened = model_for(model)
    groups, _, _ = arrange(contents, opened)
    # Everything but the blocks.
    other = write_archive(
        io.BytesIO(), contents, opened, steps=steps, block=block, coded=itertools.repeat(b"")
    ).bytes_after
    bits, variance, values, count = 0.0, 0.0, 0, 0
    scheme = opened.scheme(steps)
    for group in groups:
        if not group.modelled:
            other += _ordinary_bytes(group)
            continue
        for images in group.blocks(block):
            found = image_bits(scheme, images, seed)
            limits = np.array([8.0 * len(ordinary.encode(image)[1]) + 32 for image in images])
            cost = np.minimum(found, limits) if _steps_of(scheme, len(images))[1] else found
            bits += min(float(cost.sum()), float(limits.sum()))
            variance += float(cost.var()) * len(images)
            other += 40 + check_width(images.shape[1:]) * len(
                images
            )  # checksums, sizes of batches
            count, values = count + len(images), values + images.size
    return Expected(
        bytes=bits / 8 + other,
        error=math.sqrt(variance) / 8 if values else 0.0,
        images=count,
        bits_per_dim=bits / max(values, 1),
        other=other,
    )


def _ordinary_bytes(group: Group) -> int:
    return sum(len(ordinary.encode(x)[1]) + 8 for images in group.images for x in images)


def _steps_of(scheme: Scheme, count: int) -> tuple[int, bool]:
    """Steps to evaluate of each image, and whether those are all."""
    total = scheme.plan.steps + 1
    some = min(total, max(LEAST_STEPS, STEPS_OF_FEW // count))
    return some, some == total


def image_bits(scheme: Scheme, images: NDArray[np.uint8], seed: int = 0) -> NDArray[np.float64]:
    """An unbiased estimate of the bits of each image ``(N,)``."""
    plan = scheme.plan
    rng = np.random.default_rng(seed)
    some, everything = _steps_of(scheme, len(images))
    bits = np.zeros(len(images))
    total = plan.steps + 1
    with one_thread():
        for lo in range(0, len(images), CHUNK):
            bits[lo : lo + CHUNK] = _prior_bits(scheme, images[lo : lo + CHUNK])
        chosen = np.stack(
            [np.arange(total) if everything else rng.permutation(total)[:some] for _ in images]
        )
        for t in range(total):
            rows = np.flatnonzero((chosen == t).any(1))
            for lo in range(0, len(rows), CHUNK):
                part = rows[lo : lo + CHUNK]
                cost = _step_bits(scheme, images[part], t, rng)
                bits[part] += cost * (total / some)
    return bits


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
