"""``idode export``: a run in the format of another library, or why it has none there."""

from __future__ import annotations

import argparse
from typing import NoReturn

from idode.cli.parsing import add_run_argument
from idode.errors import InputError

__all__ = ["add_arguments", "run"]

FORMATS = ("diffusers",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode export``."""
    add_run_argument(parser)
    parser.add_argument(
        "--to", required=True, choices=FORMATS, metavar="FORMAT", help="only diffusers"
    )


def run(args: argparse.Namespace) -> NoReturn:
    """Run ``idode export``: no format has an equivalent of our networks yet."""
    from idode.adapters.export import to_diffusers
    from idode.runs.run import open_run

    opened = open_run(args.run)
    if opened.spec != str(opened.path):
        raise InputError(
            f"{opened.path} is in the format of another library already: use it there"
        )
    to_diffusers(opened.config.net)
