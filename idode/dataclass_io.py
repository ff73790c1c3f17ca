"""Fields of a dataclass from a command line and from JSON, checked against their types."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from idode.errors import InputError

__all__ = ["at_least", "hints_of", "later", "parse", "table"]

TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
NOTHING = {"none", "null"}
LATER = "later"


def later(default: Any) -> Any:  # noqa: ANN401  the type stands beside the field's name
    """A field that files of earlier versions lack: its default must be what they meant."""
    return dataclasses.field(default=default, metadata={LATER: True})


def at_least(config: object, **limits: float) -> None:
    """Refuse a field below its limit; written so that NaN is refused too."""
    for name, low in limits.items():
        value = getattr(config, name)
        if value is not None and not (value >= low and math.isfinite(value)):
            finite = "" if math.isfinite(value) else " and finite"
            raise InputError(f"{name}: must be at least {low:g}{finite}, got {value}")


def hints_of(cls: type) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    return typing.get_type_hints(cls)


def _options(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401  a type form
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if union else (hint,)


def parse(text: str, hint: Any, name: str) -> Any:  # noqa: ANN401  whatever the field holds
    """The value a command line means, for a field of this type."""
    options = _options(hint)
    if types.NoneType in options and text.lower() in NOTHING:
        return None
    (kind,) = (option for option in options if option is not types.NoneType)
    try:
        if typing.get_origin(kind) is tuple:
            item = typing.get_args(kind)[0]
            return tuple(item(part) for part in text.strip("()[] ").split(",") if part.strip())
        return TRUTH[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        what = {bool: "true or false", int: "a whole number", float: "a number"}
        wanted = what.get(kind, "numbers separated by commas")
        none = ", or none" if types.NoneType in options else ""
        raise InputError(f"--set {name}={text}: must be {wanted}{none}") from None


def table(cls: type, values: Mapping[str, Any], prefix: str) -> Any:  # noqa: ANN401
    """An instance of a dataclass from a JSON table, every value checked."""
    hints = hints_of(cls)
    added = {f.name: f.default for f in dataclasses.fields(cls) if LATER in f.metadata}
    values = {**added, **values}
    if unknown := values.keys() - hints.keys():
        raise InputError(
            f"the configuration has {', '.join(prefix + n for n in sorted(unknown))}, which this "
            "version does not know: was it written by a newer one?"
        )
    if missing := hints.keys() - values.keys():
        raise InputError(
            f"the configuration lacks {', '.join(prefix + n for n in sorted(missing))}"
        )
    return cls(**{name: _read(values[name], hints[name], prefix + name) for name in hints})


def _read(value: Any, hint: Any, name: str) -> Any:  # noqa: ANN401
    """A JSON value as a field of this type."""
    for kind in _options(hint):
        if typing.get_origin(kind) is tuple and isinstance(value, list):
            item = typing.get_args(kind)[0]
            return tuple(_read(part, item, name) for part in value)
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            if isinstance(value, kind):
                return value
            if isinstance(value, dict):
                return table(kind, value, f"{name}.")
        elif kind is float and type(value) is int:
            return float(value)
        elif typing.get_origin(kind) is None and type(value) is kind:
            return value
    raise InputError(f"the configuration's {name} is {value!r:.80}: not what this field holds")
