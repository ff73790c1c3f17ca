"""Compress images without loss with a diffusion model, and get them back.

>>> import idode
>>> from idode.data.loading import load
>>> images = load("digits").test[:24]
>>> data = idode.compress(images, "pretrained:digits", steps=4)
>>> bool((idode.decompress(data) == images).all())
True
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from idode.codec.archive import BLOCK, STEPS, Summary, write_archive
from idode.codec.coding import AnyModel, Model, model_for
from idode.codec.extraction import Archive, Entry, open_archive
from idode.codec.files import of_array, of_input
from idode.codec.tables import Tables
from idode.errors import InputError
from idode.progress import LateBar
from idode.storage import replacing, write_atomically

__all__ = [
    "compress",
    "compress_files",
    "decompress",
    "decompress_files",
    "verify_archive",
]

ARRAY = "images.npy"  # the name of an array that came from memory


def compress(
    images: ArrayLike | Tensor,
    model: AnyModel,
    *,
    tables: Tables | None = None,
    steps: int = STEPS,
    block: int = BLOCK,
    jobs: int = 1,
    verify: bool = True,
    progress: bool = False,
) -> bytes:
    """Compress images of 8 bits.

    Args:
        images: Integers ``(N, C, H, W)``, or ``(N, H, W)`` of grey images.
        model: A run, ``pretrained:NAME``, or a model in memory; for images of its shape.
        tables: Of a model in memory, from :func:`idode.codec.tables.fit`.
        steps: Of the diffusion: more make a smaller result and take longer.
        block: Images that are decoded together; more make a slightly smaller result.
        jobs: Processes that work on separate blocks.
        verify: Decode everything again before returning.
        progress: Show a bar on stderr.

    Returns:
        An archive, as ``idode compress`` writes it.
    """
    array = np.asarray(images.cpu() if isinstance(images, Tensor) else images)
    if array.ndim == 3:
        array = array[:, None]
    whole = array.dtype.kind in "ui" and array.ndim == 4 and array.size
    if not whole or array.min() < 0 or array.max() > 255:
        raise InputError(
            f"compression takes integer images (N, C, H, W) from 0 to 255, got {array.dtype} of "
            f"shape {array.shape}"
        )
    file = io.BytesIO()
    contents = [of_array(ARRAY, array.astype(np.uint8))]
    opened = model_for(model, tables)
    with _bar("images", progress) as (begin, advance):
        write_archive(
            file, contents, opened, steps=steps, block=_block(block), jobs=jobs, verify=verify,
            progress=advance, begin=begin,
        )  # fmt: skip
    return file.getvalue()


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
        tables: Of a model in memory.
        jobs: Processes that work on separate blocks.
        progress: Show a bar on stderr.
    """
    archive = Archive(io.BytesIO(data), "the archive")
    if len(archive.entries) != 1 or archive.entries[0].place is not None:
        raise InputError(
            "the archive holds files, not one array: write it to disk and use decompress_files"
        )
    (entry,) = archive.entries
    with _bar("images", progress) as (begin, advance):
        begin(archive.work([entry]))
        return archive.images_of(entry, _opener(archive, model, tables), jobs, advance)


def compress_files(
    given: str | Path,
    out: Path | None,
    model: AnyModel,
    *,
    steps: int = STEPS,
    block: int = BLOCK,
    jobs: int | None = None,
    exact: bool = False,
    split: str = "test",
    verify: bool = True,
    force: bool = False,
    progress: bool = True,
    limit: int | None = None,
    cache: Path | None = None,
) -> Summary:
    """Compress a folder, a file or a data set into an archive.

    The archive gets its name when it is complete and verified; the input is left as it is.

    Args:
        given: A folder, a file, or a data spec such as ``cifar10``.
        out: The archive; ``None`` counts its bytes only.
        model: A run or ``pretrained:NAME``.
        steps: As in :func:`compress`; so are ``block`` and ``verify``.
        block: Images that are decoded together.
        jobs: Processes; by default one for each processor.
        exact: Every byte of every file must come back, not only what it shows.
        split: Of a data set: test or train.
        verify: Decode every block before the archive gets its name.
        force: Replace an archive that exists.
        progress: Show a bar on stderr.
        limit: The first so many images of a data set.
        cache: Folder of finished blocks, to resume from.
    """
    _check_new(out, force)
    contents = of_input(str(given), exact, split, limit)
    opened = _open_model(model, progress)
    file = io.BytesIO()
    with _bar("images", progress) as (begin, advance):
        settings: dict[str, Any] = {
            "steps": steps, "block": _block(block), "jobs": _jobs(jobs), "verify": verify,
            "progress": advance, "begin": begin, "cache": cache,
        }  # fmt: skip
        if out is None:
            return write_archive(file, contents, opened, **settings)
        try:
            with replacing(out) as target:
                summary = write_archive(target, contents, opened, **settings)
        except OSError as error:
            raise InputError(
                f"cannot write {out} ({error.strerror}): choose another place"
            ) from None
    return summary


def decompress_files(
    path: Path,
    out: Path,
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
    path: Path, *, model: AnyModel | None = None, jobs: int | None = None, progress: bool = True
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
    with _bar("images", progress) as (begin, advance):
        begin(archive.work(entries))
        opener = _opener(archive, model, None)
        yield from archive.contents(entries, opener, jobs=_jobs(jobs), progress=advance)


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


def _open_model(model: AnyModel, progress: bool) -> Model:
    with LateBar(" noise levels", not progress, name="fitting the tables of the model") as bar:
        return model_for(model, None, bar.update)


@contextmanager
def _bar(unit: str, shown: bool) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """A bar whose length is told later: how to begin it, and how to advance it."""
    bars: list[LateBar] = []

    def begin(total: int) -> None:
        bars.append(LateBar(f" {unit}", not shown, total))

    try:
        yield begin, lambda count: bars[-1].update(count)
    finally:
        for bar in bars:
            bar.close()


def _check_new(out: Path | None, force: bool) -> None:
    if out is None:
        return
    if out.is_dir():
        raise InputError(f"{out} is a folder: give the name of a file")
    if out.exists() and not force:
        raise InputError(f"{out} exists: give another name, or replace it by force")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent} for {out.name}: make it first")


def _target(out: Path, name: str, force: bool) -> Path:
    target = out / name
    if target.is_dir():
        raise InputError(f"{target} is a folder: give another folder for the files")
    if target.exists() and not force:
        raise InputError(f"{target} exists: give another folder, or replace it by force")
    return target


def _check_inside(out: Path, target: Path, entry: Entry) -> None:
    """A link inside of the folder must not lead a file out of it."""
    if not target.parent.resolve().is_relative_to(out.resolve()):
        raise InputError(f"{entry.name} would be written outside of {out}: remove the link there")


def _jobs(jobs: int | None) -> int:
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs: must be at least 1, got {jobs}")
    return jobs or os.cpu_count() or 1


def _block(block: int) -> int:
    if block < 1:
        raise InputError(f"block: must be at least 1, got {block}")
    return block
