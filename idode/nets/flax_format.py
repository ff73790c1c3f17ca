"""The file format of ``flax.serialization.to_bytes``, without flax: bytes to a tree and back.

A file is one msgpack map of maps. Arrays are extension 1, holding a msgpack tuple (shape, dtype
name, raw bytes); extension 3 is the same for a NumPy scalar. An array beyond 2^30 bytes is a map
of flat chunks. Files come from strangers: whatever does not fit is refused with a sentence, in
time and memory of the order of the file's own size.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgpack
import numpy as np

from idode.errors import InputError
from idode.storage import open_regular

__all__ = ["Tree", "decode", "encode", "leaves", "read", "write"]

Tree = dict[str, Any]  # of trees, arrays, NumPy scalars and plain Python values

ARRAY, SCALAR = 1, 3
CHUNKED = "__msgpack_chunked_array__"
CHUNK_BYTES = 2**30
MAX_AXES = 32  # of NumPy 1; also the longest msgpack list anywhere in these files
MAX_PATH = 200
DTYPES = frozenset(
    ["bool", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


def read(path: str | Path) -> Tree:
    """The tree in a file."""
    path = Path(path)
    try:
        with open_regular(path) as stream:
            return _decode(stream, path.stat().st_size)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; give a readable file") from None
    except InputError as error:
        raise InputError(f"{path} is not a flax checkpoint: {error}") from None


def write(path: str | Path, tree: Tree) -> None:
    """Write a tree to a file that flax reads."""
    Path(path).write_bytes(encode(tree))


def decode(data: bytes) -> Tree:
    """The tree in ``data``."""
    return _decode(io.BytesIO(data), len(data))


def encode(tree: Tree, *, chunk_bytes: int = CHUNK_BYTES) -> bytes:
    """The bytes of a tree, arrays above ``chunk_bytes`` cut into chunks as flax does."""

    def pack(value: object) -> object:
        if isinstance(value, np.ndarray):
            if value.nbytes > max(chunk_bytes, value.itemsize):
                return _chunks(value, chunk_bytes)
            return msgpack.ExtType(ARRAY, _pack_array(value))
        if isinstance(value, np.generic):
            return msgpack.ExtType(SCALAR, _pack_array(np.asarray(value)))
        raise InputError(f"a {type(value).__name__} in the tree: only arrays and plain values fit")

    packed: bytes = msgpack.packb(tree, default=pack, strict_types=True)
    return packed


def leaves(tree: Tree) -> Iterator[tuple[str, Any]]:
    """Path, with slashes, and value of all that is not a map; a loop, as depth may be hostile."""
    stack: list[tuple[str, Any]] = [("", tree)]
    while stack:
        path, value = stack.pop()
        if len(path) > MAX_PATH:
            raise InputError(f"the name {path[:50]}... is longer than {MAX_PATH} characters")
        if isinstance(value, dict):
            prefix = path + "/" if path else ""
            stack.extend((prefix + name, value[name]) for name in reversed(value))
        else:
            yield path, value


def _decode(stream: IO[bytes], size: int) -> Tree:
    # The limits bound what a length field can make msgpack allocate before it sees the data.
    unpacker = msgpack.Unpacker(
        stream,
        raw=False,
        strict_map_key=True,
        object_pairs_hook=_map,
        ext_hook=_extension,
        max_buffer_size=max(size, 1),
        max_array_len=MAX_AXES,
    )
    try:
        tree = unpacker.unpack()
    except InputError:
        raise
    except msgpack.OutOfData:
        raise InputError(f"it ends too early, after {size} bytes; fetch it again") from None
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        what = str(error) or type(error).__name__
        raise InputError(f"its msgpack data is damaged ({what[:200]}); fetch it again") from None
    if not isinstance(tree, dict):
        raise InputError(f"it holds a {type(tree).__name__} where a map of names is expected")
    if unpacker.tell() != size:
        raise InputError(f"{size - unpacker.tell()} bytes follow its end; fetch it again")
    return tree


def _map(pairs: list[tuple[Any, Any]]) -> Any:  # noqa: ANN401  a chunked array is a map too
    found: Tree = {}
    for name, value in pairs:
        if not isinstance(name, str):
            raise InputError(f"it has the name {name!r:.50}, which is not text")
        if name in found:
            raise InputError(f"it has the name {name!r:.50} twice in one map")
        found[name] = value
    return _joined(found) if CHUNKED in found else found


def _extension(code: int, data: bytes) -> np.ndarray | np.generic:
    if code not in (ARRAY, SCALAR):
        raise InputError(f"it has an extension of type {code}; arrays are 1 and scalars 3")
    limits = {"max_array_len": MAX_AXES, "max_map_len": 0, "max_ext_len": 0}
    try:
        parts = msgpack.unpackb(data, raw=True, **limits)
    except (ValueError, msgpack.exceptions.UnpackException):
        raise InputError("it has an array that is not (shape, dtype, bytes)") from None
    if not (isinstance(parts, list) and len(parts) == 3 and isinstance(parts[2], bytes)):
        raise InputError("it has an array that is not (shape, dtype, bytes)")
    array = _array(*parts)
    if code == SCALAR and array.ndim:
        raise InputError(f"it has a scalar of shape {array.shape}")
    return array if code == ARRAY else array[()]


def _array(shape: object, name: object, buffer: bytes) -> np.ndarray:
    kind = name.decode("latin-1") if isinstance(name, bytes) else repr(name)
    if kind != "bfloat16" and kind not in DTYPES:
        raise InputError(f"it has an array of dtype {kind:.50}; numbers and bool are allowed")
    dtype = np.dtype("uint16" if kind == "bfloat16" else kind).newbyteorder("<")
    sizes = _sizes(shape, len(buffer) / dtype.itemsize)
    array = np.frombuffer(buffer, dtype).reshape(sizes)
    if kind == "bfloat16":  # the upper half of a float32, which NumPy has
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def _sizes(shape: object, entries: float) -> tuple[int, ...]:
    """The shape, checked against the number of entries there are: nothing else is allocated."""
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 2**31 for n in shape):
        raise InputError(f"it has an array of shape {shape!r:.50}")
    if math.prod(shape) != entries:
        raise InputError(f"it has an array of shape {tuple(shape)} with {entries:g} entries")
    return tuple(shape)


def _joined(found: Tree) -> np.ndarray:
    """The array in a chunked map."""
    parts, shape = (_in_order(found.get(name)) for name in ("chunks", "shape"))
    if not parts or not all(isinstance(p, np.ndarray) and p.ndim == 1 for p in parts):
        raise InputError("it has a chunked array without chunks")
    if len({p.dtype for p in parts}) > 1:
        raise InputError("it has a chunked array of several dtypes")
    count = sum(p.size for p in parts)
    return np.concatenate(parts).reshape(_sizes(shape, count))


def _in_order(entries: object) -> list[Any]:
    """Values of ``{"0": ..., "1": ...}``, which is how flax writes a tuple."""
    if not isinstance(entries, dict) or set(entries) != set(map(str, range(len(entries)))):
        raise InputError("it has a chunked array that is not numbered from 0")
    return [entries[str(i)] for i in range(len(entries))]


def _chunks(array: np.ndarray, chunk_bytes: int) -> Tree:
    flat, step = array.reshape(-1), max(1, chunk_bytes // array.itemsize)
    parts = [flat[i : i + step] for i in range(0, flat.size, step)]
    return {
        CHUNKED: True,
        "shape": {str(i): n for i, n in enumerate(array.shape)},
        "chunks": {str(i): part for i, part in enumerate(parts)},
    }


def _pack_array(array: np.ndarray) -> bytes:
    if array.dtype.name not in DTYPES:
        raise InputError(f"an array of dtype {array.dtype}: only numbers and bool fit")
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    packed: bytes = msgpack.packb((array.shape, array.dtype.name, little.tobytes()))
    return packed
