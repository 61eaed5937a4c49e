"""`python -m composable`: see `composable.cli`."""

import sys

from composable.cli import main

if __name__ == "__main__":
    sys.exit(main())
