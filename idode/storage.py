"""Files that are there whole or not at all, and stay so after a power cut."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

__all__ = ["checksum", "replace", "sync_folder", "write_atomically"]


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """In hexadecimal digits, of a file read in pieces."""
    total = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            total.update(block)
    return total.hexdigest()


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


def write_atomically(path: Path, content: str | bytes, sync: bool = True) -> None:
    """Write a small file so that a reader finds the old or the new one, whole.

    Args:
        path: Of the file.
        content: All of it.
        sync: Also after a power cut; two waits for the disk, too many for thousands of files.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        if sync:
            replace(temporary, path)
        else:
            temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
