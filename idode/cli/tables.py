"""What commands print and write: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from idode.errors import InputError
from idode.storage import write_atomically

__all__ = ["check_different", "check_output", "table", "write_file", "write_json"]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest entry; the first to the left, the others to the right.

    >>> print(table(["bound", "bits"], [["tn", "1.9"], ["uniform", "2.06"]]))
    bound    bits
    -------  ----
    tn        1.9
    uniform  2.06
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def check_output(path: Path | None, force: bool) -> None:
    """Refuse to write over a file before any work is done."""
    if path is None:
        return
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the name of a file")
    if path.exists() and not force:
        raise InputError(f"{path} exists: give another name, or --force to replace it")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent} for {path.name}: make it first")


def check_different(outputs: Mapping[str, Path | None]) -> None:
    """Refuse two options that name one file, however each of them is written."""
    seen: dict[Path, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        other = seen.setdefault(path.resolve(), option)
        if other != option:
            raise InputError(f"{other} and {option} are the same file {path}: give two names")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a result whole or not at all."""
    write_file(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_file(path: Path, content: str | bytes, sync: bool = True) -> None:
    """Write a file whole or not at all, and refuse a place that cannot have it."""
    try:
        write_atomically(path, content, sync)
    except OSError as error:
        raise InputError(f"cannot write {path} ({error.strerror}): choose another place") from None
