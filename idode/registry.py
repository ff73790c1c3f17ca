"""Families of interchangeable parts: names, and the classes they stand for.

A solver, a dequantization, a command or a data format is one class (or module) in its own file
and one line in the table of its family. Names can be listed without loading any member, so the
command line can offer them before torch is imported.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from idode.errors import InputError, choose

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Members of a family by name, each imported when it is looked up.

    >>> ROOTS = Registry("root", {"sqrt": "math:sqrt", "cbrt": "math:cbrt"})
    >>> list(ROOTS), ROOTS["sqrt"](9.0)
    (['sqrt', 'cbrt'], 3.0)
    >>> ROOTS.choose("sqr")
    Traceback (most recent call last):
    idode.errors.InputError: no root called 'sqr' (did you mean sqrt?): choose one of sqrt, cbrt

    Args:
        what: The family, as messages call it.
        members: Names, and where each is found: ``"package.module:attribute"``, or
            ``"package.module"`` for a module; a pair adds one line about it, for listings.
    """

    def __init__(self, what: str, members: Mapping[str, str | tuple[str, str]]) -> None:
        self.what = what
        pairs = {n: (m, "") if isinstance(m, str) else m for n, m in members.items()}
        self._members = {name: place for name, (place, _) in pairs.items()}
        self.summaries = {name: text for name, (_, text) in pairs.items()}

    def register(self, name: str, place: str, summary: str = "") -> None:
        """Add a member of your own, found at ``"package.module:attribute"``.

        >>> ROOTS = Registry("root", {"sqrt": "math:sqrt"})
        >>> ROOTS.register("cbrt", "math:cbrt")
        >>> list(ROOTS)
        ['sqrt', 'cbrt']
        """
        if name in self._members:
            raise InputError(f"there is a {self.what} called {name!r} already: take another name")
        self._members[name], self.summaries[name] = place, summary

    def extended(self, what: str, members: Mapping[str, str | tuple[str, str]]) -> Registry[Any]:
        """A larger family: the members of this one, and others."""
        mine = {name: (place, self.summaries[name]) for name, place in self._members.items()}
        return Registry(what, {**mine, **members})

    def by_attribute(self, name: str) -> T:
        """The member that is called ``name`` in its module; raises ``AttributeError``.

        A package whose ``__getattr__`` is this offers its classes without loading any before.

        >>> Registry("root", {"square": "math:sqrt"}).by_attribute("sqrt")(9.0)
        3.0
        """
        for key, place in self._members.items():
            if place.partition(":")[2] == name:
                return self[key]
        raise AttributeError(f"no {self.what} is a {name}")

    def described(self) -> str:
        """All names with their summaries, for the help of an option.

        >>> Registry("root", {"sqrt": ("math:sqrt", "square"), "cbrt": "math:cbrt"}).described()
        'sqrt (square), cbrt'
        """
        return ", ".join(f"{n} ({s})" if s else n for n, s in self.summaries.items())

    def __getitem__(self, name: str) -> T:
        module, _, attribute = self._members[name].partition(":")
        found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found  # type: ignore[return-value]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def choose(self, name: str) -> T:
        """The member called ``name``; refused with the names there are."""
        return choose(self.what, name, self)

    def build(self, name: str, **values: object) -> Any:  # noqa: ANN401  an instance of T
        """An instance of the member called ``name``; values that are ``None`` keep its default."""
        member: Any = self.choose(name)
        given = {key: value for key, value in values.items() if value is not None}
        for key in given:
            if key not in _field_names(member):
                having = ", ".join(n for n in self if key in _field_names(self[n]))
                raise InputError(
                    f"{self.what} {name} has no {key}: leave it out, or choose {having}"
                )
        return member(**given)

    def name_of(self, member: object) -> str:
        """The name of a member, or of the class of an instance."""
        kind = member if isinstance(member, type) else type(member)
        for name, place in self._members.items():
            if place == f"{kind.__module__}:{kind.__qualname__}":
                return name
        place = f"{kind.__module__}:{kind.__qualname__}"
        raise InputError(
            f"{kind.__qualname__} is none of the {self.what}s {', '.join(self)}: add it to their "
            f'table with .register("NAME", "{place}")'
        )

    def to_json(self, instance: Any) -> dict[str, Any]:  # noqa: ANN401  any dataclass
        """An instance of a member that is a dataclass, as plain values; ``kind`` is its name."""
        fields: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(instance)))
        return {"kind": self.name_of(instance), **fields}

    def from_json(self, values: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """The inverse of :meth:`to_json`, for members that are dataclasses of plain values."""
        from idode.dataclass_io import table

        fields = {name: value for name, value in values.items() if name != "kind"}
        return table(self.choose(str(values.get("kind"))), fields, "")  # type: ignore[arg-type]


def _field_names(member: Any) -> set[str]:  # noqa: ANN401  a dataclass
    return {f.name for f in dataclasses.fields(member) if f.init}
