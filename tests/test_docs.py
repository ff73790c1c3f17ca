"""The documentation is true: labels, numbers, references, commands, and every line of Python."""

from __future__ import annotations

import ast
import importlib
import operator
import re
from pathlib import Path

import pytest
from test_layers import LAYERS, PACKAGE, ROOT

MATH, DESIGN = ROOT / "docs" / "math.md", ROOT / "docs" / "design.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EQUATIONS = 90  # in the paper, counted in its source

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"\b(?:docs|examples|benchmarks|tests|idode)/[\w/-]+\.(?:py|md|json)\b")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())


def fences(page: Path, *languages: str) -> list[str]:
    found = FENCE.findall(page.read_text("utf-8"))
    return [body for language, body in found if language in languages]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text("utf-8"))


def labels(page: Path) -> list[str]:
    """Anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]


def resolve(path: str, name: str) -> object:
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return operator.attrgetter(name)(importlib.import_module(module))


class TestMathematics:
    def test_every_label_cited_in_the_code_exists(self) -> None:
        known = set(re.findall(r"^### ([a-z0-9-]+)$", prose(MATH), re.MULTILINE))
        cited = {
            (path.name, label)
            for folder in (PACKAGE, ROOT / "tests", ROOT / "benchmarks", ROOT / "examples")
            for path in folder.rglob("*.py")
            for label in re.findall(r"math\.md:\s+([a-z0-9-]+)", path.read_text("utf-8"))
        }
        assert len(cited) > 10
        assert {c for c in cited if c[1] not in known} == set()

    def test_labels_are_unique(self) -> None:
        found = labels(MATH)
        assert sorted(found) == sorted(set(found))

    def test_every_equation_of_the_paper_has_one_entry(self) -> None:
        numbers: list[int] = []
        for line in re.findall(r"^- Paper: (.*)$", prose(MATH), re.MULTILINE):
            for first, last in re.findall(r"\((\d+)\)(?:–\((\d+)\))?", line):
                numbers += range(int(first), int(last or first) + 1)
        assert sorted(numbers) == list(range(1, EQUATIONS + 1))

    def test_every_entry_says_where_it_is_in_paper_and_code(self) -> None:
        for entry in re.split(r"^### ", prose(MATH), flags=re.MULTILINE)[1:]:
            assert re.match(r"[a-z0-9-]+\n\n- Paper: .+\.\n- Code: .+\.\n\n", entry), entry[:60]

    def test_every_code_reference_exists(self) -> None:
        references = re.findall(r"`(idode/[\w/]+\.py): ([\w.]+)`", MATH.read_text("utf-8"))
        assert len(references) > 40
        for path, name in references:
            resolve(path, name)

    def test_formulas_use_only_what_survives_markdown(self) -> None:
        """GitHub takes a backslash before punctuation as its own and a pipe as a table's."""
        for page in (MATH, DESIGN):
            text = re.sub(r"`[^`\n]*`", "", prose(page))
            blocks = re.findall(r"\$\$(.+?)\$\$", text, re.DOTALL)
            inline = re.findall(
                r"\$([^$\n]+)\$", re.sub(r"\$\$.+?\$\$", "", text, flags=re.DOTALL)
            )
            assert text.count("$") == 4 * len(blocks) + 2 * len(inline)
            for formula in blocks + inline:
                assert not re.search(r"\\[^A-Za-z]|\|", formula), formula
                assert formula.count("{") == formula.count("}"), formula
            for formula in inline:
                assert formula == formula.strip(), formula


class TestDesign:
    def test_the_table_of_layers_is_the_one_that_is_enforced(self) -> None:
        rows = re.findall(r"^\| (\d+) \| (.*?) \|", prose(DESIGN), re.MULTILINE)
        assert [int(rank) for rank, _ in rows] == list(range(len(LAYERS)))
        assert [tuple(re.findall(r"`(\w+)`", units)) for _, units in rows] == LAYERS


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, i) for page in (MATH, DESIGN) for i in range(len(fences(page, "python")))],
    ids=lambda value: value.stem if isinstance(value, Path) else str(value),
)
def test_an_example_of_the_documentation_runs_by_itself(page: Path, number: int) -> None:
    code = fences(page, "python")[number]
    compiled = compile(code, f"{page.name}, example {number}", "exec", dont_inherit=True)
    exec(compiled, {"__name__": "example"})


@every_page
def test_python_on_every_page_parses_and_imports_only_what_exists(page: Path) -> None:
    for code in fences(page, "python", "py"):
        for node in ast.walk(ast.parse(code)):
            module = getattr(node, "module", None) or ""
            if isinstance(node, ast.ImportFrom) and module.partition(".")[0] == "idode":
                for alias in node.names:
                    found = importlib.import_module(module)
                    if not hasattr(found, alias.name):
                        importlib.import_module(f"{module}.{alias.name}")


@every_page
def test_files_and_links_on_every_page_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    assert {name for name in FILE.findall(text) if not (ROOT / name).exists()} == set()
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name) if name else page
        assert linked.exists(), target
        assert not anchor or linked.suffix != ".md" or anchor in labels(linked), target


def commands(page: Path) -> set[str]:
    """First words after ``idode`` in the page's shell fences."""
    shell = "\n".join(fences(page, "", "sh", "bash", "console", "shell"))
    return set(re.findall(r"^(?:\$ )?idode ([a-z]+)", shell, re.MULTILINE))


@every_page
def test_commands_on_every_page_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = commands(page)
    if not named:
        return
    cli = pytest.importorskip("idode.cli.main")
    for name in named:
        with pytest.raises(SystemExit) as stop:
            cli.main([name, "--help"])
        assert stop.value.code == 0, name
        assert capsys.readouterr().out != ""


@every_page
def test_make_targets_on_every_page_exist(page: Path) -> None:
    makefile = ROOT / "Makefile"
    if not makefile.exists():
        pytest.skip("no Makefile yet")
    targets = set(re.findall(r"^([\w-]+):", makefile.read_text("utf-8"), re.MULTILINE))
    shell = "\n".join(fences(page, "", "sh", "bash", "console", "shell"))
    named = set(re.findall(r"^(?:\$ )?make ([a-z-]+)", shell, re.MULTILINE))
    named |= set(re.findall(r"`make ([a-z-]+)`", prose(page)))
    assert named - targets == set()
