"""A file of finished work: one line of JSON for each piece, only ever appended to.

The first line says what the work is. A process that is killed leaves at most a torn last line,
which the next one removes; a line is there only after it is on disk. Each line carries a checksum:
one that was changed or damaged is left out, and its work is done again. Each of several processes
writes a file of its own beside the first, ``NAME.1.jsonl`` and so on, and reads all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from idode.errors import InputError
from idode.storage import open_regular, parse_json, sync_folder, try_lock

__all__ = ["JsonlStore"]

FORMAT = 1
SUM = "sha256"  # of the rest of the line, its first 16 digits


class JsonlStore:
    """The journal at ``path`` of the work that ``header`` describes, begun or gone on with.

    Args:
        path: File of the first process.
        header: Plain values that all records depend on; a file with others is refused.
        rank: Number of this process.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], rank: int = 0) -> None:
        self.path = path
        self._header = json.loads(json.dumps({"journal": FORMAT, **header}))
        own = path if rank == 0 else path.with_name(f"{path.stem}.{rank}{path.suffix}")
        try:
            own.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open(own)
            sync_folder(own.parent)  # or a power cut takes the file with all its lines
        except OSError as error:
            raise InputError(
                f"cannot write {own} ({error.strerror}): name another file for the journal"
            ) from None
        try:
            _lock(self._file, own)
            self._records = self._begin(own)
            for sibling in self._siblings(own):
                text = _content(sibling)
                self._records += self._read(sibling, text[: text.rfind(b"\n") + 1])
        except BaseException:
            self._file.close()
            raise

    @property
    def identity(self) -> str:
        """The header as text."""
        return json.dumps(self._header, sort_keys=True)

    def records(self) -> list[Mapping[str, Any]]:
        """What was finished before this process started."""
        return list(self._records)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a line; when this returns it survives a power cut."""
        self._append(json.dumps({**record, SUM: _sum(record)}).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        try:
            written = self._file.write(line)
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._full(error.strerror) from None
        if written != len(line):
            raise self._full("no space left")

    def _full(self, reason: str | None) -> InputError:
        return InputError(
            f"cannot write {self.path} ({reason}): make room and give the same command again; "
            "what was finished is kept"
        )

    def _begin(self, own: Path) -> list[Mapping[str, Any]]:
        """What the own file holds, without its torn last line; a new file gets its header."""
        self._file.seek(0)
        text = self._file.read()
        whole = text[: text.rfind(b"\n") + 1]
        first = json.dumps(self._header).encode() + b"\n"
        if not whole and not first.startswith(text):
            raise InputError(f"{own} is not a journal: name another file for the journal")
        found = self._read(own, whole) if whole else []
        if len(whole) < len(text):
            self._file.truncate(len(whole))
        if not whole:
            self._append(first)
        return found

    def _read(self, path: Path, text: bytes) -> list[Mapping[str, Any]]:
        """Records of a file with whole lines; lines that a broken disk spoiled are left out."""
        lines = [_parsed(line) for line in text.splitlines()]
        if not lines:
            return []
        header = lines[0]
        if header is None or "journal" not in header:
            raise InputError(f"{path} is not a journal: name another file for the journal")
        if header != self._header:
            both = [*self._header, *header]
            other = next(k for k in both if header.get(k) != self._header.get(k))
            raise InputError(
                f"{path} is the journal of an evaluation with another {other}: name another file "
                "for the journal"
            )
        return [line for line in map(_verified, lines[1:]) if line is not None and "stage" in line]

    def _siblings(self, own: Path) -> list[Path]:
        name = re.escape(self.path.stem) + r"(\.\d+)?" + re.escape(self.path.suffix)
        files = (p for p in self.path.parent.iterdir() if re.fullmatch(name, p.name))
        return sorted(p for p in files if p != own)

    def __enter__(self) -> JsonlStore:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()


def _parsed(line: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        value = parse_json(line)
        if isinstance(value, dict):
            return value
    return None


def _sum(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()[:16]


def _verified(line: dict[str, Any] | None) -> dict[str, Any] | None:
    """A record without its checksum; ``None`` if that is wrong or missing."""
    if line is None:
        return None
    record = {name: value for name, value in line.items() if name != SUM}
    return record if line.get(SUM) == _sum(record) else None


def _open(path: Path) -> IO[bytes]:
    """The file to append to; a pipe or device, which reads for ever, raises ``OSError``."""
    file = open(path, "a+b", buffering=0, opener=_unblocked)  # noqa: SIM115  kept open
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(None, "not a regular file", str(path))
    return file


def _unblocked(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def _lock(file: IO[bytes], path: Path) -> None:
    """Refuse a file that a living process writes; the lock ends with the process."""
    if try_lock(file.fileno()) is False:
        raise InputError(
            f"another process is at this evaluation and writes {path}: wait for it, or name "
            "another file for the journal"
        )
