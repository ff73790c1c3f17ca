"""``python -m idode`` is ``idode``."""

import sys

from idode.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
