"""Settings of the documentation site: `make docs` writes it to docs/_build/html."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import idode

project = "idode"
author = "the idode contributors"
release = idode.__version__
copyright = author

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "mathml",  # formulas without JavaScript or a network
    "notebook_pages",
    "public_names",
]
exclude_patterns = ["_build", "_ext", "_templates"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext", ".ipynb": "markdown"}

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4  # with the anchors of GitHub, which tests/test_docs.py follows

templates_path = ["_templates"]
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

# References that lead nowhere are errors, see _ext/public_names.py. Annotations refer to other
# libraries too: they are shown as text.
nitpicky = True
nitpick_ignore_regex = [(r"py:(class|obj|data)", r".*")]

html_theme = "furo"
html_title = f"idode {release}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
pygments_style = "default"
