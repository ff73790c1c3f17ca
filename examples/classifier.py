"""A generative classifier: p(image | class) for every class, and Bayes' rule.

    python examples/classifier.py [--fast]

A class-conditional diffusion ODE of the 8x8 digits is trained for some seconds. Its likelihoods
of an image under each of ten labels are ten numbers; their softmax is the probability of the
class. Differences of tens of nats make such probabilities too sure, so that one temperature is
fitted on images that are not tested.
"""

from __future__ import annotations

import argparse
import math

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import idode
from idode.diffusion.predictors import NOISE
from idode.diffusion.schedules import SCHEDULES, start_gamma

LEVELS, CLASSES = 17, 10


class Conditional(nn.Module):
    """Noise of images ``(B, 1, 8, 8)`` at times in [0, 1], given labels ``(B,)``."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.label = nn.Embedding(CLASSES, 32)
        self.body = nn.Sequential(
            nn.Linear(3 * 64 + 16 + 32, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, 64),
        )  # fmt: skip

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        """Predict the noise."""
        angle = t[:, None] * torch.pi * 2.0 ** torch.arange(8).to(x)
        flat = x.flatten(1)
        fine = flat * LEVELS * torch.pi  # where in its bin a pixel is
        told = [flat, fine.sin(), fine.cos(), angle.sin(), angle.cos(), self.label(labels)]
        return self.body(torch.cat(told, dim=1)).reshape(x.shape)


def main() -> None:
    """Train, classify, calibrate."""
    parser = argparse.ArgumentParser(description="A classifier from likelihoods.")
    parser.add_argument("--fast", action="store_true", help="seconds, and a worse network")
    args = parser.parse_args()
    steps, count, draws = (600, 48, 16) if args.fast else (6000, 200, 64)
    torch.manual_seed(0)
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    pixels = torch.from_numpy(digits.images).long()[order, None]
    labels = torch.from_numpy(digits.target).long()[order]
    train, tune, test = slice(2 * count, None), slice(count), slice(count, 2 * count)

    model = idode.DiffusionODE(
        Conditional(), SCHEDULES["vp"], start_gamma(LEVELS), 5.0, NOISE, levels=LEVELS
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        some = torch.randint(train.start, len(labels), (128,))
        optimizer.zero_grad()
        model.loss(pixels[some], labels=labels[some]).backward()
        optimizer.step()
    model.eval().requires_grad_(False)

    # The classifier. Every class sees the same noise, so that differences are not drawn by it.
    def log_p(part: slice) -> Tensor:
        every = [torch.full((count,), label) for label in range(CLASSES)]
        bits = [model.sde_bound(pixels[part], draws=draws, labels=y).per_image for y in every]
        return -torch.stack(bits, dim=1) * 64 * math.log(2)  # nats (N, 10)

    tuned, tested = log_p(tune), log_p(test)
    scales = 2.0 ** torch.arange(-8, 1, 0.25)
    scale = min(scales, key=lambda s: float(F.cross_entropy(s * tuned, labels[tune])))
    probabilities = torch.softmax(scale * tested, dim=1)

    right = probabilities.argmax(1) == labels[test]
    sure = probabilities.amax(1).mean()
    print(f"accuracy {right.double().mean():.3f} on {count} images, chance 0.100")
    print(f"mean confidence {sure:.3f} at temperature {1 / float(scale):.1f}")
    print(f"cross-entropy {F.cross_entropy(scale * tested, labels[test]):.3f} nats, chance 2.303")


if __name__ == "__main__":
    main()
