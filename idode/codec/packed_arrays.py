"""Files with arrays of images between other bytes: ``.npy``, ``.npz``, IDX and CIFAR ``.bin``.

Such a file is a sequence of pieces: bytes that are kept, then some of the images, each of them
perhaps behind its labels, all of them perhaps deflated. The arrays of one file have one shape.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from typing import Any, TypeAlias

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from idode.codec.bytestream import from_text, to_text
from idode.codec.coder import DamagedError
from idode.data.limits import check_growth

__all__ = ["array_recipe", "restore_packed", "take_packed"]

Recipe: TypeAlias = dict[str, Any]
Array8: TypeAlias = NDArray[np.uint8]

LAYOUTS = {  # of an array: how it becomes (N, C, H, W)
    "NCHW": (0, 1, 2, 3),
    "NHWC": (0, 3, 1, 2),
}
CHANNELS = (1, 2, 3, 4)
MOST_AROUND = 1 << 22  # bytes beside the images, which go to the index
MOST_INFLATED = 1 << 30
IDX = {b"\0\0\x08\x03": 3, b"\0\0\x08\x04": 4}  # bytes, and the number of dimensions
CIFAR = ((1, (10,)), (2, (20, 100)))  # label bytes of an image, and the number of classes of each
CIFAR_SHAPE = (3, 32, 32)
LOCAL_HEADER = 30  # bytes of a member of a zip file, before its name


def take_packed(name: str, data: bytes) -> tuple[Array8, Recipe] | None:
    """Images ``(N, C, H, W)`` and recipe of a file; ``None`` for a file of another kind."""
    ending = name.lower().rpartition(".")[2]
    if ending == "npy":
        return _npy(data)
    if ending == "npz":
        return _npz(data)
    if data[:4] in IDX:
        return _idx(data)
    return _cifar(data) if ending == "bin" else None


def restore_packed(recipe: Recipe, images: Array8) -> bytes:
    """The file of a recipe."""
    layout, at, parts = recipe["layout"], 0, []
    values = images[:, 0] if layout == "NHW" else images.transpose(np.argsort(LAYOUTS[layout]))
    if list(values.shape[1:]) != recipe["shape"]:
        raise DamagedError("an array of it has another shape than declared")
    for piece in recipe["pieces"]:
        count = int(piece["count"])
        rows = values[at : at + count].reshape(count, -1)
        at += count
        if "labels" in piece:
            rows = np.concatenate([_labels(piece["labels"], count), rows], axis=1)
        body = rows.tobytes()
        if "deflated" in piece:
            body = _deflated(from_text(piece["deflated"]) + body)
        parts += [from_text(piece["before"]), body]
    if at != len(images):
        raise DamagedError("a file of it has another number of images than declared")
    return b"".join([*parts, from_text(recipe["after"])])


def array_recipe(shape: tuple[int, ...]) -> Recipe:
    """Recipe of a ``.npy`` file of images ``(N, C, H, W)``."""
    head = io.BytesIO()
    described = {"descr": "|u1", "fortran_order": False, "shape": shape}
    npy_format.write_array_header_1_0(head, described)
    return _recipe(shape, "NCHW", [{"before": to_text(head.getvalue()), "count": shape[0]}])


def _recipe(
    shape: tuple[int, ...], layout: str, pieces: list[dict[str, Any]], after: bytes = b""
) -> Recipe:
    """Of arrays whose images have the last axes of ``shape``."""
    about = {"layout": layout, "shape": list(shape[1:])}
    return {"kind": "packed", **about, "pieces": pieces, "after": to_text(after)}


def _layout(shape: tuple[int, ...]) -> str | None:
    """How the axes of an array are read; ``None`` for one that is no images."""
    if len(shape) not in (3, 4) or 0 in shape:
        return None
    if len(shape) == 3:
        return "NHW"
    return "NHWC" if shape[3] in CHANNELS and shape[1] not in CHANNELS else "NCHW"


def _images(values: Array8, layout: str) -> Array8:
    images = values[:, None] if layout == "NHW" else values.transpose(LAYOUTS[layout])
    return np.ascontiguousarray(images)


def _npy(data: bytes) -> tuple[Array8, Recipe] | None:
    found = _split(data)
    if found is None:
        return None
    head, values, layout = found
    piece = {"before": to_text(head), "count": len(values)}
    return _images(values, layout), _recipe(values.shape, layout, [piece])


def _split(data: bytes) -> tuple[bytes, Array8, str] | None:
    """Header, values and layout of a ``.npy`` file of images."""
    file = io.BytesIO(data)
    try:
        if npy_format.read_magic(file) != (1, 0):
            return None
        shape, fortran, dtype = npy_format.read_array_header_1_0(file)
    except ValueError:  # another file
        return None
    layout = _layout(shape)
    if fortran or dtype != np.uint8 or layout is None:
        return None
    head = data[: file.tell()]
    values = np.frombuffer(data, dtype=np.uint8, offset=len(head)).reshape(shape)
    return head, values, layout


def _idx(data: bytes) -> tuple[Array8, Recipe] | None:
    """The format of MNIST: four bytes, the sizes, the values."""
    sizes = IDX[data[:4]]
    start = 4 + 4 * sizes
    shape = struct.unpack(f">{sizes}I", data[4:start])
    layout = _layout(shape)
    if layout is None or math.prod(shape) != len(data) - start:
        return None
    values = np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)
    piece = {"before": to_text(data[:start]), "count": len(values)}
    return _images(values, layout), _recipe(values.shape, layout, [piece])


def _cifar(data: bytes) -> tuple[Array8, Recipe] | None:
    """Records of one or two labels and an image."""
    for number, classes in CIFAR:
        size = number + math.prod(CIFAR_SHAPE)
        if not data or len(data) % size:
            continue
        rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
        labels = rows[:, :number]
        if np.all(labels < np.array(classes)):
            kept = to_text(zlib.compress(labels.tobytes(), 9))
            piece = {"before": "", "count": len(rows), "labels": [number, kept]}
            values = rows[:, number:].reshape(-1, *CIFAR_SHAPE)
            return _images(values, "NCHW"), _recipe(values.shape, "NCHW", [piece])
    return None


def _labels(stored: tuple[int, str], count: int) -> Array8:
    number, kept = stored
    data = zlib.decompressobj().decompress(from_text(kept), count * number + 1)
    return np.frombuffer(data, dtype=np.uint8).reshape(count, number)


def _npz(data: bytes) -> tuple[Array8, Recipe] | None:
    """The members of a zip file that are arrays of images of one shape, in their order."""
    pieces: list[dict[str, Any]] = []
    found: list[Array8] = []
    end = around = 0
    layout = "NCHW"
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        inflated = sum(info.file_size for info in archive.infolist())
        check_growth("the file", len(data), inflated)
        if inflated > MOST_INFLATED:
            return None
        for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
            taken = _split(archive.read(info))
            if taken is None or (found and taken[1].shape[1:] != found[0].shape[1:]):
                continue
            head, values, layout = taken
            lengths = struct.unpack("<HH", data[info.header_offset + 26 :][:4])
            start = info.header_offset + LOCAL_HEADER + sum(lengths)
            around += start - end
            piece = {"before": to_text(data[end:start]), "count": len(values)}
            if info.compress_type == zipfile.ZIP_DEFLATED:
                piece["deflated"] = to_text(head)
            else:
                piece["before"] = to_text(data[end:start] + head)
            pieces.append(piece)
            found.append(values)
            end = start + info.compress_size
    if not found or around + len(data) - end > MOST_AROUND:
        return None
    values = np.concatenate(found)
    return _images(values, layout), _recipe(values.shape, layout, pieces, data[end:])


def _deflated(data: bytes) -> bytes:
    """Deflated as in the zip files of Python and numpy."""
    packer = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()
