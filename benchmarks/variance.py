"""How much designed and adaptive importance sampling lower the variance of the training loss.

    python benchmarks/variance.py --out docs/results

On a Gaussian mixture, where the best network is known, and on the trained digits network. The
adaptive density is learned here, with the network fixed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from idode.data import load
from idode.diffusion import exact
from idode.diffusion.model import DiffusionODE
from idode.diffusion.noise_levels import Adaptive, Designed, UniformGamma
from idode.diffusion.objectives import first_order
from idode.diffusion.schedules import SCHEDULES
from idode.likelihood.dequantization import centres
from idode.runs.run import open_run
from idode.studies.loss_variance import Loss, loss_variance


def mixture_loss(name: str) -> tuple[Loss, DiffusionODE]:
    """Loss of the perfect predictor on two Gaussians in the plane."""
    oracle = exact.mixture([0.5, 0.5], [[0.5, 0.2], [-0.5, -0.1]], [0.1, 0.05])
    model = oracle.ode(SCHEDULES[name], -8.0, 6.0)

    def loss(gamma: Tensor, generator: torch.Generator | None) -> Tensor:
        x0 = oracle.sample(len(gamma), generator)
        eps = torch.randn(len(gamma), 2, generator=generator, dtype=torch.float64)
        return first_order(model, x0, eps, gamma)

    return loss, model


def run_loss(path: str) -> tuple[Loss, DiffusionODE]:
    """Loss of a trained network on its training data."""
    run = open_run(path)
    model, levels = run.model(), run.config.model.levels
    data = load(run.config.data or "digits").train
    assert levels is not None
    x = centres(torch.from_numpy(np.array(data)), levels)

    @torch.no_grad()
    def loss(gamma: Tensor, generator: torch.Generator | None) -> Tensor:
        x0 = x[torch.randint(0, len(x), (len(gamma),), generator=generator)]
        return first_order(model, x0, torch.randn(x0.shape, generator=generator), gamma)

    return loss, model


def learned(loss: Loss, model: DiffusionODE, steps: int, batch: int) -> Adaptive:
    """The paper's adaptive density, its network trained on fixed losses."""
    g = torch.Generator().manual_seed(0)
    density = Adaptive(model.gamma_min, model.gamma_max, generator=g)
    optimizer = torch.optim.Adam(density.parameters(), lr=3e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, steps)
    for _ in range(steps):
        times = density.draw(batch, g)
        optimizer.zero_grad()
        density.second_moment(times, loss(times.gamma, g)).backward()
        optimizer.step()
        schedule.step()
    return density


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="pretrained:digits")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    cases = {
        "mixture, vp": (*mixture_loss("vp"), 600, 256, 4096),
        "mixture, sp": (*mixture_loss("sp"), 600, 256, 4096),
        args.run: (*run_loss(args.run), 300, 128, 64),
    }
    found = []
    print(f"{'loss':20} {'density':10} {'variance':>10} {'±':>7} {'of uniform':>10}")
    for case, (loss, model, steps, batch, draws) in cases.items():
        ends = (model.gamma_min, model.gamma_max)
        densities = {
            "uniform": UniformGamma(*ends),
            "designed": Designed(model.schedule, *ends),
            "adaptive": learned(loss, model, steps, batch),
        }
        base = 0.0
        for name, density in densities.items():
            v = loss_variance(
                loss, density, draws=draws, generator=torch.Generator().manual_seed(1)
            )
            base = base or v.total
            found.append(
                {"loss": case, "density": name, "variance": v.total, "error": v.total_error}
            )
            print(
                f"{case:20} {name:10} {v.total:10.2f} {v.total_error:7.2f} {v.total / base:10.3f}"
            )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "variance.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
