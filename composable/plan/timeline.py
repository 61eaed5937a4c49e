"""The timeline of a run: when each algorithm is active, in words."""

from collections.abc import Sequence
from fractions import Fraction

import attrs

from composable._support.checks import check_count
from composable._support.table import format_table
from composable.core.algorithm import Algorithm
from composable.core.time import Clock, Time, TimeLike, Timestamp, TimeUnit, check_time
from composable.plan.spans import Row, Span, find_rows


@attrs.frozen
class Timeline:
    """When each algorithm is active over a run, which `print` shows in words.

    An algorithm that acts once, before or after training, has an empty span. An average is active
    from the time of its first possible update, at the end of a batch.

    Example:
        >>> from composable import Plan, during, when
        >>> from composable.algorithms import MixUp, SelectiveBackprop
        >>> def large(state):
        ...     return len(state.targets) >= 32
        >>> plan = Plan.compile([when(large, during("20ba", "80ba", MixUp()))])
        >>> timeline = plan.timeline("10ep", epoch_length=10)
        >>> print(timeline)
        MixUp  mix  from 2ep to 8ep, where large holds
        >>> timeline.rows[0].active(0.5) is None  # unknown beforehand
        True
    """

    rows: tuple[Row, ...]
    max_duration: Time = attrs.field(eq=str)
    epoch_length: int | None = None

    @classmethod
    def of(
        cls,
        algorithms: Sequence[Algorithm],
        max_duration: TimeLike,
        epoch_length: int | None = None,
    ) -> "Timeline":
        """Compute the timeline of algorithms in their order: see `Plan.timeline`."""
        whole = check_time("max_duration", max_duration)
        if whole.unit is TimeUnit.DURATION or not whole.value:
            raise ValueError(
                f"max_duration={str(whole)!r} is not the duration of a run; pass epochs, batches, "
                "samples, tokens or seconds, such as '10ep'."
            )
        if epoch_length is not None:
            check_count("epoch_length", epoch_length, 1)
        run = Clock(Timestamp(), whole, epoch_length)
        return cls(find_rows(algorithms, run), whole, epoch_length)

    def __str__(self) -> str:
        if not self.rows:
            return "No algorithms: the loop trains alone."
        return format_table(
            [(row.name, row.stage.name.lower(), self.describe(*row.spans)) for row in self.rows]
        )

    def describe(self, *spans: Span) -> str:
        """Describe spans in words."""
        return ", ".join(map(self._describe, spans)) or "never"

    def _describe(self, span: Span) -> str:
        if span.start == span.end:
            return ", ".join(span.conditions) or f"at {self._time(span.start)}"
        if span.start == 0 and span.end == 1:
            return ", ".join(span.conditions) or "all along"
        limits = f"from {self._time(span.start)} to {self._time(span.end)}"
        return ", ".join([limits, *span.conditions])

    def _time(self, fraction: Fraction) -> str:
        """Convert a fraction to the unit of the run, to batches, or else to "0.5dur"."""
        value = fraction * self.max_duration.value
        if value.denominator == 1 or self.max_duration.unit is TimeUnit.SECOND:
            return str(Time(value, self.max_duration.unit))
        if self.max_duration.unit is TimeUnit.EPOCH and self.epoch_length is not None:
            batches = value * self.epoch_length
            if batches.denominator == 1:
                return str(Time(batches, TimeUnit.BATCH))
        return str(Time(fraction, TimeUnit.DURATION))
