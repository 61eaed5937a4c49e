"""The differences between two descriptions."""

from composable.core._differences import compare

__all__ = ["ChangedRunWarning", "compare"]


class ChangedRunWarning(UserWarning):
    """A resumed run differs from the saved one in its options, its environment, or its data."""
