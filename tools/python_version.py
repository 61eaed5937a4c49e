"""Print the version of this Python, or exit with the reason why it cannot be used.

Runs before the environment exists, possibly with an old Python: standard library only.
"""

import platform
import sys

version = platform.python_version()
if sys.version_info < (3, 10):  # noqa: UP036
    sys.exit(
        "composable requires Python 3.10 or newer; this is Python " + version + ". "
        "Select another one: make test PYTHON=python3.12"
    )
try:
    import ensurepip  # noqa: F401
except ImportError:
    sys.exit(
        "This Python cannot create virtual environments: the module ensurepip is missing. Install "
        "the venv package of your system (Debian and Ubuntu: apt install python3-venv), or select "
        "another Python: make test PYTHON=python3.12"
    )
print(version)
