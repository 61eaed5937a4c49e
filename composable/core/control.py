"""What observers may ask of the loop."""

from enum import Flag, auto

__all__ = ["Control"]


class Control(Flag):
    """Requests to the loop; `a | b` asks for both.

    Requests of several callbacks are joined by "or", so their order never matters.

    Example:
        >>> from composable import Control
        >>> Control.STOP in (Control.EVALUATE | Control.STOP)
        True
        >>> Control.STOP | Control.STOP == Control.STOP
        True
    """

    NONE = 0
    STOP = auto()
    """End training after this batch."""
    END_EPOCH = auto()
    """End the epoch after this batch."""
    EVALUATE = auto()
    """Evaluate after this batch."""
    SAVE = auto()
    """Save after this batch."""
    LOG = auto()
    """Hand the loop's metrics to the loggers after this batch."""
