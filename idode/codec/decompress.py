"""Restore the files of an archive, or check that they can be."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from idode.codec.coding import AnyModel, Model, model_for
from idode.codec.extraction import Archive, Entry, open_archive
from idode.codec.jobs import count_processes, progress_bar
from idode.codec.tables import Tables
from idode.errors import InputError
from idode.storage import write_atomically

__all__ = ["decompress", "decompress_files", "verify_archive"]


def decompress(
    data: bytes,
    model: AnyModel | None = None,
    *,
    tables: Tables | None = None,
    jobs: int = 1,
    progress: bool = False,
) -> NDArray[np.uint8]:
    """The images ``(N, C, H, W)`` of what :func:`compress` returned.

    Args:
        data: An archive of one array.
        model: The model it was made with; by default the one it names.
        tables: Tables of a model in memory.
        jobs: Processes that work on separate blocks.
        progress: Show a bar on stderr.
    """
    archive = Archive(io.BytesIO(data), "the archive")
    if len(archive.entries) != 1 or archive.entries[0].place is not None:
        raise InputError(
            "the archive holds files, not one array: write it to disk and use decompress_files"
        )
    (entry,) = archive.entries
    with progress_bar("images", progress) as (begin, advance):
        begin(archive.work([entry]))
        return archive.images_of(entry, _opener(archive, model, tables), jobs, advance)


def decompress_files(
    path: Path | str,
    out: Path | str,
    *,
    model: AnyModel | None = None,
    only: Sequence[str] = (),
    jobs: int | None = None,
    force: bool = False,
    progress: bool = True,
) -> list[str]:
    """Write the files of an archive to a folder; their names.

    Args:
        path: The archive.
        out: The folder; made if need be.
        model: The model it was made with; by default the one it names.
        only: Names of files; only the blocks that hold them are decoded.
        jobs: Processes; by default one for each processor.
        force: Replace files that exist.
        progress: Show a bar on stderr.
    """
    out = Path(out)
    with open_archive(path) as file:
        archive = Archive(file, str(path))
        entries = [archive.find(name) for name in only] if only else archive.entries
        targets = [_target(out, e.name, force) for e in entries]
        for (entry, data), target in zip(
            _contents(archive, entries, model, jobs, progress), targets, strict=True
        ):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                _check_inside(out, target, entry)
                write_atomically(target, data, sync=len(entries) < 100)
            except OSError as error:
                raise InputError(
                    f"cannot write {target} ({error.strerror}): choose another folder"
                ) from None
    return [e.name for e in entries]


def verify_archive(
    path: Path | str,
    *,
    model: AnyModel | None = None,
    jobs: int | None = None,
    progress: bool = True,
) -> list[str]:
    """Decode every file of an archive and write none; their names."""
    with open_archive(path) as file:
        archive = Archive(file, str(path))
        found = _contents(archive, archive.entries, model, jobs, progress)
        return [entry.name for entry, _ in found]


def _contents(
    archive: Archive,
    entries: Sequence[Entry],
    model: AnyModel | None,
    jobs: int | None,
    progress: bool,
) -> Iterator[tuple[Entry, bytes]]:
    with progress_bar("images", progress) as (begin, advance):
        begin(archive.work(entries))
        opener = _opener(archive, model, None)
        yield from archive.contents(entries, opener, jobs=count_processes(jobs), progress=advance)


def _opener(
    archive: Archive, model: AnyModel | None, tables: Tables | None
) -> Callable[[], Model]:
    """Opens the model when it is needed; an archive may name one that is elsewhere now."""

    def opened() -> Model:
        chosen = model if model is not None else archive.model_name
        if not chosen:
            raise InputError(f"{archive.name} does not name its model: give it")
        try:
            return model_for(chosen, tables)
        except InputError as error:
            if model is not None:
                raise
            raise InputError(
                f"{archive.name} was made with {chosen}, which cannot be opened ({error}): give "
                "the model"
            ) from None

    return opened


def _target(out: Path, name: str, force: bool) -> Path:
    target = out / name
    if target.is_dir():
        raise InputError(f"{target} is a folder: give another folder for the files")
    if target.exists() and not force:
        raise InputError(f"{target} exists: give another folder, or --force to replace it")
    return target


def _check_inside(out: Path, target: Path, entry: Entry) -> None:
    """A link inside of the folder must not lead a file out of it."""
    if not target.parent.resolve().is_relative_to(out.resolve()):
        raise InputError(f"{entry.name} would be written outside of {out}: remove the link there")
