"""How the program starts: quickly, without torch where it needs none, and ended by Ctrl-C."""

from __future__ import annotations

import json
import os
import platform
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from idode.cli import COMMANDS
from idode.cli.completion import SHELLS
from idode.cli.main import main
from idode.cli.process import SET_BY_USER, keep_freed_memory

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "numpy", "matplotlib", "sklearn", "scipy", "PIL")
LOADED = f"""
import json, sys
from idode.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(json.dumps([name for name in {HEAVY} if name in sys.modules]))
"""
QUICK = [
    ["--help"],
    ["--version"],
    ["train", "--list"],
    *(["completion", shell] for shell in SHELLS),
]


def python(*words: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=True, cwd=ROOT, **more
    )


def processor_seconds(*words: str) -> float:
    """User and system time of a new interpreter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    python(*words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("words", [*QUICK, *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_listings_and_completion_load_nothing_heavy(words: list[str]) -> None:
    shown = python("-c", LOADED, *words).stdout.splitlines()
    assert len(shown) > 1
    assert json.loads(shown[-1]) == []


@pytest.mark.parametrize("words", QUICK, ids=" ".join)
def test_help_listings_and_completion_are_quick(words: list[str]) -> None:
    """Half a second where the smallest program takes 25 ms; importing torch takes over 2 s."""
    smallest = min(processor_seconds("-c", "import argparse, json") for _ in range(3))
    assert min(processor_seconds("-m", "idode", *words) for _ in range(3)) < 0.25 + 10 * smallest


@pytest.mark.parametrize(
    "interrupted",
    ["raise", "raise ImportError", "os.write(2, b'terminate called'); os.abort()"],
    ids=["plain", "turned into another error", "aborted by C++"],
)
def test_an_interrupt_while_torch_is_imported_ends_quietly(
    interrupted: str, tmp_path: Path
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "import os, time\nprint('importing', flush=True)\n"
        f"try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    {interrupted}\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    with subprocess.Popen(
        [sys.executable, "-m", "idode", "doctor"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        shown = process.communicate()
    assert shown == ("", "idode: interrupted\n")
    assert process.returncode == 130


FAULTS = """
import resource, sys
from idode.cli.process import keep_freed_memory
import torch
if sys.argv[1] == "keep":
    assert keep_freed_memory()
torch.set_num_threads(1)
# With glibc before 2.38 an aligned block fits into a freed one only after a few rounds.
for _ in range(16):
    torch.ones(2**24)  # 64 MiB: above the largest block the C library would keep by itself
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

UNTOLD = {name: value for name, value in os.environ.items() if name not in SET_BY_USER}
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an option of glibc")


@glibc
def test_freed_memory_is_used_again_without_page_faults():
    kept, plain = (int(python("-c", FAULTS, way, env=UNTOLD).stdout) for way in ("keep", "plain"))
    assert kept < 50 < plain  # even with huge pages of 2 MiB, three blocks are 96 of them


@glibc
def test_the_program_asks_for_it_and_a_call_from_python_does_not(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr("idode.cli.process.keep_freed_memory", lambda: asked.append(1))
    monkeypatch.setattr("idode.cli.process.end_imports_on_interrupt", lambda: asked.append(2))
    assert main([]) == 0
    assert not asked
    monkeypatch.setattr(sys, "argv", ["idode"])
    assert main() == 0
    assert sorted(asked) == [1, 2]


@glibc
@pytest.mark.parametrize("name", SET_BY_USER)
def test_what_the_user_set_stays(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    assert not keep_freed_memory()
