"""The notebooks of the documentation run, and carry the outputs that they print."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image
from test_layers import ROOT

FOLDER = ROOT / "docs" / "notebooks"
# What a reader runs, and what is run here in its place: the same cells in seconds.
SHORTER = {
    "two_moons": {
        "steps = 600": "steps = 3",
        "truth.sample(200,": "truth.sample(8,",
        "Adams(tolerance=0.02)": "Adams(steps=4)",
        "side, reach = 40": "side, reach = 4",
        "sample(1000, solver=DPM(20))": "sample(8, solver=DPM(4))",
    },
    "your_network": {
        "range(2500)": "range(3)",
        "Adams(tolerance=0.1)": "Adams(steps=4)",
        "test[:64]": "test[:4]",
        "test[:16]": "test[:4]",
    },
    "bits_of_a_picture": {
        "count, draws = 40, 32": "count, draws = 12, 2",
        "test[:6]": "test[:2]",
        "draws=64": "draws=4",
    },
}
PATHS = sorted(FOLDER.glob("*.ipynb"))
every_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)


def load_execute() -> ModuleType:
    """docs/notebooks/execute.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_cells(path: Path) -> list[dict]:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def kinds(cell: dict) -> list[str]:
    return [output["output_type"] for output in cell["outputs"]]


@every_notebook
def test_a_notebook_runs_and_gives_outputs_where_it_carries_them(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDODE_DATA", str(tmp_path))
    text = path.read_text("utf-8")
    for words, fewer in SHORTER[path.stem].items():
        assert words in text
        text = text.replace(words, fewer)
    short = tmp_path / path.name
    short.write_text(text, "utf-8")
    with torch.random.fork_rng():
        cells = load_execute().execute(short)["cells"]
    found = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [kinds(cell) for cell in found] == [kinds(cell) for cell in code_cells(path)]


@pytest.mark.slow
@every_notebook
def test_a_notebook_takes_less_than_a_minute(path: Path) -> None:
    begin = time.process_time()
    with torch.random.fork_rng():
        load_execute().execute(path)
    assert time.process_time() - begin < 60


@every_notebook
def test_a_notebook_carries_numbers_and_pictures(path: Path) -> None:
    outputs = [output for cell in code_cells(path) for output in cell["outputs"]]
    assert any(output["output_type"] == "stream" for output in outputs)
    pictures = [o["data"]["image/png"] for o in outputs if o["output_type"] == "display_data"]
    assert len(pictures) >= 1
    for picture in pictures:
        with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
            assert image.width > 300
            assert len(image.convert("RGB").getcolors(1 << 20)) > 10  # not an empty figure


@every_notebook
def test_cells_were_run_in_order_by_one_process(path: Path) -> None:
    counts = [cell["execution_count"] for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1))


def test_there_are_three_notebooks_and_all_are_listed() -> None:
    listed = (FOLDER / "index.md").read_text("utf-8")
    assert sorted(SHORTER) == [path.stem for path in PATHS]
    for path in PATHS:
        assert f"({path.name})" in listed
        assert f"\n{path.stem}\n" in listed
