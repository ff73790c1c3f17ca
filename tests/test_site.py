"""The documentation site: its API pages have every public name, and its links are followed."""

from __future__ import annotations

import importlib
import importlib.util
import operator
import re
from pathlib import Path
from types import ModuleType

import pytest
from test_layers import ROOT

API = ROOT / "docs" / "api.rst"
ROOMS = ["", ".ode", ".likelihood", ".sampling", ".data", ".sklearn", ".adapters"]
NO_PAGE = {"idode.__version__", "idode.data.Split"}  # a string, and arrays of NumPy


def listed() -> list[str]:
    return re.findall(r"^   (idode\.[\w.]+)$", API.read_text("utf-8"), re.MULTILINE)


def load_follow_links() -> ModuleType:
    """docs/follow_links.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("follow_links", ROOT / "docs/follow_links.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_in_the_api_reference(room: str) -> None:
    module = importlib.import_module(f"idode{room}")
    public = {f"idode{room}.{name}" for name in module.__all__}
    assert public - set(listed()) - NO_PAGE == set()


def test_every_name_of_the_api_reference_exists_and_is_documented() -> None:
    names = listed()
    assert sorted(names) == sorted(set(names))
    for name in names:
        module, _, attribute = name.rpartition(".")
        found = operator.attrgetter(attribute)(importlib.import_module(module))
        assert found.__doc__, name


class TestFollowingLinks:
    def site(self, folder: Path, body: str) -> list[str]:
        (folder / "a.html").write_text(f'<h1 id="top">A</h1>{body}', "utf-8")
        (folder / "b.html").write_text('<h1 id="there">B</h1><a href="a.html#top">A</a>', "utf-8")
        return load_follow_links().problems(folder)

    def test_links_that_lead_somewhere_pass(self, tmp_path: Path) -> None:
        body = '<a href="b.html#there">b</a><a href="#top">top</a><a href="https://a.b/c">c</a>'
        assert self.site(tmp_path, body + '<img src="data:image/png;base64,AA">') == []

    @pytest.mark.parametrize(
        ("body", "problem"),
        [
            ('<a href="c.html">c</a>', "no file c.html"),
            ('<img src="_images/c.png">', "no file _images/c.png"),
            ('<a href="b.html#here">b</a>', "no anchor b.html#here"),
            ('<a href="#bottom">a</a>', "no anchor #bottom"),
            ('<script src="https://cdn.a/b.js"></script>', "loads https://cdn.a/b.js"),
            ('<link rel="stylesheet" href="//cdn.a/b.css">', "loads //cdn.a/b.css"),
        ],
    )
    def test_a_link_that_leads_nowhere_or_away_is_named(
        self, tmp_path: Path, body: str, problem: str
    ) -> None:
        assert self.site(tmp_path, body) == [f"a.html: {problem}"]
