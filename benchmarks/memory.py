"""Peak memory of an evaluation for several K, each in a process of its own.

python benchmarks/memory.py
"""

from __future__ import annotations

import multiprocessing
import resource

import numpy as np
import torch

from idode.data import load
from idode.likelihood.bits_per_dim import LikelihoodSettings, bits_per_dim
from idode.runs.run import open_run


def peak(importance: int) -> int:
    """Largest resident size in MB while 16 digits are evaluated on one thread."""
    torch.set_num_threads(1)
    pixels = torch.from_numpy(np.array(load("digits").test[:16]))
    settings = LikelihoodSettings(importance=importance, tolerance=0.02)
    bits_per_dim(open_run("pretrained:digits").model(), pixels, settings)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    for importance in (1, 20):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(f"K = {importance:2d}: {pool.apply(peak, (importance,))} MB")
