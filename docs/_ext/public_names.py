"""References and members of docstrings: what is a link, what is text, and what is an error.

Docstrings also refer to names that have no page. Those that exist in the code are shown as text; a
name that does not exist is a warning, and warnings are errors.
"""

from __future__ import annotations

import importlib
import re

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.typing import ExtensionMetadata


def exists(path: str) -> bool:
    """Whether a dotted path leads to a module, or to an attribute below one."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def as_text(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.Element | None:
    """A name without a page: looked up in the module of the docstring and those around it."""
    if node.get("refdomain") != "py":
        return None
    _, _, place = (node.source or "").partition("docstring of ")
    home = re.sub(r":\d+$", "", place).split(".")
    inside = (".".join(home[:count]) for count in range(len(home), 0, -1))
    paths = [f"{module}.{node['reftarget']}" for module in (*inside, "idode") if module]
    return content if any(map(exists, [*paths, node["reftarget"]])) else None


def skip(app: Sphinx, what: str, name: str, *described: object) -> bool | None:
    """Whether to leave a member out: methods that scikit-learn adds to every estimator."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def setup(app: Sphinx) -> ExtensionMetadata:
    """Called by Sphinx."""
    app.connect("missing-reference", as_text)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
