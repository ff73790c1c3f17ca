"""Every reader accepts a damaged file or refuses it in a sentence; `make fuzz` tries a million."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz_readers import readers
from fuzzing import Reader, fuzz, mutated

CASES = 40


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    return readers(tmp_path_factory.mktemp("fuzz"))


def test_files_without_damage_are_accepted(found: dict[str, Reader]) -> None:
    for reader in found.values():
        for seed in reader.seeds:
            reader.read(seed)


def test_damaged_files_are_accepted_or_refused(found: dict[str, Reader]) -> None:
    for name, reader in found.items():
        cases = max(2, CASES // reader.slow)
        assert fuzz(name, reader, cases, seed=0).total() == cases


def test_the_same_seed_makes_the_same_cases(tmp_path: Path) -> None:
    import random

    cases = [mutated(b'{"a": 1}' * 10, random.Random(3)) for _ in range(2)]
    assert cases[0] == cases[1]
