"""Files that are complete or absent, also after a kill or a power cut; locks on folders.

A file is written under a random hidden name beside its final one, created anew (never through a
link that somebody has put there) and then renamed. Its writer holds a lock on it, which ends with
the process: :func:`sweep` removes what dead writers have left and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from idode.errors import InputError

__all__ = [
    "check_regular",
    "checksum",
    "locked_folder",
    "open_regular",
    "parse_json",
    "read_json",
    "remove",
    "replacing",
    "scratch_folder",
    "sweep",
    "sync_folder",
    "try_lock",
    "write_atomically",
]

UNFINISHED = re.compile(r"\.idode-[0-9a-f]{16}\.tmp")
MAX_JSON_BYTES = 1 << 26
STALE_SECONDS = 86_400.0  # after which a file is left over where locks do not exist
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has neither
NO_WAIT = getattr(os, "O_NONBLOCK", 0)


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """In hexadecimal digits, of a file read in pieces."""
    total = hashlib.new(algorithm, usedforsecurity=False)
    with open_regular(path) as file:
        while block := file.read(1 << 22):
            total.update(block)
    return total.hexdigest()


def open_regular(path: Path) -> IO[bytes]:
    """Open a file to read; a pipe or device, which may never end, raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | NO_WAIT)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def check_regular(path: Path) -> None:
    """Raise ``OSError`` for what a library would open by its name and that may never end."""
    open_regular(path).close()


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401  whatever JSON holds
    """A JSON value; whatever is wrong with the text is a ``ValueError``, too deep nesting too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, limit: int = MAX_JSON_BYTES) -> Any:  # noqa: ANN401
    """The JSON value in a file; raises ``OSError`` or ``ValueError``.

    Args:
        path: Of a regular file.
        limit: Largest size in bytes.
    """
    with open_regular(path) as file:
        text = file.read(limit + 1)
    if len(text) > limit:
        raise ValueError(f"it is larger than {limit} bytes")
    return parse_json(text)


def sync_folder(path: Path) -> None:
    """Make what was created or renamed inside a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: Path, sync: bool = True) -> Iterator[IO[bytes]]:
    """A new file to write, which takes the place of ``path`` when the block ends without error.

    Args:
        path: Of the file; a link of that name is replaced and not followed.
        sync: Also after a power cut; two waits for the disk, too many for thousands of files.
    """
    if sync:
        sweep(path.parent)
    temporary, file = _create(path.parent)
    try:
        with file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def write_atomically(path: Path, content: str | bytes, sync: bool = True) -> None:
    """Write a small file so that a reader finds the old or the new one, complete.

    Args:
        path: Of the file.
        content: All of it.
        sync: As for :func:`replacing`.
    """
    with replacing(path, sync) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def _unused(folder: Path) -> Path:
    return folder / f".idode-{secrets.token_hex(8)}.tmp"


def _create(folder: Path) -> tuple[Path, IO[bytes]]:
    """A new locked file with a random name; its mode is what the umask leaves of 0666."""
    while True:
        path = _unused(folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_FOLLOW
        file = os.fdopen(os.open(path, flags, 0o666), "w+b")
        if _claim(path, file.fileno()):
            return path, file
        file.close()


def _create_folder(parent: Path) -> tuple[Path, int]:
    """A new locked folder with a random name, and its descriptor."""
    while True:
        path = _unused(parent)
        path.mkdir()
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # swept at once
        if _claim(path, descriptor):
            return path, descriptor
        os.close(descriptor)


def _claim(path: Path, descriptor: int) -> bool:
    """Lock what was just created; false where a sweep of another process was faster."""
    if try_lock(descriptor) is False:
        return False  # the sweep is about to remove it
    try:
        return os.stat(path).st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new hidden folder, removed in the end unless it was renamed; swept after a kill."""
    sweep(parent)
    path, descriptor = _create_folder(parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove unfinished files in a folder whose writers are dead."""
    left: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        left = [e.path for e in entries if UNFINISHED.fullmatch(e.name) and not e.is_symlink()]
    for path in left:
        with contextlib.suppress(OSError):
            _sweep_one(Path(path))


def _sweep_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | NO_FOLLOW | NO_WAIT)
    try:
        held = try_lock(descriptor)
        old = time.time() - os.fstat(descriptor).st_mtime > STALE_SECONDS
        if held or (held is None and old):
            remove(path)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, a folder with all it holds, or a link, never what a link points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def try_lock(descriptor: int) -> bool | None:
    """Lock a file or folder for this process; ``None`` where the file system has no locks."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Refuse a folder that another process writes; the lock ends with the block or the process.

    The folder is created if need be, and is then removed again if it stays empty.
    """
    there = path.exists()
    if there and not path.is_dir():
        raise InputError(f"{path} is a file: give a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise InputError(
            f"cannot write to {path} ({error.strerror}): give a folder you may write to"
        ) from None
    try:
        if try_lock(descriptor) is False:
            raise InputError(
                f"another process is writing to {path}: wait for it, or give another folder"
            )
        sweep(path)
        yield
    finally:
        os.close(descriptor)
        if not there:
            with contextlib.suppress(OSError):  # it holds something
                path.rmdir()
