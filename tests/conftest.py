from __future__ import annotations

import signal

import pytest
import torch

from idode.diffusion import exact
from idode.diffusion.schedules import SCHEDULES

torch.set_num_threads(1)
# A process started in the background ignores Ctrl-C, and tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)

ALL_SCHEDULES = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def mixture() -> exact.Mixture:
    """Three components in three dimensions with full covariances: nothing is diagonal or equal."""
    g = torch.Generator().manual_seed(1)
    root = 0.4 * torch.randn(3, 3, 3, generator=g, dtype=torch.float64)
    return exact.mixture(
        [0.5, 0.2, 0.3],
        0.8 * torch.randn(3, 3, generator=g, dtype=torch.float64),
        root @ root.mT + 0.02 * torch.eye(3, dtype=torch.float64),
    )
