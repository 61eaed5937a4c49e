"""The error for packages of extras that are not installed."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["needs"]


@contextmanager
def needs(what: str, extra: str, advice: str = "") -> Iterator[None]:
    """Explain how to install a package that is imported in the block.

    Args:
        what: What needs it.
        extra: The extra of this library that has it.
        advice: A sentence that the message ends with, such as another way.

    Raises:
        ImportError: A package is not installed.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "a package").partition(".")[0]
        raise type(error)(
            f"{what} needs {package}, which the library does not install by default: "
            f'pip install "composable[{extra}]".{advice and f" {advice}"}'
        ) from error
