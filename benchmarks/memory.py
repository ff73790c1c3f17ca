"""Peak memory of an evaluation for several K, each in a process of its own.

python benchmarks/memory.py
"""

from __future__ import annotations

import multiprocessing
import resource

import torch

from idode.data import load
from idode.likelihood.estimator import LikelihoodSettings
from idode.ode.adams import Adams
from idode.runs.run import load as load_model


def peak(n_importance: int) -> int:
    """Largest resident size in MB while 16 digits are evaluated on one thread."""
    torch.set_num_threads(1)
    settings = LikelihoodSettings(n_importance=n_importance, solver=Adams(tolerance=0.02))
    load_model("pretrained:digits", device="cpu").bits_per_dim(load("digits").test[:16], settings)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    for k in (1, 20):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(f"K = {k:2d}: {pool.apply(peak, (k,))} MB")
