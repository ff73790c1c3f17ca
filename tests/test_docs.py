"""The documentation is true: labels, numbers, references, commands, and every line of Python."""

from __future__ import annotations

import ast
import importlib
import itertools
import operator
import re
import shlex
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from test_layers import LAYERS, PACKAGE, ROOT

import idode
from idode.cli.parsing import parser_of
from idode.ode.adams import Adams
from idode.registry import Registry
from idode.training import plan

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
        assert [tuple(re.findall(r"`(\w+)`", rooms)) for _, rooms in rows] == LAYERS


WALK = re.compile(r"^\d+\. `(idode/[\w/]+\.py): ([\w.]+)`", re.MULTILINE)


def walk(title: str) -> list[tuple[str, str]]:
    """File and function of every step."""
    _, _, text = DESIGN.read_text("utf-8").partition(f"### {title}\n")
    return WALK.findall(text.partition("\n#")[0])


class Profile:
    """Functions of the package in the order in which they are called, by any thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def __call__(self, frame: types.FrameType, event: str, argument: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(PACKAGE)):
            self.calls.append((Path(path).relative_to(ROOT).as_posix(), frame.f_code.co_qualname))

    def __enter__(self) -> Profile:
        threading.setprofile(self)  # of threads to come
        sys.setprofile(self)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def missed(self, steps: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Steps that are not called after the step before them."""
        calls = iter(self.calls)
        return [step for step in steps if step not in calls]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code has no qualified names yet")
class TestWalks:
    def test_an_image_takes_the_way_to_the_network_and_back(self) -> None:
        model, pixels = (
            idode.load("pretrained:digits", device="cpu"),
            np.zeros((2, 1, 8, 8), np.uint8),
        )
        settings = idode.LikelihoodSettings(solver=Adams(tolerance=1.0))
        with Profile() as profile:
            model.bits_per_dim(pixels, settings)
        steps = walk("One image from `model.bits_per_dim` to the network and back")
        assert len(steps) > 15
        assert profile.missed(steps) == []

    def test_a_batch_takes_the_way_to_a_checkpoint(self, tmp_path: Path) -> None:
        few = ["net.width=8", "net.depth=1", "net.groups=2", "train.evaluate_count=8"]
        with Profile() as profile:
            idode.train("digits", out=tmp_path / "run", steps=1, settings=few, progress=False)
        steps = walk("One batch from `idode.train` to a checkpoint")
        assert len(steps) > 15
        assert profile.missed(steps) == []


# Pages whose examples are run by the tests of what they describe.
RUN_ELSEWHERE = {
    "README.md": "test_readme.py",
    "docs/compare.md": "test_compare.py",
    "docs/data.md": "test_data_formats.py",
    "docs/report.md": "test_report.py",
}
# What an example says, and what is run in its place so that it takes seconds: each must be there.
SHORTER = {
    "docs/evaluation.md": {"limit=8)": "limit=2, settings=COARSE)"},
    "docs/training.md": {"steps=700": "steps=4", "steps=60": "steps=2", "steps=20": "steps=2"},
}


def named_file(code: str) -> str | None:
    """The file of the package that an example says it is."""
    found = re.match(r"# (idode/[\w/]+\.py)\n", code)
    return None if found is None else found[1]


class Page:
    """Runs the examples of a section in the order they are read.

    A block that begins with the name of a file becomes that module; lines for a table, which
    begin with ``# FILE: TABLE``, are added to it; other blocks share their names.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.names: dict[str, object] = {"__name__": "example"}
        self.modules: dict[str, object] = {}

    def run(self, code: str, where: str) -> None:
        table = re.match(r"# (idode/[\w/]+\.py): (\w+)\n", code)
        file = named_file(code)
        if table is not None:
            self.add(table[1], table[2], code)
        elif file is not None:
            self.load(file, code, where)
        else:
            exec(compile(code, where, "exec", dont_inherit=True), self.names)

    def load(self, file: str, code: str, where: str) -> None:
        assert not (ROOT / file).exists(), f"{file} is there already: choose another example"
        name = file.removesuffix(".py").replace("/", ".")
        module = types.ModuleType(name)
        self.patch.setitem(sys.modules, name, module)
        exec(compile(code, where, "exec", dont_inherit=True), vars(module))
        self.modules.update({k: v for k, v in vars(module).items() if not k.startswith("__")})

    def add(self, file: str, table: str, code: str) -> None:
        module = importlib.import_module(
            file.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
        )
        members = eval(f"{{{code}}}", {**vars(module), **self.modules})
        known = getattr(module, table)
        for name, member in members.items():
            assert name not in known
            if isinstance(known, Registry):
                place, text = member if isinstance(member, tuple) else (member, "")
                self.patch.setitem(known._members, name, place)
                self.patch.setitem(known.summaries, name, text)
            else:
                self.patch.setitem(known, name, member)


def sections(page: Path) -> dict[str, list[str]]:
    """Headings with examples below them, and those examples."""
    found: dict[str, list[str]] = {}
    title = ""
    for heading, language, body in re.findall(
        rf"^#+ ([^\n]+)$|{FENCE.pattern}", page.read_text("utf-8"), FENCE.flags
    ):
        title = heading or title
        if language in ("python", "py"):
            found.setdefault(title, []).append(body)
    return found


def examples() -> list[tuple[str, str]]:
    """Pages and sections with examples to run here."""
    names = [page.relative_to(ROOT).as_posix() for page in PAGES]
    return [(n, s) for n in names if n not in RUN_ELSEWHERE for s in sections(ROOT / n)]


@pytest.mark.parametrize(("name", "section"), examples(), ids=lambda text: text)
def test_examples_of_the_documentation_run(
    name: str, section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IDODE_DATA", str(tmp_path / "data"))
    page = Page(monkeypatch)
    page.names["COARSE"] = idode.LikelihoodSettings(solver=Adams(steps=4))
    with torch.random.fork_rng():
        for number, code in enumerate(sections(ROOT / name)[section]):
            for words, fewer in SHORTER.get(name, {}).items():
                code = code.replace(words, fewer)
            page.run(code, f"{name}, {section}, example {number}")


def test_shorter_settings_and_other_tests_of_examples_are_there() -> None:
    for name, words in SHORTER.items():
        assert [w for w in words if w not in (ROOT / name).read_text("utf-8")] == []
    for name, test in RUN_ELSEWHERE.items():
        text = (ROOT / "tests" / test).read_text("utf-8")
        assert Path(name).name in text
        assert "exec(" in text


@every_page
def test_python_on_every_page_parses_and_imports_only_what_exists(page: Path) -> None:
    new = {named_file(code) for code in fences(page, "python")}  # files that examples write
    for code in fences(page, "python"):
        for node in ast.walk(ast.parse(code)):
            module = getattr(node, "module", None) or ""
            if module.replace(".", "/") + ".py" in new:
                continue
            if isinstance(node, ast.ImportFrom) and module.partition(".")[0] == "idode":
                for alias in node.names:
                    found = importlib.import_module(module)
                    if not hasattr(found, alias.name):
                        importlib.import_module(f"{module}.{alias.name}")


@every_page
def test_tables_end_before_the_next_paragraph(page: Path) -> None:
    lines = [*prose(page).splitlines(), ""]
    pairs = itertools.pairwise(lines)
    assert [b for a, b in pairs if a.startswith("|") and b and not b.startswith("|")] == []


def test_the_table_of_minutes_has_the_numbers_of_the_plan() -> None:
    text = prose(ROOT / "docs" / "training.md")
    table = text[text.index("| sides of ") : text.index("| values of test samples")]
    sizes = re.findall(r"width (\d+), depth (\d+), (no|one) halving", table)
    found = [(int(width), int(depth), int(count == "one")) for width, depth, count in sizes]
    assert found == [plan.TINY, *plan.NETWORKS.values()]
    numbers = [plan.TINY_SIDE, *plan.NETWORKS, *plan.SMALLER.values(), plan.ENOUGH, plan.SHORTER]
    numbers += [plan.LOWERED, 100 * plan.KEPT, *plan.DROPOUTS, *plan.DROPOUTS.values()]
    said = set(re.findall(r"\d[\d.]*", table.replace(",", "")))
    assert {f"{n:g}" for n in numbers if n} <= said


@every_page
def test_files_and_links_on_every_page_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    new = {named_file(code) for code in fences(page, "python")}
    assert {n for n in FILE.findall(text) if not (ROOT / n).exists() and n not in new} == set()
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


def command_lines(page: Path) -> list[list[str]]:
    """Words of the program's commands in the page's shell fences, without comments."""
    shell = "\n".join(fences(page, "sh", "bash", "console", "shell")).replace("\\\n", " ")
    lines = re.findall(r"^(?:\$ )?(?:torchrun .* -m )?idode ([a-z].*)$", shell, re.MULTILINE)
    words = [shlex.split(line, comments=True) for line in lines]
    return [w[: w.index("&&")] if "&&" in w else w for w in words]


@every_page
def test_options_of_commands_on_every_page_are_understood(page: Path) -> None:
    for name, *words in command_lines(page):
        parser_of(name).parse_args(words)  # exits where it does not understand


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
