"""From a spec string to a data set, prepared once and memory-mapped ever after."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from idode.data.archive import visible
from idode.data.arrays import read_csv, read_npy, read_npz
from idode.data.catalogue import CATALOGUE, Published
from idode.data.chunks import Chunks
from idode.data.identity import Identity, digest
from idode.data.images import read_images
from idode.data.prepared import Dataset, open_prepared, prepare
from idode.data.spec import Spec, parse
from idode.errors import InputError

__all__ = ["default_root", "load", "load_published", "verify"]

DIGITS_TRAIN = 1500
DIGITS_SHA256 = "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3"
READERS: Mapping[str, Callable[..., Chunks]] = {
    "folder": read_images,
    "tar": read_images,
    "npy": read_npy,
    "npz": read_npz,
    "csv": read_csv,
}


def default_root() -> Path:
    """``$IDODE_DATA``, else ``~/.cache/idode``."""
    return Path(os.environ.get("IDODE_DATA") or "~/.cache/idode").expanduser()


def digits() -> Dataset:
    """The 8x8 digits of scikit-learn: 17 levels, the first 1,500 for training, 297 for testing.

    Small enough to stay in memory. The split is by position in scikit-learn's file and fixed.
    """
    from sklearn.datasets import load_digits

    images = load_digits().images.astype(np.uint8)[:, None]  # (1797, 1, 8, 8)
    train, test = images[:DIGITS_TRAIN], images[DIGITS_TRAIN:]
    hashed = digest(train, test)
    if hashed != DIGITS_SHA256:
        raise InputError("scikit-learn's digits are not the known ones: install it again")
    identity = Identity("digits", "scikit-learn", len(train), len(test), 17, (1, 8, 8), hashed)
    return Dataset(identity, train, test)


def load_published(published: Published, source: Path | None, root: Path) -> Dataset:
    """The prepared form of a published data set, made from ``source`` if there is none yet."""
    folder = root / published.name
    if source is not None and not source.exists():
        raise InputError(f"there is no file or folder {source}: check the path of --data")
    if folder.is_dir():
        return open_prepared(folder)
    if source is None:
        advice = f"run `idode data fetch {published.name}` or " if published.official else ""
        raise InputError(
            f"{published.name} is not in {root}: {advice}give its official files as "
            f"{published.name}:PATH"
        )
    advice = f"check that {source} holds its official files, {published.files}"
    return prepare(
        published.read(source),
        folder,
        published.name,
        published.version,
        check=published.check,
        few=advice,
        none=advice,
    )


def fingerprint(spec: Spec, path: Path) -> str:
    """Changes when a file below ``path`` or an option does; contents are not read."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    total = hashlib.sha256(f"{spec.kind} {sorted(spec.options.items())} {path}".encode())
    for file in files:
        name = file.relative_to(path).as_posix()
        if visible(name):
            state = file.stat()
            total.update(f"\n{name} {state.st_size} {state.st_mtime_ns}".encode())
    return total.hexdigest()[:16]


def load_file(spec: Spec, root: Path) -> Dataset:
    """Files of the user, prepared under a name that follows their state on disk."""
    assert spec.path is not None
    path = spec.path.resolve()
    if not path.exists():
        raise InputError(f"there is no file or folder {spec.path}: check the path of --data")
    folder = root / "files" / f"{spec.kind}-{fingerprint(spec, path)}"
    if folder.is_dir():
        return open_prepared(folder)
    options = dict(spec.options)
    levels = options.pop("levels", None)
    chunks = READERS[spec.kind](spec.path, **options)
    share = options.get("test", 0.1)
    enough = f"at least {math.ceil(1 / share)}" if 1e-6 < share < 1 else "more"
    few = f"give {enough}" + ("" if 0.5 <= share < 1 else ", or 2 with test=0.5")
    none = "no image, or line of numbers below a first line of names, is in it; check --data"
    name = f"{spec.kind}:{path.name}"
    return prepare(chunks, folder, name, "user's files", levels, few=few, none=none)


def load(spec: str, root: Path | None = None) -> Dataset:
    """The data set a spec stands for; no network is used.

    ``root`` is the folder of prepared data, by default :func:`default_root`.
    """
    parsed = parse(spec)
    root = root or default_root()
    if parsed.kind == "digits":
        return digits()
    if parsed.kind in CATALOGUE:
        return load_published(CATALOGUE[parsed.kind], parsed.path, root)
    return load_file(parsed, root)


def verify(spec: str, root: Path | None = None) -> Identity:
    """Hash every value again and compare with the stored and, if known, the published hash."""
    dataset = load(spec, root)
    identity = dataset.identity
    found = digest(dataset.train, dataset.test)
    if found != identity.sha256:
        raise InputError(
            f"{identity.name} is damaged: its values hash to {found[:12]} where "
            f"{identity.sha256[:12]} was stored; delete its prepared folder and load again"
        )
    if identity.name in CATALOGUE:
        CATALOGUE[identity.name].check(identity)
    return identity
