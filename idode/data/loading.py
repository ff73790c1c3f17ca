"""From a spec string to a data set, prepared once and memory-mapped ever after.

A spec is ``NAME`` or ``NAME:PATH`` of a published data set, or ``FORMAT:PATH?option=value&...``
of the user's own files.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from idode.data import FORMATS, PUBLISHED
from idode.data.archive import check_source, walk
from idode.data.download import Progress
from idode.data.identity import Identity, content_hash
from idode.data.prepared import Dataset, open_prepared, prepare
from idode.dataclass_io import field_types
from idode.dataclass_io import parse as parse_value
from idode.errors import InputError, choose, suggestion

__all__ = ["Spec", "default_root", "fetch", "load", "names_data", "parse", "verify"]


@dataclass(frozen=True)
class Spec:
    """A parsed data spec; ``options`` are those given, converted to their types."""

    kind: str
    path: Path | None
    options: Mapping[str, Any]


def names_data(text: str) -> bool:
    """Whether a word that stands for a preset looks like a data set instead.

    >>> names_data("cifar10"), names_data("folder:photos"), names_data("images")
    (True, True, False)
    """
    return ":" in text or text in PUBLISHED


def parse(text: str) -> Spec:
    """Read a spec.

    >>> parse("npy:a.npy?levels=16").options["levels"]
    16
    >>> parse("cifar10").path is None
    True
    """
    head, _, tail = text.partition("?")
    kind, _, place = head.partition(":")
    known = [*PUBLISHED, *FORMATS]
    if kind not in known:
        folder = f" (did you mean folder:{text}?)" if _is_folder(text) else ""
        near = folder or suggestion(kind, known)
        raise InputError(f"no data set called {kind!r}{near}: choose one of {', '.join(known)}")
    if kind in FORMATS and not place:
        raise InputError(f"data {text} has no path: write {kind}:PATH")
    if kind in PUBLISHED and tail:
        raise InputError(f"data {text}: {kind} has no options, leave out everything after '?'")
    options: dict[str, Any] = {}
    for item in filter(None, tail.split("&")):
        name, _, value = item.partition("=")
        hint = choose(f"option of {kind}", name, field_types(FORMATS[kind]))
        options[name] = parse_value(value, hint, f"data {text}: {name}")
    return Spec(kind, _expanded(place) if place else None, MappingProxyType(options))


def _is_folder(text: str) -> bool:
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):  # no path, such as one with a null character
        return False


def _expanded(place: str) -> Path:
    if "\0" in place:
        raise InputError("the path of the data has a null character, which no path has: remove it")
    try:
        return Path(place).expanduser()
    except RuntimeError:
        raise InputError(f"{place}: there is no such user, write the path in full") from None


def default_root() -> Path:
    """Where prepared data is kept: ``$IDODE_DATA``, else ``~/.cache/idode``."""
    return Path(os.environ.get("IDODE_DATA") or "~/.cache/idode").expanduser()


def load(spec: str, root: Path | None = None) -> Dataset:
    """The data set a spec stands for; no network is used.

    ``root`` is the folder of prepared data, by default :func:`default_root`.
    """
    parsed = parse(spec)
    root = root or default_root()
    if parsed.kind in PUBLISHED:
        return PUBLISHED[parsed.kind].load(parsed.path, root)
    return load_files(parsed, root)


def fetch(
    name: str, root: Path | None = None, progress: Progress = lambda done, total: None
) -> Dataset:
    """Get, verify and prepare a published data set; at once if it is prepared already.

    ``progress`` is called with the bytes so far and the total of the file, if known.
    """
    parsed = parse(name)
    if parsed.path is not None:
        raise InputError(
            f"{name} names files that you have: there is nothing to fetch, give it as the data"
        )
    return PUBLISHED[parsed.kind].fetch(root or default_root(), progress)


def verify(spec: str, root: Path | None = None) -> Identity:
    """Hash every value again and compare with the stored and, if known, the published hash."""
    dataset = load(spec, root)
    identity = dataset.identity
    found = content_hash(dataset.train, dataset.test)
    if found != identity.sha256:
        raise InputError(
            f"{identity.name} is damaged: its values hash to {found[:12]} where "
            f"{identity.sha256[:12]} was stored; delete its prepared folder and load again"
        )
    if identity.name in PUBLISHED:
        PUBLISHED[identity.name].check(identity)
    return identity


def fingerprint(spec: Spec, path: Path) -> str:
    """Changes when a file below ``path`` or an option does; contents are not read."""
    files = [path] if path.is_file() else sorted(walk(path))
    total = hashlib.sha256(os.fsencode(f"{spec.kind} {sorted(spec.options.items())} {path}"))
    for file in files:
        state, name = file.stat(), file.relative_to(path).as_posix()
        total.update(os.fsencode(f"\n{name} {state.st_size} {state.st_mtime_ns}"))
    return total.hexdigest()[:16]


def load_files(spec: Spec, root: Path) -> Dataset:
    """Files of the user, prepared under a name that follows their state on disk."""
    assert spec.path is not None
    check_source(spec.path)
    path = spec.path.resolve()
    folder = root / "files" / f"{spec.kind}-{fingerprint(spec, path)}"
    if folder.is_dir():
        return open_prepared(folder)
    files = FORMATS[spec.kind](**spec.options)
    enough = f"at least {math.ceil(1 / files.test)}" if 1e-6 < files.test < 1 else "more"
    few = f"give {enough}" + ("" if 0.5 <= files.test < 1 else ", or 2 with test=0.5")
    none = "it has no image, and no line of numbers below a header; check the path"
    name = f"{spec.kind}:{path.name}"
    chunks = files.read(spec.path)
    return prepare(chunks, folder, name, "user's files", files.levels, few=few, none=none)
