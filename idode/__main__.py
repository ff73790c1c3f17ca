"""The program ``idode``, also as ``python -m idode``."""

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line; the exit code."""
    try:
        from idode.cli.main import main as run

        return run()
    except KeyboardInterrupt:  # while the program itself is imported; run() handles all others
        sys.stderr.write("idode: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
