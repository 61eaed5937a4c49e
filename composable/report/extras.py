"""The error for packages of the extra `report` that are not installed."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["needs"]


@contextmanager
def needs(package: str, what: str) -> Iterator[None]:
    """Explain how to install a package that is imported in the block.

    Args:
        package: The name of the package.
        what: What needs it.

    Raises:
        ImportError: The package is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{what} needs {package}, which the library does not install by default: "
            'pip install "composable[report]".'
        ) from error
