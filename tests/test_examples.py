"""Every example runs, in its fast mode, and says what it should."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What an example prints, run here: warnings are errors, and torch is imported already."""

    def ran(name: str, *words: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, "--fast", *map(str, words)])
        with torch.random.fork_rng():  # a foreign training draws from the global generator
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        said = capsys.readouterr()
        assert said.err == ""
        return said.out

    return ran


def number(pattern: str, text: str) -> float:
    found = re.search(pattern.replace("#", r"(-?\d+\.\d+)"), text)
    assert found is not None, text
    return float(found[1])


def size(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        assert len(np.unique(np.asarray(image))) > 2
        return image.size


def test_every_example_is_tested() -> None:
    named = set(re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text("utf-8")))
    assert {path.name for path in EXAMPLES.glob("*.py")} == named


def test_two_moons_are_close_to_the_truth(tmp_path: Path, run: Callable[..., str]) -> None:
    said = run("two_moons.py", "--out", tmp_path / "moons.png")
    assert -0.1 < number("KL divergence from the truth: #", said) < 0.6
    # A density that integrates to one, on a grid about as wide as its finest features.
    assert number("integral of the learned density: #", said) == pytest.approx(1, abs=0.15)
    width, height = size(tmp_path / "moons.png")
    assert width > 3 * height


def test_pictures_that_do_not_belong_are_the_least_likely(
    tmp_path: Path, run: Callable[..., str]
) -> None:
    said = run("own_images.py", "--size", 8, "--out", tmp_path / "own")
    (least,) = re.findall(r"^least likely, .*?: (.+)$", said, re.MULTILINE)
    assert {int(n) for n in re.findall(r"(\d+) \(", least)} == {29, 30, 31}
    for name in ("ranked.png", "samples.png"):
        assert min(size(tmp_path / "own" / name)) > 100


@pytest.mark.slow
def test_a_folder_of_ones_own_is_taken(tmp_path: Path, run: Callable[..., str]) -> None:
    (tmp_path / "mine").mkdir()
    draw = np.random.default_rng(0)
    for i in range(80):
        pixels = np.full((6, 9, 3), draw.integers(0, 256, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "mine" / f"{i:02d}.png")
    said = run("own_images.py", tmp_path / "mine", "--size", 4, "--out", tmp_path / "own")
    assert "3x4x4" in said or "(3, 4, 4)" in said
    assert "bits/dim, 8 images" in said
    assert not (tmp_path / "own" / "images").exists()


def test_a_foreign_network_has_its_bits_and_a_wrong_clock_costs_more(
    run: Callable[..., str],
) -> None:
    said = run("wrap_network.py")
    bound, ode = number("SDE bound # ±", said), number("ODE +# ±", said)
    alike = number("alike would cost #", said)
    # Of 1500 steps from other seeds the bound is 3.88 ± 0.01. The ODE of so poor a network is up
    # to half a bit above it, on a coarse grid; a wrong reading would be further away.
    assert 1.5 < bound < alike
    assert ode == pytest.approx(bound, abs=1)
    assert number("SDE bound # bits/dim on the wrong clock", said) > bound + 0.3
    assert number("SDE bound # bits/dim, wrapped by hand", said) == bound
    assert number("SDE bound # bits/dim on the wrong scale", said) > bound


def test_likelihoods_classify(run: Callable[..., str]) -> None:
    said = run("classifier.py")
    assert number("accuracy #", said) > 0.6
    assert number("cross-entropy #", said) < 1.6


def test_a_pipeline_of_diffusers_is_adapted_where_there_is_one(run: Callable[..., str]) -> None:
    said = run("diffusers_pipeline.py")
    if "diffusers is not installed" in said:
        return  # `make adapters` has it
    assert 2 < number("ODE # ±", said) < 6
