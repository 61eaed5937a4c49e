"""The error for packages of extras that are not installed."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(what: str, extra: str, advice: str = "") -> Iterator[None]:
    """Explain how to install a package that is imported in the block.

    Args:
        what: What needs it.
        extra: The extra of this library that has it.
        advice: A sentence that the message ends with, such as another way.

    Raises:
        ModuleNotFoundError: A package is not installed.
        ImportError: It is, and can't be imported.
    """
    try:
        yield
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError)
        package = (error.name or "a package").partition(".")[0]
        why = "the library does not install by default"
        if not absent:
            why = f"can't be imported ({error})"
        raise (ModuleNotFoundError if absent else ImportError)(
            f'{what} needs {package}, which {why}: pip install "composable[{extra}]".'
            f"{advice and f' {advice}'}",
            name=error.name,
        ) from error
