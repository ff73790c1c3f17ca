"""One string for any data set: ``NAME``, ``NAME:PATH`` or ``KIND:PATH?option=value&...``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from idode.errors import InputError, choose

__all__ = ["KINDS", "Spec", "parse"]

IMAGE_OPTIONS = {"size": int, "channels": int, "test": float}
KINDS: Mapping[str, Mapping[str, type[int] | type[float] | type[str]]] = MappingProxyType(
    {
        "digits": {},
        "mnist": {},
        "fashion-mnist": {},
        "cifar10": {},
        "imagenet32": {},
        "imagenet32-old": {},
        "folder": IMAGE_OPTIONS,
        "tar": IMAGE_OPTIONS,
        "npy": {"levels": int, "test": float},
        "npz": {"levels": int, "test": float, "key": str},
        "csv": {"test": float},
    }
)
NEED_PATH = {"folder", "tar", "npy", "npz", "csv"}


@dataclass(frozen=True)
class Spec:
    """A parsed data spec; ``options`` are converted to their types."""

    kind: str
    path: Path | None
    options: Mapping[str, Any]


def parse(text: str) -> Spec:
    """Read a spec.

    >>> parse("npy:a.npy?levels=16").options["levels"]
    16
    >>> parse("cifar10").path is None
    True
    """
    head, _, tail = text.partition("?")
    kind, _, place = head.partition(":")
    allowed = choose("data set", kind, KINDS)
    if kind in NEED_PATH and not place:
        raise InputError(f"--data {text} has no path: write {kind}:PATH")
    if kind == "digits" and place:
        raise InputError(f"--data {text}: digits come with scikit-learn, leave out the path")
    if tail and not allowed:
        raise InputError(f"--data {text}: {kind} has no options, leave out everything after '?'")
    options: dict[str, Any] = {}
    for item in filter(None, tail.split("&")):
        name, _, value = item.partition("=")
        convert = choose(f"option of {kind}", name, allowed)
        try:
            options[name] = convert(value)
        except ValueError:
            raise InputError(
                f"--data {text}: {name}={value!r} is not a {convert.__name__}"
            ) from None
    return Spec(kind, Path(place).expanduser() if place else None, MappingProxyType(options))
