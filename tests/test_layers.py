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

# Low to high. A unit (a module, or a package with all its modules) imports only from rows above
# its own; docs/design.md shows the same rows, and tests/test_docs.py compares the two.
LAYERS: list[tuple[str, ...]] = [
    ("errors", "durable", "allocation"),
    ("numerics", "fields", "flax_format", "streams", "splines", "rows", "ledger", "journal"),
    ("schedules", "clocks", "divergence", "ode", "nets", "data", "pictures", "coders"),
    ("predictors", "time_sampling", "dequantization", "calibration", "features"),
    ("model", "variance", "other_densities", "learned"),
    ("exact", "objectives", "density", "state_bound"),
    ("bounds", "weights", "simulation"),
    ("pilot",),
    ("likelihood", "sampling", "fid", "objective_config"),
    ("config", "starts"),
    ("presets", "run", "systems"),
    ("training", "evaluation", "dequantizer_file"),
    ("report",),
    ("comparison",),
    ("commands",),
    ("cli",),
    ("__main__",),
]
RANK = {unit: rank for rank, row in enumerate(LAYERS) for unit in row}
# `from idode import name` loads everything public, so only what lies above all of that may do it.
PUBLIC_FACE = RANK["likelihood"]
HEAVY = ("matplotlib", "sklearn", "torchdiffeq", "PIL", "scipy", "tqdm", "msgpack", "safetensors")


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def modules() -> list[Path]:
    return [p for p in sorted(PACKAGE.rglob("*.py")) if p != PACKAGE / "__init__.py"]


def imported_units(tree: ast.AST) -> Iterator[str]:
    """Every unit of idode a syntax tree imports, at any depth of functions and branches."""
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
    """Imports that a unit of this name may not have."""
    return [
        f"{here} imports {there}"
        for there in imported_units(tree)
        if there != here and RANK.get(there, PUBLIC_FACE) >= RANK[here]
    ]


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_a_module_imports_only_from_lower_layers(path: Path) -> None:
    here = unit_of(path)
    assert here in RANK, f"list {here} in LAYERS of tests/test_layers.py, and in docs/design.md"
    assert upward(here, ast.parse(path.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    "source",
    [
        "from idode.likelihood.bits_per_dim import bits_per_dim",
        "import idode.likelihood.bits_per_dim",
        "import idode.likelihood.bits_per_dim as likelihood",
        "from idode import likelihood",
        "def f():\n    from idode.likelihood.bits_per_dim import bits_per_dim",
        "if TYPE_CHECKING:\n    import idode.diffusion.model",  # a type is a dependency too
        "from idode import SCHEDULES",
        "import idode",
    ],
)
def test_every_form_of_an_upward_import_is_seen(source: str) -> None:
    assert upward("schedules", ast.parse(source)) != []


def test_downward_and_foreign_imports_pass() -> None:
    source = "import torch\nfrom idode.numerics import like\nfrom idodex import y\nimport idode.ode.solvers"
    assert upward("likelihood", ast.parse(source)) == []
    assert upward("commands", ast.parse("from idode import __version__")) == []
    assert upward("nets", ast.parse("from idode.nets.layers import Conv")) == []


def test_relative_imports_are_refused() -> None:
    with pytest.raises(AssertionError, match="absolute"):
        list(imported_units(ast.parse("from .numerics import like")))


def test_the_public_face_shows_nothing_above_the_mathematics() -> None:
    """Whatever it imports is paid for by every user, and cannot import the version from it.

    What is loaded late shows in ``if TYPE_CHECKING`` alone, which never runs.
    """
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    types = [n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    late = {alias.name for block in types for n in block.body for alias in n.names}
    tree.body = [n for n in tree.body if n not in types]
    assert [u for u in imported_units(tree) if RANK[u] > PUBLIC_FACE] == []
    assert late == set(idode.LATE) <= set(idode.__all__)
    for name, module in idode.LATE.items():
        assert getattr(idode, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="no attribute 'smaple'"):
        _ = idode.smaple


def test_no_unit_stands_in_two_layers() -> None:
    assert len(RANK) == sum(map(len, LAYERS))


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_idode_costs_little_and_loads_nothing_heavy() -> None:
    """CPU time, not wall time: other tests may be running beside this one."""
    answer = json.loads(
        fresh(
            "import json, sys, time, torch\n"
            "before, start = set(sys.modules), time.process_time()\n"
            "import idode\n"
            "cost = time.process_time() - start\n"
            "new = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
            "print(json.dumps([cost, sorted(new)]))"
        )
    )
    cost, loaded = answer
    assert cost < 2.0
    assert "idode" in loaded
    assert [name for name in HEAVY if name in loaded] == []
