"""How arguments are read: the parser, argument types, and arguments that commands share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from idode.cli import COMMANDS, INTERRUPTED
from idode.errors import InputError, suggestion

__all__ = [
    "INTERRUPTED",
    "RUN",
    "Parser",
    "above_zero",
    "add_data_argument",
    "add_device_argument",
    "add_json_arguments",
    "add_quiet_argument",
    "add_run_argument",
    "add_seed_argument",
    "natural",
    "not_negative",
    "parser_of",
    "positive",
]

# The help of every argument that takes a run.
RUN = "a run folder, pretrained:NAME or diffusers:FOLDER"


class Parser(argparse.ArgumentParser):
    """An argument parser that refuses in one sentence, with the word that may have been meant."""

    @property
    def actions(self) -> list[argparse.Action]:
        """Options and positional arguments, in the order they were added."""
        return self._actions

    def parse_known_args(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse unknown options first: a mistyped one also leaves a required one missing."""
        known = [word for action in self.actions for word in action.option_strings]
        for word in args or ():
            if word == "--":
                break
            name = word.partition("=")[0]
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                self.error(f"there is no option {name}{suggestion(name, known)}")
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401
        if action.choices is not None and value not in action.choices:
            what = "/".join(action.option_strings) or action.metavar or action.dest
            allowed = [str(choice) for choice in action.choices]
            self.error(
                f"no {what} called {value!r}{suggestion(str(value), allowed)}: choose one of "
                f"{', '.join(allowed)}"
            )

    def error(self, message: str) -> NoReturn:
        """Raise what cannot be parsed as invalid input like any other."""
        raise InputError(f"{message.removeprefix('argument ')}; see {self.prog} --help")


def parser_of(name: str) -> Parser:
    """The parser of one command; imports the module of that command alone."""
    text = COMMANDS.summaries[name]
    parser = Parser(prog=f"idode {name}", description=text[0].upper() + text[1:] + ".")
    COMMANDS[name].add_arguments(parser)
    return parser


def positive(text: str) -> int:
    """A count, as the type of an argument: refused when parsed, before any work."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """A count that may be zero, or a seed."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
    if value >= 2**63:
        raise argparse.ArgumentTypeError(f"must be below 2^63, got {value}")
    return value


def above_zero(text: str) -> float:
    """A finite number above 0."""
    value = _real(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return value


def not_negative(text: str) -> float:
    """A finite number that may be zero."""
    value = _real(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {text}")
    return value


def _real(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {text!r}")
    return value


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """``RUN``, the trained model a command works on."""
    parser.add_argument("run", metavar="RUN", help=RUN)


def add_data_argument(parser: argparse.ArgumentParser, default: str = "that of RUN") -> None:
    """``--data``; ``default`` says in words which data set is used without it."""
    parser.add_argument(
        "--data", metavar="SPEC", help=f"data set, see `idode data list` [{default}]"
    )


def add_seed_argument(parser: argparse.ArgumentParser, default: str = "0") -> None:
    """``--seed``, ``None`` where it is not given; ``default`` says in words what it is then."""
    parser.add_argument(
        "--seed", type=natural, metavar="S", help=f"seed of all random numbers [{default}]"
    )


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """``--device``, ``None`` where it is not given: the API then takes the best there is."""
    parser.add_argument(
        "--device",
        metavar="DEVICE",
        help="cpu, cuda, cuda:1 or mps [the best available: cuda, then mps, then cpu]",
    )


def add_json_arguments(
    parser: argparse.ArgumentParser, what: str = "all figures", replaces: str = "FILE of --json"
) -> None:
    """``--json`` and ``--force``; ``replaces`` names all that ``--force`` may replace."""
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write {what} as JSON")
    parser.add_argument("--force", action="store_true", help=f"replace {replaces} if it exists")


def add_quiet_argument(parser: argparse.ArgumentParser, but: str = "errors") -> None:
    """``--quiet``; ``but`` is what is printed all the same."""
    parser.add_argument("--quiet", action="store_true", help=f"print nothing but {but}")
