"""Peak memory: of an evaluation for several K, and of training steps against their estimate.

    python benchmarks/memory.py [--only evaluation|training]

Each measurement is made in a process of its own, on the CPU. That of a training step is the most
resident memory less that before the step, against the estimate of `idode train --dry-run` without
its headroom, which is for GPUs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
from pathlib import Path

import torch

from idode.data import load
from idode.data.memory import from_arrays
from idode.likelihood.estimator import LikelihoodSettings
from idode.nets.layers import use_fast_backward
from idode.ode.adams import Adams
from idode.runs.config import Config, override
from idode.runs.distributed import World
from idode.runs.presets import PRESETS
from idode.runs.run import Run
from idode.runs.run import load as load_model
from idode.training.finetuning import finetuned
from idode.training.memory_estimate import step_memory
from idode.training.trainer import Trainer

IMAGES = 16
SIZES: dict[str, tuple[str, ...]] = {
    "64 channels, depth 8": ("net.width=64", "net.depth=8"),
    "128 channels, depth 4": ("net.width=128", "net.depth=4"),
    "64 channels, depth 16, recomputed": (
        "net.width=64",
        "net.depth=16",
        "net.checkpointing=true",
    ),
    "32 channels, depth 4, second order": ("net.width=32", "net.depth=4", "objective.order=2"),
}


def resident(what: str) -> int:
    """Bytes of this process that are in memory: ``VmRSS`` now, ``VmHWM`` at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def config_of(settings: tuple[str, ...]) -> Config:
    """CIFAR-10's network, smaller; the second order as in fine-tuning."""
    size = f"train.batch_size={IMAGES}"
    base = (
        finetuned(PRESETS["cifar10-vp"])
        if "objective.order=2" in settings
        else PRESETS["cifar10-vp"]
    )
    return override(base, [*settings, size, "train.compile=false", "finetune.continues=false"])


def evaluation(n_importance: int) -> int:
    """Largest resident size in MB while 16 digits are evaluated on one thread."""
    torch.set_num_threads(1)
    settings = LikelihoodSettings(n_importance=n_importance, solver=Adams(tolerance=0.02))
    load_model("pretrained:digits", device="cpu").bits_per_dim(load("digits").test[:16], settings)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def training(settings: tuple[str, ...]) -> tuple[float, float]:
    """Estimated and measured bytes of a step, its weights not counted."""
    torch.set_num_threads(1)
    config = config_of(settings)
    estimated = step_memory(config).image * IMAGES
    pixels = torch.randint(0, 256, (2 * IMAGES, 3, 32, 32), dtype=torch.uint8).numpy()
    data = from_arrays(pixels, pixels[:2], 256)
    trainer = Trainer(Run(Path("nowhere"), config, None), data, World(torch.device("cpu")))
    use_fast_backward(trainer.state.net, False)  # ours has buffers of its own
    trainer.try_step(IMAGES)  # one image at a time: the libraries load what they need
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    trainer.try_step()
    return estimated, resident("VmHWM") - before


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("evaluation", "training"))
    only = parser.parse_args().only
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # what is freed goes back to the system at once
    spawn = multiprocessing.get_context("spawn")
    for k in (1, 20) if only != "training" else ():
        with spawn.Pool(1) as pool:
            print(f"K = {k:2d}: {pool.apply(evaluation, (k,))} MB")
    for name, settings in SIZES.items() if only != "evaluation" else ():
        with spawn.Pool(1) as pool:
            estimated, measured = pool.apply(training, (settings,))
        print(
            f"{name:36} estimated {estimated / 2**20:6.0f} MB, measured {measured / 2**20:6.0f}, "
            f"ratio {estimated / measured:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
