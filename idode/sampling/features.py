"""Features for Fréchet distances: Inception, a small network for the digits, and pixels."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from idode.data.digits import DIGITS
from idode.data.prepared import Dataset
from idode.errors import InputError

__all__ = [
    "Features",
    "digits_features",
    "features_for",
    "inception_features",
    "pixel_features",
]

Features = Callable[[Tensor], Tensor]
"""Maps integer images ``(B, C, H, W)`` to features ``(B, D)``."""

HIDDEN = (64, 32)  # the second is the feature layer: few, since there are 297 test images
STEPS, RATE, DECAY = 60, 0.01, 1e-3
LEVELS = 17


@functools.cache
def digits_features() -> Features:
    """The last hidden layer, ``(B, 32)``, of a small classifier of the 8x8 digits.

    Trained at first use, in less than a second and the same way every time, on the training split
    of the data set ``digits``. Rectified features are not bounded, so images unlike any digit
    stand out by their size.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images[: DIGITS.train_size])
    labels = torch.from_numpy(digits.target[: DIGITS.train_size])
    weights = _fresh((64, *HIDDEN, 10), torch.Generator().manual_seed(0))
    with torch.enable_grad():
        optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=DECAY)
        for _ in range(STEPS):
            loss = F.cross_entropy(_layers(images, weights), labels)
            for weight, slope in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.grad = slope
            optimizer.step()
    trained = [w.detach() for w in weights[:-2]]

    def features(pixels: Tensor) -> Tensor:
        if pixels[0].numel() != 64 or int(pixels.max()) >= LEVELS:
            raise InputError(
                f"the digits' features are for 8x8 images of {LEVELS} levels, got shape "
                f"{tuple(pixels.shape[1:])} up to {int(pixels.max())}: use Inception for others"
            )
        return torch.relu(_layers(pixels.cpu(), trained))

    return features


def features_for(data: Dataset) -> tuple[str, Features] | None:
    """The features made for a data set and their name; ``None`` if there are none.

    What to use instead depends on the purpose: Inception to compare with published numbers,
    pixels where nothing may be downloaded.
    """
    return ("digits", digits_features()) if data.identity.name == "digits" else None


def _fresh(widths: tuple[int, ...], generator: torch.Generator) -> list[Tensor]:
    """Weights and biases in turn, float64 so that every machine trains the same network."""
    made = []
    for fan_in, fan_out in itertools.pairwise(widths):
        normal = torch.randn(fan_in, fan_out, generator=generator, dtype=torch.float64)
        made += [normal * math.sqrt(2 / fan_in), torch.zeros(fan_out, dtype=torch.float64)]
    return [w.requires_grad_() for w in made]


def _layers(pixels: Tensor, weights: list[Tensor]) -> Tensor:
    """Affine layers with rectifiers between them."""
    h = pixels.double().flatten(1) / (LEVELS - 1) * 2 - 1
    for i in range(0, len(weights), 2):
        h = (torch.relu(h) if i else h) @ weights[i] + weights[i + 1]
    return h


def pixel_features(levels: int, side: int = 8) -> Features:
    """Values in [-1, 1], images averaged to at most ``side`` x ``side`` blocks.

    For data without a classifier: they show brightness, contrast and coarse shape only. The
    blocks keep the covariance small enough for the few samples of a quick comparison.
    """

    def features(pixels: Tensor) -> Tensor:
        values = pixels.double() / (levels - 1) * 2 - 1
        if values.ndim == 4:
            size = min(side, values.shape[2]), min(side, values.shape[3])
            values = F.adaptive_avg_pool2d(values, size)
        return values.flatten(1)

    return features


def inception_features(levels: int, device: torch.device | str = "cpu") -> Features:
    """The 2048 features of the Inception network that published FIDs use.

    Args:
        levels: Grey levels of the images, which are scaled to 0..255; grey images get three
            equal channels.
        device: Where it runs.
    """
    try:
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
    except ImportError:
        raise InputError(
            "Inception features need torch-fidelity, which is not installed: install idode[fid], "
            "or give a feature network of your own"
        ) from None
    except RuntimeError as error:  # a torchvision that was built for another torch
        raise InputError(
            f"torch-fidelity does not load ({error}): install the torchvision of your torch"
        ) from None
    try:
        net = FeatureExtractorInceptionV3("inception-v3-compat", ["2048"]).to(device)
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"the weights of the Inception network cannot be downloaded ({error}): connect once, "
            "or put the file into torch's hub cache"
        ) from None

    def features(pixels: Tensor) -> Tensor:
        if pixels.ndim != 4 or pixels.shape[1] not in (1, 3):
            raise InputError(
                f"Inception needs images of 1 or 3 colours, got shape {tuple(pixels.shape[1:])}"
            )
        scaled = (pixels.double() * (255 / (levels - 1))).round().to(torch.uint8)
        found: Tensor = net(scaled.expand(-1, 3, -1, -1).to(device))[0]
        return found

    return features
