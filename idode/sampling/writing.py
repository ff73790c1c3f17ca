"""Samples as files: a grid of pictures, arrays, or a folder of images."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np

from idode.errors import InputError
from idode.sampling.pictures import check_images, grid, png, to_bytes
from idode.sampling.samples import Samples
from idode.storage import sweep, write_atomically

__all__ = ["check_out", "write_samples"]

NUMBERED = re.compile(r"\d{5,}\.png")  # what a folder of samples holds


def check_out(out: Path, shape: tuple[int, ...], levels: int | None, force: bool) -> None:
    """Refuse an output that cannot hold the samples, or that exists, before any work is done."""
    if out.suffix not in ("", ".png", ".npz") and not out.is_dir():
        raise InputError(f"{out} is no place for samples: give FILE.png, FILE.npz or a folder")
    if out.suffix != ".npz":
        check_images(shape, levels)
    if out.suffix and out.is_dir():
        raise InputError(f"{out} is a folder: give a file of that name elsewhere")
    if out.is_file() and not out.suffix:
        raise InputError(f"{out} is a file: give a folder, or the name of a .png or .npz file")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent} for {out.name}: make it first")
    if out.is_dir():
        held = [path for path in out.iterdir() if not path.name.startswith(".")]
        if held and not force:
            raise InputError(
                f"{out} is not empty: give another folder, or --force to replace its samples"
            )
        if any(NUMBERED.fullmatch(path.name) is None for path in held):
            raise InputError(f"{out} holds other files than samples: give another folder")
    elif out.exists() and not force:
        raise InputError(f"{out} exists: give another name, or --force to replace it")


def write_samples(out: Path, drawn: Samples, levels: int | None) -> None:
    """Write what :func:`check_out` has accepted."""
    if out.suffix == ".npz":
        arrays: dict[str, Any] = {"data": drawn.data.numpy(), "x": drawn.x.numpy()}
        if drawn.log_p is not None and drawn.bits_per_dim is not None:
            arrays |= {"log_p": drawn.log_p.numpy(), "bits_per_dim": drawn.bits_per_dim.numpy()}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        _write(out, buffer.getvalue())
        return
    assert levels is not None
    if out.suffix == ".png":
        _write(out, png(grid(drawn.data, levels)))
        return
    out.mkdir(exist_ok=True)
    sweep(out)  # what a killed process left
    for old in [path for path in out.iterdir() if NUMBERED.fullmatch(path.name)]:
        old.unlink()
    for i, image in enumerate(to_bytes(drawn.data, levels)):
        _write(out / f"{i:05d}.png", png(image), sync=False)


def _write(path: Path, content: bytes, sync: bool = True) -> None:
    try:
        write_atomically(path, content, sync)
    except OSError as error:
        raise InputError(f"cannot write {path} ({error.strerror}): choose another place") from None
