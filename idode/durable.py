"""Files that are there whole or not at all, and stay so after a power cut."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["replace", "sync_folder", "write_atomically"]


def sync_folder(path: Path) -> None:
    """Make what was created or renamed inside a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(temporary: Path, path: Path) -> None:
    """Give a finished file beside ``path`` its name, in place of what had it before."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a small file so that a reader finds the old or the new one, whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    replace(temporary, path)
