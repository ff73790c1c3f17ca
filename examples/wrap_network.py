"""Somebody else's network: its bits per dimension, with its own idea of time.

    python examples/wrap_network.py [--fast]

The network here stands for yours. It is trained as DDPM does it, without this library: it
predicts the noise, and is told the number of one of 1,000 steps whose noise follows a table of
betas. ``idode.wrap`` says exactly that, and every evaluation then works on it.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor, nn

import idode
from idode.data import load
from idode.diffusion.clocks import TableTime

LEVELS = 17  # of the 8x8 digits
BETAS = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
ALPHAS_CUMPROD = torch.cumprod(1 - BETAS, dim=0)


class TheirNetwork(nn.Module):
    """Noise of images ``(B, 1, 8, 8)`` at steps 0..999; it need not know of integers only."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(3 * 64 + 16, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 64),
        )  # fmt: skip

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        """Predict the noise."""
        angle = step[:, None] / 1000 * torch.pi * 2.0 ** torch.arange(8).to(x)
        fine = x.flatten(1) * LEVELS * torch.pi  # where in its bin a pixel is
        told = torch.cat([x.flatten(1), fine.sin(), fine.cos(), angle.sin(), angle.cos()], dim=1)
        return self.body(told).reshape(x.shape)


def their_training(images: Tensor, steps: int) -> TheirNetwork:
    """The simple loss at random steps. Not a line of it is ours."""
    torch.manual_seed(0)
    net = TheirNetwork()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        x0 = images[torch.randint(len(images), (128,))]
        step, eps = torch.randint(1000, (128,)), torch.randn(128, 1, 8, 8)
        kept = ALPHAS_CUMPROD[step].float()[:, None, None, None]
        said = net(kept.sqrt() * x0 + (1 - kept).sqrt() * eps, step.float())
        loss = ((said - eps) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    return net.eval().requires_grad_(False)


def main() -> None:
    """Train theirs, wrap it, evaluate it."""
    parser = argparse.ArgumentParser(description="Bits per dimension of a foreign network.")
    parser.add_argument("--fast", action="store_true", help="seconds, and a worse network")
    args = parser.parse_args()
    digits = load("digits")
    train, test = (torch.from_numpy(split).long() for split in (digits.train, digits.test))

    # Level X of L stands for (2X + 1)/L - 1, the middle of its bin. A network trained on another
    # scale, such as 2X/(L - 1) - 1, is called through a function that rescales its input.
    net = their_training((2 * train + 1).float() / LEVELS - 1, 1500 if args.fast else 8000)

    # What it predicts, on which path, on which clock, for how many levels: that is all.
    clock = TableTime(ALPHAS_CUMPROD)
    model = idode.wrap(net, "noise", "vp", clock, levels=LEVELS)
    print(f"gamma from {model.gamma_min:.2f} to {model.gamma_max:.2f}, of {clock.known()}")

    pixels = test[: 8 if args.fast else 128]
    settings = idode.LikelihoodSettings(tolerance=0.2 if args.fast else 0.01)
    bound, result = idode.sde_bound(model, pixels), idode.bits_per_dim(model, pixels, settings)
    print(f"SDE bound {bound.mean:.3f} ± {bound.standard_error:.3f} bits/dim")
    print(f"ODE       {result}, NFE {result.nfe:.0f}")
    print(f"by source {result.errors}")
    print(f"all levels alike would cost {math.log2(LEVELS):.3f} bits/dim")

    # A wrong convention is not an error anybody could catch, but it shows: here the network is
    # told its steps as if there were only 500 of them.
    wrong = idode.wrap(lambda x, t: net(x, 500 * t), "noise", "vp", "linear-beta", levels=LEVELS)
    print(f"SDE bound {idode.sde_bound(wrong, pixels).mean:.3f} bits/dim on the wrong clock")


if __name__ == "__main__":
    main()
