from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest
import torch
from forking import FIRST_STEPS

from idode.diffusion import exact
from idode.diffusion.schedules import SCHEDULES
from idode.nets.layers import Conv, Dense
from idode.numerics import cpu_threads
from idode.ode import calibration

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
# Whether an example is slow depends on who else is at the machine.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")
# A process started in the background ignores Ctrl-C, and tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def fill_with_nan(layer: Conv | Dense) -> None:
    for parameter in layer.parameters():
        torch.nn.init.constant_(parameter, torch.nan)


# Fresh layers hold whatever the memory held until `initialise`: a test that forgets it passes or
# fails by chance, so here they hold NaN.
Conv.reset_parameters = Dense.reset_parameters = fill_with_nan  # type: ignore[method-assign]

# Files whose verdict could depend on the last bit: instruction set, threads, library.
NUMERICAL = {
    "test_convolution.py",
    "test_dequantization.py",
    "test_exact.py",
    "test_learned_path.py",
    "test_likelihood.py",
    "test_nets.py",
    "test_normalisation.py",
    "test_objectives.py",
    "test_ode.py",
    "test_parity.py",
    "test_predictors.py",
    "test_quantization.py",
    "test_sampling.py",
    "test_schedules.py",
    "test_time_sampling.py",
    "test_vdm_weights.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The doctests show numbers too."""
    for item in items:
        if item.path.name in NUMERICAL or isinstance(item, pytest.DoctestItem):
            item.add_marker(pytest.mark.numerical)


ALL_SCHEDULES = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For what is compared to the last bit with a forked process, which has one."""
    with cpu_threads(1):
        yield


# Files whose subject is the search for a grid, or a result to the accuracy that it promises.
SEARCHING = {
    "test_coverage.py",
    "test_nodes.py",
    "test_ode.py",
    "test_wrap.py",
}


@pytest.fixture(scope="module", autouse=True)
def _short_search(request: pytest.FixtureRequest) -> Iterator[None]:
    """Elsewhere it begins with fewer steps: its first rounds cost more than all the rest."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name not in SEARCHING:
            patch.setattr(calibration, "FIRST", FIRST_STEPS)
        yield


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
