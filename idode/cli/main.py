"""``idode``: what it says by itself, and what happens when a command fails."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from idode.cli.allocation import keep_freed_memory
from idode.cli.parsing import COMMANDS, INTERRUPTED, Parser, parser_of
from idode.errors import InputError, NumericalError

__all__ = ["COMMANDS", "main"]

USAGE_ERROR, NUMERICAL_ERROR = 2, 3

BEGINNINGS = """\
to begin:
  idode demo                                          the whole way on digits, in minutes
  idode evaluate pretrained:digits --limit 16         a model that comes with the package
  idode sample pretrained:digits --out samples.png    and what it draws
  idode train digits --data folder:PATH --out RUN     the same for small images of your own"""


def overview() -> Parser:
    """The parser of ``idode`` itself, without any command's arguments."""
    from idode import __version__

    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:{width}}  {text}" for name, (_, text) in COMMANDS.items())
    parser = Parser(
        prog="idode",
        usage="idode COMMAND ...",
        description="Exact likelihoods for images, and other data, with diffusion ODEs.",
        epilog=f"{BEGINNINGS}\n\ncommands:\n{listed}\n\nidode COMMAND --help says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"idode {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="command", help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 is success, 2 bad input, 3 numbers out of range, 130 interrupted."""
    if argv is None:  # the process is the program's own
        keep_freed_memory()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        overview().print_help()
        return 0
    prog = "idode"
    try:
        if "" in arguments:
            raise InputError(
                "an argument is empty, as of a shell variable without a value: fill it"
            )
        name = overview().parse_args(arguments[:1]).command
        prog = f"idode {name}"
        args = parser_of(name).parse_args(arguments[1:])
        command: ModuleType = importlib.import_module(COMMANDS[name][0])
        code: int = command.run(args)
    except InputError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except NumericalError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return NUMERICAL_ERROR
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left, as `head` does; there is nobody to tell.
        sys.stderr.close()
        return 0
    return code
