"""Environment variables that set the options of loggers."""

import os

_TRUE = {"1", "true", "yes", "on", "y", "t"}
_FALSE = {"0", "false", "no", "off", "n", "f"}


def text(name: str, default: str | None = None) -> str | None:
    """Return the value of a variable; an empty one counts as missing."""
    return os.environ.get(name) or default


def flag(name: str, default: bool = False) -> bool:
    """Return whether a variable is true.

    Raises:
        ValueError: It is neither true nor false.
    """
    value = text(name)
    if value is None:
        return default
    if value.lower() not in _TRUE | _FALSE:
        raise ValueError(f"the environment variable {name}={value!r} must be 'true' or 'false'.")
    return value.lower() in _TRUE
