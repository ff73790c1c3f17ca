"""A release has one version, and what a project needs to be joined."""

from __future__ import annotations

import re

from test_layers import ROOT

import idode


def test_the_version_is_the_same_in_package_citation_and_changelog() -> None:
    cited = re.search(
        r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE
    )
    logged = re.search(
        r"^## (\d+\.\d+\.\d+) \(", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert cited is not None
    assert logged is not None
    assert cited[1] == logged[1] == idode.__version__


def test_the_citation_and_the_changelog_have_the_same_date() -> None:
    cited = re.search(
        r"^date-released: (\S+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE
    )
    assert cited is not None
    assert f"## {idode.__version__} ({cited[1]})" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_every_issue_template_asks_for_something() -> None:
    templates = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    forms = [path for path in templates if path.name != "config.yml"]
    assert len(forms) >= 3
    for path in forms:
        text = path.read_text("utf-8")
        assert re.match(r"name: .+\ndescription: .+\n", text), path.name
        assert "required: true" in text, path.name
