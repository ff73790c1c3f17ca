"""The program ``idode``: its help, and what happens when a command fails.

Imports are inside of :func:`main`, so that Ctrl-C during an import ends like any other.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from idode.cli import INTERRUPTED

if TYPE_CHECKING:
    from idode.cli.parsing import Parser
    from idode.errors import InputError

__all__ = ["main"]

USAGE_ERROR, NUMERICAL_ERROR = 2, 3

EXAMPLES = """\
to begin:
  idode demo                                          train, evaluate, sample on digits: minutes
  idode evaluate pretrained:digits --limit 16         bits/dim of a model of this package
  idode sample pretrained:digits --out samples.png    samples of it
  idode train folder:PATH --minutes 30 --out RUN      train on small images of your own"""


def overview() -> Parser:
    """The parser of ``idode`` itself, without any command's arguments."""
    import argparse

    from idode import __version__
    from idode.cli import COMMANDS
    from idode.cli.parsing import Parser

    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.summaries.items())
    parser = Parser(
        prog="idode",
        usage="idode COMMAND ...",
        description="Exact likelihoods for images, and other data, with diffusion ODEs.",
        epilog=f"{EXAMPLES}\n\ncommands:\n{listed}\n\n`idode COMMAND --help` lists its options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"idode {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="command", help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code.

    0 is success, 2 invalid input, 3 numbers out of range, 130 interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    prog = "idode"
    try:
        from idode.errors import InputError, NumericalError, one_line

        if argv is None:  # not called from Python: the process is ours
            from idode.cli.process import (
                end_imports_on_interrupt,
                keep_freed_memory,
                spin_briefly,
            )

            end_imports_on_interrupt()
            keep_freed_memory()
            spin_briefly()
            for stream in (sys.stdout, sys.stderr):  # file names need not be valid text
                if isinstance(stream, io.TextIOWrapper):
                    stream.reconfigure(errors="backslashreplace")
        if not words:
            overview().print_help()
            return 0
        try:
            name = chosen(words)
            prog = f"idode {name}"
            return run(name, words[1:])
        except InputError as error:
            print(f"{prog}: {one_line(str(error))}", file=sys.stderr)
            return USAGE_ERROR
        except NumericalError as error:
            print(f"{prog}: {one_line(str(error))}", file=sys.stderr)
            return NUMERICAL_ERROR
        except BrokenPipeError:
            raise
        except (OSError, MemoryError, RuntimeError) as error:
            print(f"{prog}: {one_line(str(_from_system(error)))}", file=sys.stderr)
            return USAGE_ERROR
    except KeyboardInterrupt as stop:
        print(f"{prog}: {str(stop) or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left, as `head` does; there is nobody to tell.
        sys.stderr.close()
        return 0


def _from_system(error: OSError | MemoryError | RuntimeError) -> InputError:
    """What the system says, as a sentence; torch raises a ``RuntimeError`` for lack of memory."""
    from idode.errors import from_system

    if isinstance(error, RuntimeError):
        from idode.batches import out_of_memory

        if not out_of_memory(error):
            raise error
        return from_system(MemoryError())
    return from_system(error)


def chosen(words: Sequence[str]) -> str:
    """The name of the command that is asked for."""
    from idode.errors import InputError

    if "" in words:
        raise InputError("an argument is empty, as of a shell variable without a value: fill it")
    name: str = overview().parse_args(words[:1]).command
    return name


def run(name: str, words: Sequence[str]) -> int:
    """Parse the arguments of a command and run it; the exit code."""
    import warnings

    from idode.cli import COMMANDS
    from idode.cli.parsing import parser_of
    from idode.cli.process import check_processes
    from idode.errors import DataWarning

    check_processes(name, COMMANDS[name])
    args = parser_of(name).parse_args(words)
    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        code: int = COMMANDS[name].run(args)
    return code


def _show_warning(message: Warning | str, *_: object) -> None:
    """A warning as one line, without the place in the code that a user cannot know."""
    from idode.errors import one_line

    print(f"warning: {one_line(str(message))}", file=sys.stderr)
