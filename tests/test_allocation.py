"""Freed memory stays with the process, unless the user chose otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from idode.cli.allocation import SET_BY_USER, keep_freed_memory
from idode.cli.main import main as cli

FAULTS = """
import resource, sys
from idode.cli.main import main as cli
from idode.cli.allocation import keep_freed_memory
import torch
if sys.argv[1] == "keep":
    assert keep_freed_memory()
torch.set_num_threads(1)
for _ in range(3):
    torch.ones(2**24)  # 64 MiB: above the largest block the C library would keep by itself
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

UNTOLD = {name: value for name, value in os.environ.items() if name not in SET_BY_USER}
CAPTURED = {"capture_output": True, "text": True, "check": True, "env": UNTOLD}
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an option of glibc")


@glibc
def test_freed_memory_is_used_again_without_page_faults():
    kept, plain = (
        int(subprocess.run([sys.executable, "-c", FAULTS, way], **CAPTURED).stdout)
        for way in ("keep", "plain")
    )
    assert kept < 50 < plain  # even with huge pages of 2 MiB, three blocks are 96 of them


@glibc
def test_the_program_asks_for_it_and_a_call_from_python_does_not(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(cli, "keep_freed_memory", lambda: asked.append(1))
    assert cli.main([]) == 0
    assert not asked
    monkeypatch.setattr(sys, "argv", ["idode"])
    assert cli.main() == 0
    assert asked


@glibc
@pytest.mark.parametrize("name", SET_BY_USER)
def test_what_the_user_set_stays(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    assert not keep_freed_memory()
