"""The requests that callbacks may make."""

from enum import Flag, auto


class Control(Flag):
    """Requests of callbacks to the loop; `a | b` requests both.

    The requests of several callbacks are joined by "or", so the callbacks' order never matters.

    Example:
        >>> from composable import Control
        >>> Control.STOP in (Control.EVALUATE | Control.STOP)
        True
        >>> Control.STOP | Control.STOP == Control.STOP
        True
    """

    NONE = 0
    STOP = auto()
    """Stop training after this batch."""
    END_EPOCH = auto()
    """End the epoch after this batch."""
    EVALUATE = auto()
    """Evaluate after this batch."""
    SAVE = auto()
    """Save a checkpoint after this batch."""
    LOG = auto()
    """Log the loop's metrics after this batch."""
