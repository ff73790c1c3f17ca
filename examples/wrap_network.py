"""Somebody else's network: its bits per dimension, with its own idea of time and of pixels.

    python examples/wrap_network.py [--fast]

The network here stands for yours. It is trained as DDPM does it, without this library: it
predicts the noise, is told the number of one of 1,000 steps whose noise follows a table of
betas, and sees pixels as 2X/16 - 1. ``idode.adapt`` reads all of this from the pair of network
and scheduler; ``idode.wrap`` is told it in words, for what ``adapt`` does not know.
"""

from __future__ import annotations

import argparse
import math
from types import SimpleNamespace

import torch
from torch import Tensor, nn

import idode
from idode.data.loading import load
from idode.diffusion.clocks import TableTime
from idode.ode.adams import Adams

LEVELS = 17  # of the 8x8 digits
BETAS = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
# As the schedulers of diffusers look; theirs can be used in its place.
SCHEDULER = SimpleNamespace(
    alphas_cumprod=torch.cumprod(1 - BETAS, dim=0),
    config={"num_train_timesteps": 1000, "prediction_type": "epsilon"},
)


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
        fine = x.flatten(1) * (LEVELS - 1) * torch.pi  # where in its bin a pixel is
        told = torch.cat([x.flatten(1), fine.sin(), fine.cos(), angle.sin(), angle.cos()], dim=1)
        return self.body(told).reshape(x.shape)


def their_training(images: Tensor, steps: int) -> TheirNetwork:
    """The simple loss at random steps. Not a line of it is ours."""
    torch.manual_seed(0)
    net = TheirNetwork()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        x0 = images[torch.randint(len(images), (64,))]
        step, eps = torch.randint(1000, (64,)), torch.randn(64, 1, 8, 8)
        kept = SCHEDULER.alphas_cumprod[step].float()[:, None, None, None]
        said = net(kept.sqrt() * x0 + (1 - kept).sqrt() * eps, step.float())
        loss = ((said - eps) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    return net.eval().requires_grad_(False)


def main() -> None:
    """Train theirs, adapt it, evaluate it."""
    parser = argparse.ArgumentParser(description="Bits per dimension of a foreign network.")
    parser.add_argument("--fast", action="store_true", help="seconds, and a worse network")
    args = parser.parse_args()
    digits = load("digits")
    train, test = (torch.from_numpy(split).long() for split in (digits.train, digits.test))
    net = their_training(2 * train.float() / (LEVELS - 1) - 1, 1500 if args.fast else 8000)

    # Two lines. The first prints what it understood; the scale [-1, 1] is diffusers' convention.
    pixels = test[: 32 if args.fast else 128]
    model = idode.adapt((net, SCHEDULER), levels=LEVELS)
    result = model.bits_per_dim(
        pixels, idode.LikelihoodSettings(solver=Adams(tolerance=0.3 if args.fast else 0.01))
    )
    bound = model.sde_bound(pixels)
    print(f"SDE bound {bound.mean:.3f} ± {bound.standard_error:.3f} bits/dim")
    print(f"ODE       {result}, NFE {result.nfe:.0f}")
    print(f"by source {result.errors}")
    for note in result.notes:
        print(f"note      {note}")
    print(f"all levels alike would cost {math.log2(LEVELS):.3f} bits/dim")

    # The same in words, for networks that adapt does not know: what it predicts, on which path,
    # on which clock, for how many levels on which scale.
    clock = TableTime(SCHEDULER.alphas_cumprod)
    same = idode.wrap(net, "noise", "vp", clock, levels=LEVELS, data_range="[-1, 1]")
    print(f"SDE bound {same.sde_bound(pixels).mean:.3f} bits/dim, wrapped by hand")

    # A wrong convention is not an error anybody could catch, but it shows: here the scale of the
    # pixels is ignored, and here the network is told its steps as if there were only 500.
    wrong = idode.wrap(net, "noise", "vp", clock, levels=LEVELS)
    print(f"SDE bound {wrong.sde_bound(pixels).mean:.3f} bits/dim on the wrong scale")
    wrong = idode.wrap(lambda x, t: net(x, 500 * t), "noise", "vp", "linear-beta", levels=LEVELS)
    print(f"SDE bound {wrong.sde_bound(pixels).mean:.3f} bits/dim on the wrong clock")


if __name__ == "__main__":
    main()
