"""`python -m aicf` is the command `aicf`."""

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
