"""The part of a run in which an algorithm may act, as far as it is known beforehand."""

import attrs

from composable.core.time import Time


@attrs.frozen
class Window:
    """The part of a run in which an algorithm may act.

    Args:
        start: When the window opens; None for the start of the run.
        end: When the window closes; None for the end of the run.
        interval: In batches or epochs: the algorithm acts only in the first of every so many.
            None for all of them.
        condition: A further condition, worded to follow "it acts": "where large holds".
        update: The update of each step in which it acts; empty for all.

    Example:
        >>> from composable import Time
        >>> early, late = Window(end=Time("3ep")), Window(start=Time("3ep"))
        >>> early.before(late), late.before(early)
        (True, False)
    """

    start: Time | None = attrs.field(default=None, eq=str)
    end: Time | None = attrs.field(default=None, eq=str)
    interval: Time | None = attrs.field(default=None, eq=str)
    condition: str = ""
    update: str = ""

    def is_apart(self, other: "Window") -> bool:
        """Return whether the windows have no step in common: in time, or in other updates."""
        apart = self.update and other.update and self.update != other.update
        return bool(apart) or self.before(other) or other.before(self)

    def before(self, other: "Window") -> bool:
        """Return whether this window is known to close before the other one opens, or just then."""
        if self.end is None or other.start is None or self.end.unit is not other.start.unit:
            return False
        return self.end <= other.start
