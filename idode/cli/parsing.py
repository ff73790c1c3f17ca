"""The commands of ``idode`` and how their arguments are read.

Only the module of the command that is asked for is imported, so that help is quick.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from idode.errors import InputError

__all__ = [
    "COMMANDS",
    "INTERRUPTED",
    "RUN",
    "Parser",
    "above_zero",
    "natural",
    "not_negative",
    "parser_of",
    "positive",
]

INTERRUPTED = 130  # the exit code after Ctrl-C, as of a shell
RUN = "a run folder, or pretrained:NAME"  # the help of every argument that takes one

COMMANDS: dict[str, tuple[str, str]] = {  # name: (module, what it does)
    "data": ("idode.cli.data", "list, fetch, verify and describe data sets"),
    "train": ("idode.cli.train", "train a model from a preset"),
    "finetune": ("idode.cli.finetune", "go on with the second-order objective"),
    "dequantize": ("idode.cli.dequantize", "learn the noise inside the bins, for evaluate"),
    "evaluate": ("idode.cli.evaluate", "bits per dimension of a data set, with error bars"),
    "sample": ("idode.cli.sample", "draw samples from a model, as pictures or arrays"),
    "report": ("idode.cli.report", "one page with every figure of the paper for a run"),
    "compare": ("idode.cli.compare", "systems on equal terms: train, measure, one table"),
    "demo": ("idode.cli.demo", "train, evaluate, sample and report on the 8x8 digits"),
    "doctor": ("idode.cli.doctor", "versions, devices and the speed of this machine"),
    "import": (
        "idode.cli.import_checkpoint",
        "turn a checkpoint of the paper's authors into a run",
    ),
    "completion": ("idode.cli.completion", "a script that lets the shell complete words"),
}


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
        """What cannot be read is bad input like any other."""
        raise InputError(f"{message.removeprefix('argument ')}; see {self.prog} --help")


def suggestion(word: str, known: Iterable[str]) -> str:
    """The known word that looks like a mistyped one, as the end of a clause.

    >>> suggestion("trian", ["train", "data"])
    ' (did you mean train?)'
    >>> suggestion("xyz", ["train", "data"])
    ''
    """
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def positive(text: str) -> int:
    """A count, as the type of an argument: refused where it is read, before any work."""
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


def parser_of(name: str) -> Parser:
    """The parser of one command."""
    module, text = COMMANDS[name]
    parser = Parser(prog=f"idode {name}", description=text[0].upper() + text[1:] + ".")
    importlib.import_module(module).add_arguments(parser)
    return parser
