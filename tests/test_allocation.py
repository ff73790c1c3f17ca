"""Freed memory stays with the process, unless the user chose otherwise."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from idode.allocation import SET_BY_USER, keep_freed_memory

FAULTS = """
import resource, sys
from idode.allocation import keep_freed_memory
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

CAPTURED = {"capture_output": True, "text": True, "check": True}
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an option of glibc")


@glibc
def test_freed_memory_is_used_again_without_page_faults():
    faults = [
        int(subprocess.run([sys.executable, "-c", FAULTS, way], **CAPTURED).stdout)
        for way in ("keep", "plain")
    ]
    assert faults[0] < 100
    assert faults[1] > 10 * faults[0] + 90  # at least one for each huge page


@glibc
@pytest.mark.parametrize("name", SET_BY_USER)
def test_what_the_user_set_stays(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    assert not keep_freed_memory()
