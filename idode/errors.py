"""The one error a user can cause, and the way names are looked up.

Whatever comes from outside (a flag, a file, an array) and cannot be used raises
:class:`InputError` with one sentence: what came, what is allowed, what to do. The command line
prints that sentence and exits with 2; every other exception is a defect of ours and keeps its
traceback.
"""

from __future__ import annotations

import difflib
import operator
import unicodedata
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import TypeVar

__all__ = [
    "DataWarning",
    "InputError",
    "NumericalError",
    "checked_seed",
    "choose",
    "from_system",
    "is_number",
    "one_line",
    "suggestion",
    "whole",
]

T = TypeVar("T")


class InputError(ValueError):
    """What came from outside cannot be used; the message says what to do."""


def choose(what: str, name: str, table: Mapping[str, T]) -> T:
    """The entry of ``table`` called ``name``.

    >>> choose("fruit", "fig", {"fig": 1})
    1
    >>> choose("fruit", "fog", {"fig": 1, "plum": 2})
    Traceback (most recent call last):
    idode.errors.InputError: no fruit called 'fog' (did you mean fig?): choose one of fig, plum
    """
    if name not in table:
        near = suggestion(name, table)
        raise InputError(f"no {what} called {name!r}{near}: choose one of {', '.join(table)}")
    return table[name]


def whole(name: str, value: object, least: int) -> int:
    """``value`` as an ``int``, refused unless it is a whole number of at least ``least``.

    >>> whole("count", True, 1)
    1
    >>> whole("count", 1.5, 1)
    Traceback (most recent call last):
    idode.errors.InputError: count must be a whole number of at least 1, got 1.5
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if number < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return number


def is_number(value: object) -> bool:
    """Whether it is a number, also one of NumPy's."""
    return isinstance(value, Real)


def checked_seed(value: object, end: int = 2**63) -> int:
    """A seed as an ``int``, refused unless it fits 64 bits, signed by default."""
    try:
        seed = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        seed = end
    if not -(2**63) <= seed < end:
        raise InputError(f"the seed must be a whole number of 64 bits, got {value!r}")
    return seed


def suggestion(word: str, known: Iterable[str]) -> str:
    """The known word that looks like a mistyped one, as the end of a clause.

    Leading dashes are left out of the comparison: every two options have them in common.

    >>> suggestion("trian", ["train", "data"])
    ' (did you mean train?)'
    >>> suggestion("--uot", ["--out", "--seed"]), suggestion("--foo", ["--out", "--seed"])
    (' (did you mean --out?)', '')
    """
    bare = {name.lstrip("-"): name for name in known}
    near = difflib.get_close_matches(word.lstrip("-"), bare, n=1)
    return f" (did you mean {bare[near[0]]}?)" if near else ""


def one_line(text: str) -> str:
    r"""Text on one line, control characters spelled out: a file may hold escapes of the terminal.

    >>> one_line("a\x1b[31m\nb")
    'a\\x1b[31m\\nb'
    """
    return "".join(c.encode("unicode_escape").decode() if _control(c) else c for c in text)


def _control(character: str) -> bool:
    kind = unicodedata.category(character)
    return kind.startswith("C") or kind in ("Zl", "Zp")


def from_system(error: OSError | MemoryError) -> InputError:
    """What the system says, as a sentence; for errors that no reader or writer has explained."""
    if isinstance(error, MemoryError):
        return InputError("there is not enough memory: make the work smaller")
    place = "" if error.filename is None else f"{error.filename}: "
    reason = error.strerror or str(error) or type(error).__name__
    return InputError(f"{place}{reason}; check the path, its permissions and the room on disk")


class NumericalError(ArithmeticError):
    """A computation left the range of numbers; the message says for which sample and where."""

    def __init__(self, message: str, sample: int | None = None) -> None:
        super().__init__(message)
        self.sample = sample


class DataWarning(UserWarning):
    """Data or files are not what they seem: another set, damaged lines, too few snapshots."""
