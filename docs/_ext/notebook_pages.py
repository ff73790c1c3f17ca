"""Notebooks as pages: cells and their stored outputs, nothing is executed."""

from __future__ import annotations

import json
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata


def markdown(notebook: dict[str, Any]) -> str:
    """Text as it is, code and printed output as fences, pictures inside of the page."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                parts.append(f"```text\n{''.join(output['text'])}```")
            else:
                parts.append(f"![output](data:image/png;base64,{output['data']['image/png']})")
    return "\n\n".join(parts) + "\n"


def read(app: Sphinx, name: str, source: list[str]) -> None:
    """Replace the JSON of a notebook by a page."""
    if str(app.env.doc2path(name)).endswith(".ipynb"):
        source[0] = markdown(json.loads(source[0]))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Called by Sphinx."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
