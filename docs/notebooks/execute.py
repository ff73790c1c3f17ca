"""Run notebooks and store their outputs, without Jupyter.

    python docs/notebooks/execute.py docs/notebooks/*.ipynb

Cells use plain Python: what they print, and pictures at ``plt.show()``, are their outputs.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

__all__ = ["execute", "outputs_of"]


def picture() -> dict[str, Any]:
    """The current figure as an output; all figures are closed."""
    file = io.BytesIO()
    plt.savefig(file, dpi=90, bbox_inches="tight", metadata={"Software": None})
    plt.close("all")
    png = base64.b64encode(file.getvalue()).decode()
    return {"output_type": "display_data", "metadata": {}, "data": {"image/png": png}}


def outputs_of(code: str, names: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Run a cell; its text, then its pictures."""
    printed, pictures = io.StringIO(), []
    show = plt.show
    plt.show = lambda: pictures.append(picture())
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, where, "exec", dont_inherit=True), names)
    finally:
        plt.show = show
    text = printed.getvalue().splitlines(keepends=True)
    stream = {"output_type": "stream", "name": "stdout", "text": text}
    return ([stream] if text else []) + pictures


def execute(path: Path) -> dict[str, Any]:
    """The notebook with new outputs; the cells share their names."""
    notebook: dict[str, Any] = json.loads(path.read_text("utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, start=1):
        where = f"{path.name}, cell {number}"
        cell["execution_count"] = number
        cell["outputs"] = outputs_of("".join(cell["source"]), names, where)
    return notebook


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        file.write_text(json.dumps(execute(file), indent=1, ensure_ascii=False) + "\n", "utf-8")
        print(file)
