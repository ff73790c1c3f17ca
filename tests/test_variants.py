"""Parts that were tried and lost still do what the tables of docs/results say they do."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from idode.data.memory import from_arrays
from idode.diffusion.quantization import Quantization
from idode.diffusion.schedules import SCHEDULES
from idode.errors import InputError
from idode.runs.config import Config, fit, override
from idode.runs.presets import PRESETS
from idode.runs.run import build_net, diffusion_ode
from idode.training.objective import Batch
from idode.training.train import train
from idode.training.trainer import Trainer

SETTINGS = ["net.width=8", "net.depth=2", "net.halvings=1", "net.groups=4"]
IMAGES = np.random.default_rng(0).integers(0, 17, (30, 1, 8, 8)).astype(np.uint8)
DATA = from_arrays(IMAGES[:20], IMAGES[20:], 17)
ADDED = {"endless-levels", "level-frequencies", "gaussian", "separable-gaussian"}


@pytest.fixture(scope="module")
def variants() -> ModuleType:
    folder = str(Path(__file__).parent.parent / "benchmarks")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("variants")
    finally:
        sys.path.remove(folder)


def configured(name: str, *settings: str) -> Config:
    quantization = "closed-form" if name in ADDED else "learned"
    given = [*SETTINGS, f"model.quantization={quantization}", *settings]
    return fit(override(PRESETS["digits"], given), 17, (1, 8, 8))


def noise(config: Config) -> torch.Tensor:
    """What a network with random weights says of the noise of some states."""
    net = build_net(config)
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=g))
    model = diffusion_ode(net.eval(), config)
    x = torch.randn(3, 1, 8, 8, generator=g)
    with torch.no_grad():
        return model.noise(x, torch.full((3,), -4.0).double())


NAMES = sorted(
    ADDED
    | {"slow-time", "levels-as-input", "factorised-kernels", "depthwise-kernels"}
    | {"wide-inside"}
)


@pytest.mark.parametrize("name", NAMES)
def test_each_changes_the_model_and_only_inside_its_context(variants, name: str) -> None:
    config = configured(name)
    before = noise(config)
    with variants.applied([f"variant={name}"], config, DATA):
        inside = noise(config)
    assert inside.isfinite().all()
    assert not torch.allclose(inside, before, atol=1e-3)
    torch.testing.assert_close(noise(config), before, rtol=0, atol=0)


def test_all_of_them_are_tested(variants) -> None:
    assert sorted(variants.VARIANTS) == sorted([*NAMES, "growing-batches"])


def test_batches_grow_to_four_times_their_first_size(variants, tmp_path: Path) -> None:
    config = configured("growing-batches", "train.batch_size=8", "train.steps=10")
    sizes, gradients = [], Trainer.gradients

    def counted(trainer: Trainer, batch: Batch, trial: int | None = None) -> Any:
        sizes.append((trainer.state.step, len(batch.x0)))
        return gradients(trainer, batch, trial)

    with (
        variants.applied(["variant=growing-batches"], config, DATA),
        patch.object(Trainer, "gradients", counted),
    ):
        run = train(config, out=tmp_path / "run", data=DATA, device="cpu", progress=False)
    assert dict(sizes) == dict(enumerate([2] * 5 + [4] * 3 + [8] * 2))
    assert (run.path / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "settings", "needs"),
    [
        ("gaussian", ["model.quantization=learned"], "closed-form, not learned"),
        ("levels-as-input", ["model.quantization=closed-form"], "learned, not closed-form"),
        ("wide-inside", ["net.halvings=0"], "net.halvings=1"),
        ("growing-batches", ["train.batch_size=6"], "a batch_size that four divides"),
    ],
)
def test_one_that_would_change_nothing_is_refused(
    variants, name: str, settings: list[str], needs: str
) -> None:
    config = configured(name, *settings)
    with (
        pytest.raises(InputError, match=needs),
        variants.applied([f"variant={name}"], config, DATA),
    ):
        pytest.fail("it was not refused")


def test_equally_likely_levels_are_those_of_the_program(variants) -> None:
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    schedule = SCHEDULES["vp"]
    for gamma in (-7.0, -4.0, -1.0, 2.0):
        at = torch.full((4,), gamma).double()
        ours = Quantization(17).noise(x, at, schedule)
        torch.testing.assert_close(
            variants.Bells(17, torch.zeros(17)).noise(x, at, schedule), ours
        )
