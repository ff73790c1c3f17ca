"""Pickled batches read without ``pickle``: data out, no code run.

CIFAR-10 and ImageNet-32 are published as pickles, and unpickling runs whatever the file names.
Here the opcodes are interpreted by hand for the few things such a batch holds: a dict of numbers,
strings, plain NumPy arrays and flat lists. Nothing is imported and nothing is called. The number
of opcodes is bounded and the bytes that calls may make are those of the file, so time and memory
are those of a batch; values are never hashed, compared or printed before their type is known,
since a pickle can nest them without end.
Strings of Python 2 come back as bytes, as with ``encoding="bytes"``.
"""

from __future__ import annotations

import math
import mmap
import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

import numpy as np

from idode.errors import InputError

__all__ = ["unpickle"]

MAX_OPCODES = 200_000  # a batch of ImageNet-32 has 128,117 labels and a few thousand more
MAX_AXES, MAX_AXIS = 8, 2**31
MAX_TEXT = 100  # characters of a name
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
}
SIZES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}
COLLECTIONS = {*SIZES, "TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS"}
SCALARS = (str, bytes, bytearray, int, float, type(None))
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
        if not isinstance(state, tuple) or len(state) < 2:
            raise ValueError("a dtype without its byte order")
        self.order = text(state[1])


@dataclass
class Array:
    """A NumPy array still in pieces."""

    value: Any = None

    def build(self, state: Any) -> None:  # noqa: ANN401
        if not isinstance(state, tuple) or len(state) != 5:
            raise ValueError("an array without its pieces")
        _, shape, kind, fortran, data = state
        self.value = assemble(shape, kind, "F" if fortran else "C", data)


def text(value: Any) -> str:  # noqa: ANN401
    """A short string that Python 2 may have written as bytes."""
    if not isinstance(value, str | bytes) or len(value) > MAX_TEXT:
        raise ValueError("a name that is no short string")
    return value.decode("latin-1") if isinstance(value, bytes) else value


def assemble(shape: Any, kind: Any, order: str, data: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401
    """An array over ``data``, whose length must be exactly what shape and dtype ask for."""
    if not isinstance(kind, Type) or not isinstance(data, bytes | bytearray):
        raise ValueError("an array of objects")
    if not isinstance(shape, tuple) or len(shape) > MAX_AXES:
        raise ValueError("an array without a shape")
    if not all(type(n) is int and 0 <= n < MAX_AXIS for n in shape):
        raise ValueError("an array whose shape is not of numbers")
    dtype = np.dtype(kind.code)
    if dtype.kind not in "uif":
        raise ValueError(f"an array of {dtype}")
    if kind.order in "<>":
        dtype = dtype.newbyteorder(kind.order)  # type: ignore[arg-type]
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"an array of shape {shape} in {len(data)} bytes")
    flat = np.frombuffer(data, dtype)
    return flat.reshape(shape, order="F" if order == "F" else "C")


def codecs_encode(string: Any, encoding: Any) -> bytes:  # noqa: ANN401
    """How Python 3 writes bytes for Python 2."""
    if not isinstance(string, str) or text(encoding) != "latin1":
        raise ValueError("text of another encoding")
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
    """The pickle machine: a stack and a memo, and no way out of them.

    Args:
        budget: How many bytes calls may make in all.
    """

    def __init__(self, budget: int) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []  # their places on the stack
        self.memo: dict[int, Any] = {}
        self.budget = budget

    def since_mark(self) -> list[Any]:
        if not self.marks or self.marks[-1] >= len(self.stack):
            raise ValueError("an opcode without its mark")
        position = self.marks.pop()
        items = self.stack[position + 1 :]
        del self.stack[position:]
        return items

    def name(self, path: str) -> None:
        if path not in CALLS and path not in ARGUMENTS:
            raise ValueError(f"a reference to {path[:MAX_TEXT]}")
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
            stack.append(dict(entries(items)))
        elif op.startswith("APPEND"):
            list.extend(stack[-1], items)
        else:
            dict.update(stack[-1], entries(items))

    def call(self, function: Any, arguments: Any) -> None:  # noqa: ANN401
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise ValueError("a call of what cannot be called")
        if function.path == "_codecs.encode" and arguments:
            self.budget -= len(arguments[0])
            if self.budget < 0:
                raise ValueError("one text many times")
        self.stack.append(CALLS[function.path](*arguments))

    def step(self, op: str, arg: Any) -> None:  # noqa: ANN401
        stack = self.stack
        if op in LITERALS:
            stack.append(arg)
        elif op in PYTHON2_STRINGS:
            stack.append(arg.encode("latin-1"))
        elif op == "MARK":
            self.marks.append(len(stack))
            stack.append(MARK)
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
            self.name(".".join(map(text, self.take(2))))
        elif op == "REDUCE":
            self.call(*self.take(2))
        elif op == "BUILD":
            (state,) = self.take(1)
            if not isinstance(stack[-1], Type | Array):
                raise ValueError("a state of what has none")
            stack[-1].build(state)
        elif op not in {"PROTO", "FRAME", "STOP"}:
            raise ValueError(f"the opcode {op}")


def entries(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Keys and values; only text is hashed, as a hash looks at all that is nested."""
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | bytes):
            raise ValueError("a key that is no text")
        yield key, value


def checked(value: Any) -> Any:  # noqa: ANN401
    """A value of a batch: a number, a string, an array, or a flat list of numbers or strings."""
    if isinstance(value, Array):
        value = value.value
    if isinstance(value, list | tuple):
        if not all(isinstance(item, SCALARS) for item in value):
            raise ValueError("a list in a list")
    elif not isinstance(value, (np.ndarray, *SCALARS)):
        raise ValueError(f"a {type(value).__name__}")
    return value


def unpickle(data: bytes | mmap.mmap, name: str) -> dict[str, Any]:
    """The dict of a pickled batch, its arrays as NumPy arrays; ``name`` is for messages.

    Whatever is not such a dict is refused with :class:`~idode.errors.InputError`.
    """
    machine = Machine(len(data))
    try:
        for count, (opcode, arg, _) in enumerate(pickletools.genops(cast(IO[bytes], data))):
            if count == MAX_OPCODES:
                raise ValueError(f"more than {MAX_OPCODES} objects")
            machine.step(opcode.name, arg)
        (batch,) = machine.stack
        if not isinstance(batch, dict):
            raise ValueError("no dict")
        return {text(key): checked(value) for key, value in batch.items()}
    # A hostile file can misuse any opcode: every failure of the machine is the file's fault.
    except Exception as error:
        raise InputError(
            f"{name} is not a pickled batch of images: it holds {error!s:.150}, and only dicts, "
            "lists, strings, numbers and NumPy arrays are read; get the official file again"
        ) from error
