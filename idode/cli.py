"""``idode``: a table of commands, and what happens when one fails.

Only the module of the command that is asked for is imported, so that help is quick.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from idode.errors import InputError, NumericalError

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, tuple[str, str]] = {  # name: (module, what it does)
    "data": ("idode.data.command", "list, fetch, verify and describe data sets"),
    "train": ("idode.commands.train", "train a model from a preset"),
    "finetune": ("idode.commands.finetune", "go on with the second-order objective"),
    "evaluate": ("idode.commands.evaluate", "bits per dimension of a data set, with error bars"),
    "sample": ("idode.commands.sample", "draw samples from a model, as pictures or arrays"),
    "report": ("idode.commands.report", "one page with every figure of the paper for a run"),
    "demo": ("idode.commands.demo", "train, evaluate, sample and report on the 8x8 digits"),
    "doctor": ("idode.commands.doctor", "versions, devices and the speed of this machine"),
    "import": ("idode.commands.importing", "turn a checkpoint of the paper's authors into a run"),
}
USAGE_ERROR, NUMERICAL_ERROR, INTERRUPTED = 2, 3, 130


def overview() -> argparse.ArgumentParser:
    """The parser of ``idode`` itself, without any command's arguments."""
    from idode import __version__

    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:{width}}  {text}" for name, (_, text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="idode",
        description="Exact likelihoods for images, and other data, with diffusion ODEs.",
        epilog=f"commands:\n{listed}\n\nidode COMMAND --help says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"idode {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 is success, 2 bad input, 3 numbers out of range, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        overview().print_help()
        return USAGE_ERROR
    name = overview().parse_args(arguments[:1]).command
    module, text = COMMANDS[name]
    command: ModuleType = importlib.import_module(module)
    parser = argparse.ArgumentParser(prog=f"idode {name}", description=text.capitalize() + ".")
    command.add_arguments(parser)
    args = parser.parse_args(arguments[1:])
    try:
        code: int = command.run(args)
    except InputError as error:
        print(f"idode {name}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except NumericalError as error:
        print(f"idode {name}: {error}", file=sys.stderr)
        return NUMERICAL_ERROR
    except KeyboardInterrupt:
        print(f"idode {name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left, as `head` does; there is nobody to tell.
        sys.stderr.close()
        return 0
    return code
