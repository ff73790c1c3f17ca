"""Two moons: a density model from scratch, compared point by point with the exact density.

    python examples/two_moons.py [--fast] [--out runs/two_moons.png]

The moons are a mixture of Gaussians along two arcs, so their density is known at every noise
level. A small network learns it with a plain optimizer loop. Then its log-density, its samples and
the KL divergence are compared with the truth, and drawn.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import idode
from idode.diffusion.exact import Mixture, mixture
from idode.diffusion.objectives import diffuse
from idode.diffusion.schedules import VariancePreserving
from idode.nets.config import MLPConfig
from idode.nets.mlp import MLP
from idode.ode.adams import Adams
from idode.sampling.dpm import DPM

GAMMA_MIN, GAMMA_MAX = -8.0, 5.0
BEADS, THICKNESS = 24, 0.07
REACH = 2.2  # half the side of what is drawn


def two_moons() -> Mixture:
    """Two interleaved half circles of radius 1, each a string of round Gaussians."""
    angle = torch.linspace(0, math.pi, BEADS, dtype=torch.float64)
    upper = torch.stack([angle.cos() - 0.5, angle.sin() - 0.25], dim=1)
    return mixture(torch.ones(2 * BEADS), torch.cat([upper, -upper]), [THICKNESS**2] * 2 * BEADS)


def train(truth: Mixture, steps: int, generator: torch.Generator) -> idode.DiffusionODE:
    """A velocity network, trained for likelihood in a loop of our own."""
    net = MLP(MLPConfig(features=2, width=96, depth=3), generator)
    model = idode.DiffusionODE(net, VariancePreserving(), GAMMA_MIN, GAMMA_MAX, shape=(2,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        x0 = truth.sample(512, generator).float()
        loss = model.loss(x0, generator=generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    return model.eval().requires_grad_(False)


def log_densities(
    model: idode.DiffusionODE, truth: Mixture, x: Tensor, solver: Adams
) -> tuple[Tensor, Tensor]:
    """Of points ``(B, 2)`` under the model and in truth, both at the least noise, in nats."""
    return model.log_prob(x, solver=solver), exact_log_p(model, truth, x)


def exact_log_p(model: idode.DiffusionODE, truth: Mixture, x: Tensor) -> Tensor:
    """What a perfect model would say of points ``(B, 2)``."""
    return truth.log_prob(x.double(), torch.tensor(model.gamma_min), model.schedule)


def grid(side: int) -> tuple[Tensor, float]:
    """Points ``(side², 2)`` over the square that holds the moons, and the area of each."""
    width = 2 * REACH / side
    axis = torch.arange(side) * width - REACH + width / 2
    return torch.cartesian_prod(axis, axis), width**2


def draw(path: Path, densities: list[Tensor], samples: Tensor, pairs: list[Tensor]) -> None:
    """Both densities on the grid, the samples, and one log-density against the other."""
    square = (-REACH, REACH, -REACH, REACH)
    figure = Figure(figsize=(14, 3.6), layout="constrained")
    axes = figure.subplots(1, 4)
    for ax, density, title in zip(axes, densities, ("learned density", "exact"), strict=False):
        side = math.isqrt(len(density))
        shown = ax.imshow(
            density.reshape(side, side).T.numpy(), origin="lower", extent=square, vmin=0,
            vmax=float(densities[1].max()),
        )  # fmt: skip
        ax.set(title=title, xlabel="x₁", ylabel="x₂")
    figure.colorbar(shown, ax=axes[1], label="density", shrink=0.78)
    axes[2].scatter(*samples.T.numpy(), s=2, alpha=0.5, linewidths=0)
    axes[2].set(title=f"{len(samples)} samples", xlabel="x₁", ylabel="x₂", aspect="equal")
    axes[2].axis(square)
    learned, exact = (log_p.numpy() for log_p in pairs)
    ends = [float(exact.min()), float(exact.max())]
    axes[3].scatter(exact, learned, s=5, alpha=0.6, linewidths=0, label="a test point")
    axes[3].plot(ends, ends, color="black", linewidth=0.8, label="learned = exact")
    axes[3].set(title="test points", xlabel="exact log p (nats)", ylabel="learned log p (nats)")
    axes[3].set_box_aspect(1)  # as high as the squares beside it
    axes[3].legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train, compare, draw."""
    parser = argparse.ArgumentParser(description="Two moons, learned and compared with the truth.")
    parser.add_argument("--out", type=Path, default=Path("runs/two_moons.png"))
    parser.add_argument("--fast", action="store_true", help="seconds, and a rougher density")
    args = parser.parse_args()

    truth, generator = two_moons(), torch.Generator().manual_seed(0)
    steps = 300 if args.fast else 4000
    solver = Adams(tolerance=0.1 if args.fast else 0.005)  # rms error for a point, in bits/dim
    print(f"training for {steps} steps")
    model = train(truth, steps, generator)

    # Test points, with the least noise on them: both densities are those of noised data.
    x0 = truth.sample(300, generator).float()
    gamma = torch.full((len(x0),), model.gamma_min)
    x = diffuse(x0, torch.randn(x0.shape, generator=generator), gamma, model.schedule)
    learned, exact = log_densities(model, truth, x, solver)
    gap = exact - learned
    error = float(gap.std()) / math.sqrt(len(gap))
    print(
        f"log p of test points: {float(learned.mean()):.3f} nats, exact {float(exact.mean()):.3f}"
    )
    print(f"KL divergence from the truth: {float(gap.mean()):.3f} ± {error:.3f} nats")

    drawn = idode.sample(model, 2000, solver=DPM(30), batch_size=2000)
    likely = exact_log_p(model, truth, drawn.x)
    print(f"exact log p of samples: {float(likely.mean()):.3f} nats ({drawn.nfe:.0f} evaluations)")

    # The learned density is normalised by construction; on a grid this can be seen.
    points, area = grid(56 if args.fast else 72)
    densities = [log_p.exp() for log_p in log_densities(model, truth, points, solver)]
    print(f"integral of the learned density: {float(densities[0].sum()) * area:.3f}")
    draw(args.out, densities, drawn.data, [learned, exact])
    print(args.out)


if __name__ == "__main__":
    main()
