"""When an algorithm may act, as far as it says so beforehand."""

import attrs

from composable.core.time import Time

__all__ = ["Window"]


@attrs.frozen
class Window:
    """The part of a run in which an algorithm may act.

    Args:
        start: When it opens; at the beginning of the run where None.
        end: When it closes; at the end of the run where None.
        interval: In batches or epochs: only the first of every so many; all of them where None.
        condition: What else must hold, in words that read on from "it acts": "where large holds".

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

    def before(self, other: "Window") -> bool:
        """Whether it is known to close before, or when, the other one opens."""
        if self.end is None or other.start is None or self.end.unit is not other.start.unit:
            return False
        return self.end <= other.start
