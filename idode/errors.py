"""The one error a user can cause, and the way names are looked up.

Whatever comes from outside (a flag, a file, an array) and cannot be used raises
:class:`InputError` with one sentence: what came, what is allowed, what to do. The command line
prints that sentence and exits with 2; every other exception is a defect of ours and keeps its
traceback.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

__all__ = ["DataWarning", "InputError", "NumericalError", "choose"]

T = TypeVar("T")


class InputError(ValueError):
    """What came from outside cannot be used; the message says what to do."""


def choose(what: str, name: str, table: Mapping[str, T]) -> T:
    """The entry of ``table`` called ``name``.

    >>> choose("fruit", "fig", {"fig": 1})
    1
    >>> choose("fruit", "fog", {"fig": 1, "plum": 2})
    Traceback (most recent call last):
    idode.errors.InputError: no fruit called 'fog': choose one of fig, plum
    """
    if name not in table:
        raise InputError(f"no {what} called {name!r}: choose one of {', '.join(table)}")
    return table[name]


class NumericalError(ArithmeticError):
    """A computation left the range of numbers; the message says for which sample and where."""

    def __init__(self, message: str, sample: int | None = None) -> None:
        super().__init__(message)
        self.sample = sample


class DataWarning(UserWarning):
    """The data is not what the model was trained on, or not what it seems to be."""
