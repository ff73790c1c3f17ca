"""Pickled batches read without ``pickle``: data out, no code run.

CIFAR-10 and ImageNet-32 are published as pickles, and unpickling runs whatever the file names.
Here the opcodes are interpreted by hand for the few things such a batch holds: dicts, lists,
tuples, numbers, strings and plain NumPy arrays. Nothing is imported and nothing is called, and
memory stays within a small multiple of the file, since every length is checked against it.
Strings of Python 2 come back as bytes, as with ``encoding="bytes"``.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from idode.errors import InputError

__all__ = ["unpickle"]

MARK = object()
LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
PYTHON2_STRINGS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: MARK,
}
SIZES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}
COLLECTIONS = {*SIZES, "TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS"}
PUTS, GETS = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}


@dataclass(frozen=True)
class Name:
    """Something the pickle wants imported; it is only ever compared, never looked up."""

    path: str


@dataclass
class Type:
    """A NumPy dtype still in pieces."""

    code: str
    order: str = "|"

    def build(self, state: Any) -> None:  # noqa: ANN401
        self.order = text(state[1])


@dataclass
class Array:
    """A NumPy array still in pieces."""

    value: Any = None

    def build(self, state: Any) -> None:  # noqa: ANN401
        _, shape, kind, fortran, data = state
        self.value = assemble(shape, kind, "F" if fortran else "C", data)


def text(value: Any) -> str:  # noqa: ANN401
    """A short string that Python 2 may have written as bytes."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def assemble(shape: Any, kind: Any, order: str, data: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401
    """An array over ``data``, whose length must be exactly what shape and dtype ask for."""
    if not isinstance(kind, Type) or not isinstance(data, bytes | bytearray):
        raise ValueError("an array of objects")
    dtype = np.dtype(kind.code)
    if dtype.kind not in "uif":
        raise ValueError(f"an array of {dtype}")
    if kind.order in "<>":
        dtype = dtype.newbyteorder(kind.order)  # type: ignore[arg-type]
    if any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"an array of shape {shape} in {len(data)} bytes")
    flat = np.frombuffer(data, dtype)
    return flat.reshape(shape, order="F" if order == "F" else "C")


def codecs_encode(string: str, encoding: str) -> bytes:
    """How Python 3 writes bytes for Python 2."""
    if encoding != "latin1":
        raise ValueError(f"the encoding {encoding!r}")
    return string.encode("latin-1")


CALLS: dict[str, Callable[..., Any]] = {
    "_codecs.encode": codecs_encode,
    "numpy.dtype": lambda code, *_: Type(text(code)),
    **{
        f"numpy.{core}.multiarray._reconstruct": lambda *_: Array()  # its state follows in BUILD
        for core in ("core", "_core")
    },
    **{
        f"numpy.{core}.numeric._frombuffer": lambda data, kind, shape, order: Array(
            assemble(shape, kind, order, data)
        )
        for core in ("core", "_core")
    },
}
# Names that are only handed to a call above, never called themselves.
ARGUMENTS = {"numpy.ndarray"}


class Machine:
    """The pickle machine: a stack and a memo, and no way out of them."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def since_mark(self) -> list[Any]:
        position = max(i for i, item in enumerate(self.stack) if item is MARK)
        items = self.stack[position + 1 :]
        del self.stack[position:]
        return items

    def name(self, path: str) -> None:
        if path not in CALLS and path not in ARGUMENTS:
            raise ValueError(f"a reference to {path}")
        self.stack.append(Name(path))

    def take(self, count: int) -> list[Any]:
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        if len(items) < count or any(item is MARK for item in items):
            raise ValueError("an opcode without its operands")
        return items

    def collect(self, op: str) -> None:
        """The opcodes that make or fill a tuple, a list or a dict."""
        stack = self.stack
        items = self.take(SIZES[op]) if op in SIZES else self.since_mark()
        if op.startswith("TUPLE"):
            stack.append(tuple(items))
        elif op == "LIST":
            stack.append(items)
        elif op == "DICT":
            stack.append(dict(zip(items[::2], items[1::2], strict=True)))
        elif op.startswith("APPEND"):
            list.extend(stack[-1], items)
        else:
            dict.update(stack[-1], zip(items[::2], items[1::2], strict=True))

    def step(self, op: str, arg: Any) -> None:  # noqa: ANN401
        stack = self.stack
        if op in LITERALS:
            stack.append(arg)
        elif op in PYTHON2_STRINGS:
            stack.append(arg.encode("latin-1"))
        elif op in CONSTANTS:
            stack.append(CONSTANTS[op]())
        elif op in COLLECTIONS:
            self.collect(op)
        elif op in PUTS:
            self.memo[arg] = stack[-1]
        elif op == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif op in GETS:
            stack.append(self.memo[arg])
        elif op == "GLOBAL":
            self.name(arg.replace(" ", "."))
        elif op == "STACK_GLOBAL":
            self.name(".".join(self.take(2)))
        elif op == "REDUCE":
            function, arguments = self.take(2)
            stack.append(CALLS[function.path](*arguments))
        elif op == "BUILD":
            (state,) = self.take(1)
            stack[-1].build(state)
        elif op not in {"PROTO", "FRAME", "STOP"}:
            raise ValueError(f"the opcode {op}")


def unpickle(stream: IO[bytes], name: str) -> dict[str, Any]:
    """The dict of a pickled batch, its arrays as NumPy arrays; ``name`` is for messages.

    Whatever is not such a dict is refused with :class:`~idode.errors.InputError`.
    """
    machine = Machine()
    try:
        for opcode, arg, _ in pickletools.genops(stream):
            machine.step(opcode.name, arg)
        (batch,) = machine.stack
        return {
            text(key): value.value if isinstance(value, Array) else value
            for key, value in batch.items()
        }
    # A hostile file can misuse any opcode: every failure of the machine is the file's fault.
    except Exception as error:
        raise InputError(
            f"{name} is not a pickled batch of images: it holds {error}, and only dicts, lists, "
            "strings, numbers and NumPy arrays are read; get the official file again"
        ) from error
