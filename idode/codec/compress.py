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
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from idode.codec.archive import BLOCK, OTHER_KIND, STEPS, Summary, write_archive
from idode.codec.coding import AnyModel, Model, model_for
from idode.codec.files import of_array, of_input
from idode.codec.jobs import count_processes, progress_bar
from idode.codec.tables import Tables
from idode.data.memory import Data
from idode.errors import DataWarning, InputError
from idode.progress import LateBar
from idode.storage import replacing

__all__ = ["compress", "compress_files"]

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
        images: Integers ``(N, C, H, W)``, or ``(N, H, W)`` of grey images. Others than the model's
            are compressed by ordinary coders, with a :class:`~idode.errors.DataWarning` where all
            are.
        model: A run, ``pretrained:NAME``, or a model in memory.
        tables: Tables of a model in memory, from :func:`idode.codec.tables.fit`.
        steps: Steps of the diffusion: more make a smaller result and take longer.
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
    with progress_bar("images", progress) as (begin, advance):
        summary = write_archive(
            file, contents, opened, steps=steps, block=_block(block), jobs=jobs, verify=verify,
            progress=advance, begin=begin,
        )  # fmt: skip
    if not summary.modelled:
        text = f"{OTHER_KIND} (images {array.shape[1:]}, to {array.max()}; "
        text += f"model {opened.shape}, {opened.levels} levels)"
        warnings.warn(text, DataWarning, stacklevel=2)
    return file.getvalue()


def compress_files(
    given: str | Path,
    out: Path | str | None,
    model: AnyModel,
    *,
    steps: int = STEPS,
    block: int = BLOCK,
    jobs: int | None = None,
    exact: bool = False,
    split: str | None = None,
    verify: bool = True,
    force: bool = False,
    progress: bool = True,
    limit: int | None = None,
    cache: Path | str | None = None,
    data: Data | None = None,
) -> Summary:
    """Compress a folder, a file or a data set into an archive.

    The archive gets its name when it is complete and verified; the input is left as it is.

    Args:
        given: A folder, a file, or a data spec such as ``cifar10``.
        out: The archive; ``None`` counts its bytes only.
        model: A run, ``pretrained:NAME`` or ``diffusers:FOLDER``.
        steps: As in :func:`compress`; so are ``block`` and ``verify``.
        block: Images that are decoded together.
        jobs: Processes; by default one for each processor.
        exact: Every byte of every file must come back, not only what it shows.
        split: Split of a data set: test, the default, or train.
        verify: Decode every block before the archive gets its name.
        force: Replace an archive that exists.
        progress: Show a bar on stderr.
        limit: The first so many images of a data set.
        cache: Folder of finished blocks, to resume from.
        data: Whose training images the tables of a model that has none are fitted to; by default
            the data of the run.
    """
    out, cache = _path(out), _path(cache)
    _check_new(out, force)
    contents = of_input(str(given), exact, split, limit)
    opened = _open_model(model, progress, data)
    file = io.BytesIO()
    with progress_bar("images", progress) as (begin, advance):
        settings: dict[str, Any] = {
            "steps": steps, "block": _block(block), "jobs": count_processes(jobs),
            "verify": verify, "progress": advance, "begin": begin, "cache": cache,
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


def _open_model(model: AnyModel, progress: bool, data: Data | None) -> Model:
    with LateBar(" noise levels", not progress, name="fitting the tables of the model") as bar:
        return model_for(model, None, bar.update, data)


def _path(given: Path | str | None) -> Path | None:
    return None if given is None else Path(given)


def _check_new(out: Path | None, force: bool) -> None:
    if out is None:
        return
    if out.is_dir():
        raise InputError(f"{out} is a folder: give the name of a file")
    if out.exists() and not force:
        raise InputError(f"{out} exists: give another name, or --force to replace it")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent} for {out.name}: make it first")


def _block(block: int) -> int:
    if block < 1:
        raise InputError(f"block: must be at least 1, got {block}")
    return block
