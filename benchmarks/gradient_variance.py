"""Variance of the training gradient for several ways to spend a batch of network evaluations.

    python benchmarks/gradient_variance.py --batches 60 --json FILE

Each way evaluates the network equally often in a batch and estimates the same bound. What is
printed is the total variance of the gradient (the sum over all weights) as a share of the squared
norm of its mean, for a trained model and for one at the start of training.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from idode.data import load
from idode.diffusion.model import DiffusionODE
from idode.diffusion.noise_levels import Designed, quantiles
from idode.diffusion.objectives import first_order
from idode.likelihood.dequantization import centres
from idode.runs.run import build_net, diffusion_ode, open_run

Draw = Callable[[Tensor, int, torch.Generator], tuple[Tensor, Tensor, Tensor]]
"""From all data, a number of evaluations and a generator: images, noise, quantiles of levels."""


def _images(x: Tensor, n: int, generator: torch.Generator) -> Tensor:
    return x[torch.randperm(len(x), generator=generator)[:n]]


def independent(x: Tensor, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """A level drawn for each image alone."""
    x0 = _images(x, n, generator)
    return x0, torch.randn(x0.shape, generator=generator), quantiles(n, generator, False)


def spread(x: Tensor, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Levels spread evenly over the batch: what training does."""
    x0 = _images(x, n, generator)
    return x0, torch.randn(x0.shape, generator=generator), quantiles(n, generator)


def antithetic(x: Tensor, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Half as many images, each at one level with its noise and with minus its noise."""
    x0 = _images(x, n // 2, generator)
    eps = torch.randn(x0.shape, generator=generator)
    levels = quantiles(n // 2, generator)
    return torch.cat([x0, x0]), torch.cat([eps, -eps]), torch.cat([levels, levels])


def two_levels(x: Tensor, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Half as many images, each at two levels half the range apart, with noise of their own."""
    x0 = _images(x, n // 2, generator)
    eps = torch.randn((n, *x0.shape[1:]), generator=generator)
    return torch.cat([x0, x0]), eps, quantiles(n, generator)


def two_levels_one_noise(
    x: Tensor, n: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """The same with one noise for both levels of an image."""
    x0 = _images(x, n // 2, generator)
    eps = torch.randn(x0.shape, generator=generator)
    return torch.cat([x0, x0]), torch.cat([eps, eps]), quantiles(n, generator)


WAYS: dict[str, Draw] = {
    "independent levels": independent,
    "levels spread over the batch": spread,
    "spread, noise and minus noise": antithetic,
    "spread, two levels for an image": two_levels,
    "the same with one noise": two_levels_one_noise,
}


@dataclass(frozen=True)
class Spread:
    """Of a gradient over batches."""

    variance: float  # summed over the weights
    squared_mean: float  # less what the variance adds to it
    error: float  # standard error of the variance


def gradient_variance(model: DiffusionODE, x: Tensor, draw: Draw, n: int, batches: int) -> Spread:
    """The spread of the gradient of a batch."""
    density = Designed(model.schedule, model.gamma_min, model.gamma_max)
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = []
    for batch in range(batches):
        x0, eps, levels = draw(x, n, torch.Generator().manual_seed(batch))
        times = density.at(levels)
        loss = (first_order(model, x0, eps, times.gamma).double() / times.density).mean()
        found = torch.autograd.grad(loss, parameters)
        gradients.append(torch.cat([g.flatten() for g in found]))
    every = torch.stack(gradients).double()
    squares = ((every - every.mean(0)) ** 2).sum(1) * batches / (batches - 1)
    variance = float(squares.mean())
    squared = float((every.mean(0) ** 2).sum()) - variance / batches
    return Spread(variance, squared, float(squares.std()) / math.sqrt(batches))


def main() -> None:
    """Measure all ways, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="pretrained:digits")
    parser.add_argument("--batch-size", type=int, default=64, help="network evaluations [64]")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--json", type=Path, help="append one line for each row")
    args = parser.parse_args()
    torch.set_num_threads(1)
    run = open_run(args.run)
    data, levels = load(run.config.data or "digits").train, run.config.model.levels
    assert levels is not None
    x = centres(torch.from_numpy(np.array(data)), levels)
    fresh = build_net(run.config, torch.Generator().manual_seed(0))
    models = {"trained": run.model(), "at the start": diffusion_ode(fresh, run.config)}
    print("model         way                               variance  of the first  / |mean|^2")
    for name, model in models.items():
        model.requires_grad_().eval()
        first = None
        for way, draw in WAYS.items():
            found = gradient_variance(model, x, draw, args.batch_size, args.batches)
            first = first or found.variance
            ratio, relative = found.variance / first, found.variance / found.squared_mean
            print(f"{name:13} {way:32} {found.variance:9.3g} {ratio:13.3f} {relative:11.3g}")
            if args.json is not None:
                line = {"run": args.run, "model": name, "way": way, "variance": found.variance}
                line |= {"error": found.error, "squared_mean": found.squared_mean}
                line |= {"batch_size": args.batch_size, "batches": args.batches}
                with args.json.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
