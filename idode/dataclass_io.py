"""Dataclasses from JSON and from ``NAME=VALUE`` texts, every value checked against its type."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from idode.errors import InputError, is_number

__all__ = ["at_least", "at_most", "field_types", "new_field", "parse", "table"]

BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
NONE_WORDS = {"none", "null"}
NEW = "new"
LARGEST = 1e300  # of a setting: JSON has whole numbers that are no float

# Fields that files of format 1 may contain and that no longer exist: the value that changes
# nothing, with which the field is ignored, and why there is no other.
RETIRED: dict[str, tuple[Any, str]] = {
    "net.patch": (1, "networks on patches of pixels were removed; train the network again"),
}


def new_field(default: Any) -> Any:  # noqa: ANN401  the type is annotated beside the field's name
    """A field added after configurations were first saved; files without it get ``default``.

    The default must therefore be the behaviour of the versions that did not have the field.
    """
    return dataclasses.field(default=default, metadata={NEW: True})


def at_least(config: object, **limits: float) -> None:
    """Refuse a field below its limit; written so that NaN is refused too."""
    for name, low in limits.items():
        value = getattr(config, name)
        if value is not None and not is_number(value):
            raise InputError(f"{name}: must be a number, got {value!r:.80}")
        if value is not None and not (low <= value <= LARGEST):
            finite = "" if value < low else " and finite"
            raise InputError(f"{name}: must be at least {low:g}{finite}, got {value!s:.80}")


def at_most(config: object, **limits: int) -> None:
    """Refuse a field above its limit."""
    for name, high in limits.items():
        if getattr(config, name) > high:
            raise InputError(f"{name}: must be at most {high}, got {getattr(config, name)!s:.80}")


def field_types(cls: type) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    return typing.get_type_hints(cls)


def _options(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401  a type form
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if union else (hint,)


def parse(text: str, hint: Any, name: str) -> Any:  # noqa: ANN401  whatever the field holds
    """The value that a text such as ``1e-3`` or ``none`` stands for in a field of this type."""
    options = _options(hint)
    if types.NoneType in options and text.lower() in NONE_WORDS:
        return None
    (kind,) = (option for option in options if option is not types.NoneType)
    try:
        if typing.get_origin(kind) is tuple:
            item = typing.get_args(kind)[0]
            return tuple(item(part) for part in text.strip("()[] ").split(",") if part.strip())
        return BOOLEANS[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        what = {bool: "true or false", int: "a whole number", float: "a number"}
        wanted = what.get(kind, "numbers separated by commas")
        none = ", or none" if types.NoneType in options else ""
        raise InputError(f"{name}={text:.80}: must be {wanted}{none}") from None


def table(cls: type, values: Mapping[str, Any], prefix: str) -> Any:  # noqa: ANN401
    """An instance of a dataclass from a JSON table, every value checked."""
    hints = field_types(cls)
    added = {f.name: f.default for f in dataclasses.fields(cls) if NEW in f.metadata}
    values = _without_retired({**added, **values}, prefix)
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


def _without_retired(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The values without retired fields; a retired field that had an effect is refused."""
    kept = {}
    for name, value in values.items():
        neutral, reason = RETIRED.get(prefix + name, (None, None))
        if reason is None:
            kept[name] = value
        elif value != neutral:
            raise InputError(f"the configuration has {prefix}{name}={value!r:.80}: {reason}")
    return kept


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
        elif kind is float and type(value) is int and abs(value) <= LARGEST:
            return float(value)
        elif typing.get_origin(kind) is None and type(value) is kind:
            return value
    raise InputError(f"the configuration's {name} is {value!r:.80}: not what this field holds")
