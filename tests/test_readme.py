"""The README is true: code and commands run, and figures are those of stored outputs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from test_docs import fences
from test_layers import ROOT
from test_report import SMALL as SMALL_REPORT

import idode
from idode.cli.main import main
from idode.cli.parsing import parser_of
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
    "idode.evaluate(tuned)": "idode.evaluate(tuned, limit=4, settings=coarse)",
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


# The command that stands there, and the words that make it take seconds.
GREY = "--data npy:grey.npy?levels=4"  # 4x4 pixels
COARSE = "--limit 2 --solver rk4 --steps 2 --draws 2"
QUICKER = {
    "idode data list": "",
    "idode train digits --out runs/digits": f"--steps 3 {GREY}",
    "idode finetune runs/digits --out runs/tuned": "",
    "idode evaluate runs/tuned --importance 5 --json r.json": COARSE,
    "idode sample runs/tuned --count 64 --out samples.png": "--count 2 --solver dpm --steps 2",
    "idode report runs/tuned --out report": "",
    "idode compare --systems vdm,idode-vp --steps 500 --out compare": (
        f"--steps 2 --limit 2 --samples 2 --tolerance 1.0 {GREY}"
    ),
    "idode compress digits --model pretrained:digits --out digits.idode": "--limit 2 --steps 2",
    "idode score pretrained:digits digits --out scores.csv": "--limit 2",
    "idode import ckpt-6000000.flax --out runs/authors": "--size 8",
    "idode evaluate runs/authors --data cifar10": f"{COARSE} --data npy:rgb.npy",
}
# Pages of many figures: their commands run in test_report.py and test_compare.py as well.
PAGES = ("idode report", "idode compare")
MADE = (
    "runs/digits/model.safetensors runs/tuned/config.json r.json samples.png digits.idode"
    " scores.csv scores.html runs/authors/config.json"
)


def shell() -> list[str]:
    """The commands of the README, without their comments."""
    lines = "".join(fences(ROOT / "README.md", "sh")).splitlines()
    return [line.partition("#")[0].strip() for line in lines]


@pytest.mark.parametrize("pages", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_command_of_the_readme_runs(
    pages: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("idode.studies.report.report.FAST", SMALL_REPORT)
    monkeypatch.setenv("IDODE_DATA", str(tmp_path / "data"))
    monkeypatch.setitem(PRESETS, "digits", override(PRESETS["digits"], SMALL))
    shutil.copy(ROOT / "tests/reference/tiny.flax", "ckpt-6000000.flax")  # for the authors'
    np.save("grey.npy", tiny.images())
    np.save("rgb.npy", np.zeros((20, 3, 8, 8), np.uint8))
    commands = [line for line in shell() if line.startswith("idode ")]
    assert commands == list(QUICKER)
    for line in commands:
        name, *words = [*line.split()[1:], *QUICKER[line].split()]
        if pages or not line.startswith(PAGES):
            assert main([name, *words]) == 0, (line, capsys.readouterr().err)
        else:
            parser_of(name).parse_args(words)
    made = f"{MADE} report/report.html compare/compare.html" if pages else MADE
    assert [name for name in made.split() if not Path(name).exists()] == []


def test_commands_that_are_not_of_the_program_are_those_of_the_makefile() -> None:
    """``make demo`` runs ``idode demo``, and ``make test`` these tests."""
    others = [line for line in shell() if not line.startswith("idode ")]
    assert others == ["make demo", "make test"]


NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def numbers(text: str) -> set[str]:
    """Numbers as they are written, without signs of typography and of plus."""
    text = text.replace("−", "-").replace("±", " ± ")
    return {found.lstrip("+").rstrip(",") for found in NUMBER.findall(text)}


def figures() -> list[tuple[str, str]]:
    """The figures of each row of the README's results, and where they come from."""
    _, _, results = (ROOT / "README.md").read_text("utf-8").partition("## Results")
    rows = re.findall(r"^\|(.+)\|$", results.partition("\n## ")[0], re.MULTILINE)
    cells = [[cell.strip() for cell in row.split("|")] for row in rows[2:]]
    return [(figure, source) for _, figure, source in cells]


def stored(source: str) -> str:
    """What a command printed, or the page that has what it printed."""
    page = re.fullmatch(r"\[[\w.]+\]\(([\w/.]+)\)", source)
    if page is not None:
        return (ROOT / page[1]).read_text("utf-8")
    for path in sorted((ROOT / "docs/results/readme").glob("*.txt")):
        command, _, printed = path.read_text("utf-8").partition("\n")
        if f"`{command.removeprefix('$ ')}`" == source:
            return printed
    raise AssertionError(f"no stored output of {source}")


@pytest.mark.parametrize(("figure", "source"), figures())
def test_figures_are_those_of_the_stored_output(figure: str, source: str) -> None:
    assert numbers(figure)
    assert numbers(figure) - numbers(stored(source)) == set()


def test_numbers_are_found_as_they_are_written() -> None:
    found = numbers("−0.024 ± 0.002, 1,000 of 1e-5; 843±12 and +3")
    assert found == {"-0.024", "0.002", "1,000", "1e-5", "843", "12", "3"}
