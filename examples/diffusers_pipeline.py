"""A diffusers pipeline: its bits per dimension, and log p of its samples.

    pip install diffusers
    python examples/diffusers_pipeline.py [FOLDER] [--fast]

FOLDER is what ``pipeline.save_pretrained`` wrote. Without one, a small pipeline is trained on the
8x8 digits first. On the command line: ``idode evaluate diffusers:FOLDER --data cifar10``.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import torch

import idode
from idode.data.loading import load
from idode.ode.adams import Adams


def small_pipeline(steps: int) -> Any:  # noqa: ANN401
    """A DDPM of the digits on [-1, 1], as diffusers' own tutorial trains it."""
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    torch.manual_seed(0)
    net = UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, block_out_channels=(16, 32),
        layers_per_block=1, norm_num_groups=8, attention_head_dim=8,
        down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2,
    )  # fmt: skip
    scheduler = DDPMScheduler()
    images = 2 * torch.from_numpy(load("digits").train).float() / 16 - 1
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for _ in range(steps):
        x0 = images[torch.randint(len(images), (64,))]
        eps, t = torch.randn_like(x0), torch.randint(1000, (64,))
        loss = ((net(scheduler.add_noise(x0, eps, t), t).sample - eps) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return DDPMPipeline(net, scheduler)


def main() -> None:
    """Train or open a pipeline, adapt it, evaluate it."""
    parser = argparse.ArgumentParser(description="Bits per dimension of a diffusers pipeline.")
    parser.add_argument("folder", nargs="?", type=Path, help="of a saved pipeline of the digits")
    parser.add_argument("--fast", action="store_true", help="seconds, and a worse network")
    args = parser.parse_args()
    if importlib.util.find_spec("diffusers") is None:
        print("diffusers is not installed: pip install diffusers")
        return
    if args.folder is None:
        pipeline = small_pipeline(60 if args.fast else 3000)
    else:
        from diffusers import DiffusionPipeline

        pipeline = DiffusionPipeline.from_pretrained(args.folder, local_files_only=True)

    pixels = torch.from_numpy(load("digits").test[: 4 if args.fast else 64]).long()
    settings = idode.LikelihoodSettings(solver=Adams(tolerance=0.2 if args.fast else 0.01))
    model = idode.adapt(pipeline, levels=17)
    result = model.bits_per_dim(pixels, settings)
    print(f"ODE {result}, NFE {result.nfe:.0f}", *result.notes, sep="\n")
    samples = model.sample(4, log_prob=True, solver=Adams(steps=40))
    print("log p of four samples at the least noise:", [round(float(p)) for p in samples.log_p])


if __name__ == "__main__":
    main()
