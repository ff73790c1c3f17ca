"""The architecture is a test: imports run one way, and `import idode` stays light."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import idode

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "idode"

# Low to high. A room (a package with all its modules, or a module at the root) imports only from
# rows above its own; docs/design.md shows the same rows, and tests/test_docs.py compares the two.
LAYERS: list[tuple[str, ...]] = [
    ("errors",),
    ("storage", "dataclass_io"),
    ("registry", "numerics", "random", "progress"),
    ("batches", "ode", "nets", "data"),
    ("diffusion",),
    ("likelihood",),
    ("sampling",),
    ("runs",),
    ("evaluation",),
    ("training",),
    ("studies",),
    ("adapters", "codec", "detection"),
    ("sklearn",),
    ("cli",),
    ("__main__",),
]
RANK = {room: rank for rank, row in enumerate(LAYERS) for room in row}
# The methods that users call on a model are built on the rooms above it, and import them when they
# are called; types of their results are imported for the type checker alone.
FACADE = PACKAGE / "diffusion" / "model.py"
HEAVY = ("matplotlib", "sklearn", "torchdiffeq", "PIL", "scipy", "tqdm", "msgpack", "safetensors")


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def modules() -> list[Path]:
    return [p for p in sorted(PACKAGE.rglob("*.py")) if p != PACKAGE / "__init__.py"]


def imported_rooms(tree: ast.AST) -> Iterator[str]:
    """Every room of idode a syntax tree imports, at any depth of functions and branches."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute, `from idode.x`"
            module = node.module or ""
            names = [f"idode.{a.name}" for a in node.names] if module == "idode" else [module]
        else:
            continue
        for parts in (name.split(".") for name in names):
            if parts[0] == "idode" and len(parts) > 1:
                yield parts[1]
            elif parts[0] == "idode":
                yield "__init__"


def upward(here: str, tree: ast.AST) -> list[str]:
    """Imports that a room of this name may not have; the version is known to all."""
    return [
        f"{here} imports {there}"
        for there in imported_rooms(tree)
        if there not in (here, "__version__") and RANK.get(there, len(LAYERS)) >= RANK[here]
    ]


def at_load(tree: ast.Module) -> ast.Module:
    """What runs when the module is loaded: no bodies of functions, no types."""

    class Outside(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if "TYPE_CHECKING" in ast.dump(node.test) else node

    found = Outside().visit(tree)
    assert isinstance(found, ast.Module)
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_a_module_imports_only_from_lower_layers(path: Path) -> None:
    here = room_of(path)
    assert here in RANK, f"list {here} in LAYERS of tests/test_layers.py, and in docs/design.md"
    tree = ast.parse(path.read_text("utf-8"))
    assert upward(here, at_load(tree) if path == FACADE else tree) == []


def test_only_one_module_looks_upward_when_it_is_called() -> None:
    """The exception above is needed, and for the model alone."""
    assert upward("diffusion", ast.parse(FACADE.read_text("utf-8"))) != []


@pytest.mark.parametrize(
    "source",
    [
        "from idode.likelihood.log_prob import log_prob",
        "import idode.likelihood",
        "import idode.likelihood as likelihood",
        "from idode import likelihood",
        "def f():\n    from idode.likelihood.log_prob import log_prob",
        "if TYPE_CHECKING:\n    import idode.evaluation",  # a type is a dependency too
        "from idode import DiffusionODE",
        "import idode",
    ],
)
def test_every_form_of_an_upward_import_is_seen(source: str) -> None:
    assert upward("diffusion", ast.parse(source)) != []


def test_downward_and_foreign_imports_pass() -> None:
    source = "import torch\nfrom idode.numerics import like\nimport idodex\nimport idode.ode.adams"
    assert upward("likelihood", ast.parse(source)) == []
    assert upward("nets", ast.parse("from idode.nets.layers import Conv")) == []


def test_relative_imports_are_refused() -> None:
    with pytest.raises(AssertionError, match="absolute"):
        list(imported_rooms(ast.parse("from .numerics import like")))


def test_public_names_are_declared_once_and_load_lazily() -> None:
    """Those for the type checker, those that load, and ``__all__`` are the same."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    types = [n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    typed = {alias.name: n.module for b in types for n in b.body for alias in n.names}
    assert typed == idode.LAZY
    assert set(idode.__all__) == {*idode.LAZY, "InputError", "NumericalError", "__version__"}
    for name, module in idode.LAZY.items():
        assert getattr(idode, name) is getattr(importlib.import_module(module), name)
    assert set(dir(idode)) == set(idode.__all__)
    with pytest.raises(AttributeError, match="no attribute 'smaple'"):
        _ = idode.smaple


def test_no_room_stands_in_two_layers() -> None:
    assert len(RANK) == sum(map(len, LAYERS))


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_idode_and_its_model_costs_little_and_loads_nothing_heavy() -> None:
    """CPU time, not wall time: other tests may be running beside this one."""
    answer = json.loads(
        fresh(
            "import json, sys, time\n"
            "import idode\n"
            "light = 'torch' not in sys.modules\n"
            "import torch\n"
            "before, start = set(sys.modules), time.process_time()\n"
            "idode.DiffusionODE, idode.LikelihoodSettings, idode.log_prob\n"
            "cost = time.process_time() - start\n"
            "new = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
            "print(json.dumps([light, cost, sorted(new)]))"
        )
    )
    light, cost, loaded = answer
    assert light
    assert cost < 2.0
    assert "idode" in loaded
    assert [name for name in HEAVY if name in loaded] == []
