"""The first code of the README runs as it stands there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from test_docs import fences
from test_layers import ROOT
from test_report import SMALL as SMALL_REPORT

import idode
from idode.ode.adams import Adams
from idode.runs.config import override
from idode.runs.presets import PRESETS

# What a reader runs, and what is run here in its place, so that the test takes seconds. The rest
# is run to the letter.
SHORTER = {
    "model.sample(16)": "model.sample(1)",
    # The exact divergence of a state of CIFAR-10 takes 3072 products at each of some 300 nodes.
    "model.log_prob(states)": "model.log_prob(states, solver=two_steps)",
    "model.bits_per_dim(images)": "model.bits_per_dim(images, coarse)",
    "steps=700": "steps=3",
    "idode.evaluate(run)": "idode.evaluate(run, limit=4, settings=coarse)",
}
# The preset that it trains, with a small network and few steps of fine-tuning.
SMALL = ["net.width=8", "net.depth=1", "net.groups=2", "finetune.steps=2"]


def run_first_code(
    shorter: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, object]:
    """Run the block; the names it leaves behind.

    ``images`` and ``states``, which the reader has, are one picture of a gradient and noised data.
    """
    monkeypatch.chdir(tmp_path)
    if shorter:
        monkeypatch.setattr("idode.studies.report.report.FAST", SMALL_REPORT)
    monkeypatch.setenv("IDODE_DATA", str(tmp_path / "data"))
    monkeypatch.setitem(PRESETS, "digits", override(PRESETS["digits"], SMALL))
    code = fences(ROOT / "README.md", "python")[0]
    for words, fewer in shorter.items():
        assert words in code
        code = code.replace(words, fewer)
    ramp = (4 * np.add.outer(np.arange(32), np.arange(32)) % 256).astype(np.uint8)
    names: dict[str, object] = {
        "images": ramp[None, None].repeat(3, axis=1),
        "states": 0.5 * torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)),
        "coarse": idode.LikelihoodSettings(solver=Adams(steps=2)),
        "two_steps": Adams(steps=2),
    }
    with torch.random.fork_rng():
        exec(compile(code, "README.md", "exec", dont_inherit=True), names)
    return names


def check(names: dict[str, object], count: int) -> None:
    """What the comments of the block promise."""
    model, result, x = names["model"], names["result"], names["x"]
    assert isinstance(model, torch.nn.Module)
    assert "±" in str(result)
    assert result.errors.images >= 0
    assert result.nfe > 0
    assert len(result.per_image) == 1
    assert (x.dtype, x.shape) == (torch.uint8, (count, 3, 32, 32))
    assert names["log_p"].shape == (1,)
    assert names["loss"].ndim == 0
    for path in ("runs/digits/model.safetensors", "runs/tuned/config.json", "report/report.html"):
        assert Path(path).exists(), path


def test_the_first_code_runs_with_coarse_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(run_first_code(SHORTER, tmp_path, monkeypatch), count=1)


@pytest.mark.slow
def test_the_first_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(run_first_code({}, tmp_path, monkeypatch), count=16)


def test_the_first_code_is_on_the_first_screen() -> None:
    before = (ROOT / "README.md").read_text("utf-8").partition("```python")[0]
    assert before.count("\n") < 12
