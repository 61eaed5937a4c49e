"""A mode in which an operation that makes the host wait for the device is an error."""

from composable.testing import NoSync

__all__ = ["NoSync"]
