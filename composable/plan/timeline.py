"""The timeline of a run: when each algorithm is active, in words and as a picture."""

from collections.abc import Sequence
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs

from composable._support.checks import as_path, check_count
from composable._support.paths import write_atomically
from composable._support.table import format_table
from composable.core.algorithm import Algorithm
from composable.core.time import Clock, Time, TimeLike, Timestamp, TimeUnit, check_time
from composable.plan.plotting import draw, new_axes, new_figure, render_figure
from composable.plan.spans import Row, Span, find_rows

__all__ = ["Row", "Span", "Timeline"]


@attrs.frozen
class Timeline:
    """When each algorithm is active over a run: `print` shows words, and notebooks a picture.

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

    # --- words ---

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

    # --- the picture ---

    def plot(self, ax: Any = None) -> Any:
        """Draw the timeline with matplotlib (`pip install "composable[plot]"`).

        Bars are solid where an algorithm acts in every batch, and hatched where that is known only
        at run time. Diamonds mark algorithms that act once.

        Args:
            ax: The matplotlib axes to draw on; by default those of a new figure.

        Returns:
            The axes.

        Raises:
            ImportError: matplotlib is not installed.
            TypeError: `ax` is something else.
        """
        if ax is None:
            ax = new_axes(len(self.rows))
        if not hasattr(ax, "set_xlim"):
            raise TypeError(f"ax={ax!r} must be matplotlib axes; for a file, use save(path).")
        draw(ax, self.rows, self.describe, self._ticks(), self._title())
        return ax

    def save(self, path: str | Path) -> None:
        """Save the picture as a file, in the format of its suffix: .svg, .png or .pdf.

        Raises:
            ImportError: matplotlib is not installed.
        """
        target = as_path("path", path)
        figure = new_figure(len(self.rows))
        self.plot(figure.axes[0])
        write_atomically(target, render_figure(figure, target.suffix))

    def _repr_svg_(self) -> str | None:
        if find_spec("matplotlib") is None:  # notebooks then show the words
            return None
        figure = new_figure(len(self.rows))
        self.plot(figure.axes[0])
        return render_figure(figure, ".svg").decode()

    def _title(self) -> str:
        whole, batches = self.max_duration, self.epoch_length
        unit = whole.unit.name.lower() if whole.value == 1 else whole.unit.plural
        each = f" of {batches} batches" if batches and whole.unit is TimeUnit.EPOCH else ""
        return f"{str(whole).removesuffix(whole.unit.value)} {unit}{each}"

    def _ticks(self) -> list[tuple[float, str]]:
        """Label round times in the unit of the run, in batches, and as fractions."""
        whole = self.max_duration
        ticks = []
        for fraction in _round_fractions(whole):
            value = fraction * whole.value
            lines = [str(Time(value, whole.unit))]
            if whole.unit is TimeUnit.EPOCH and self.epoch_length:
                lines.append(str(Time(value * self.epoch_length, TimeUnit.BATCH)))
            lines.append(f"{float(fraction):.2g}")
            ticks.append((float(fraction), "\n".join(lines)))
        return ticks


def _round_fractions(whole: Time) -> list[Fraction]:
    """Choose the start, the end, and at most nine round times between them."""
    steps = (Fraction(digit * 10**power) for power in range(18) for digit in (1, 2, 5))
    step = next(step for step in steps if whole.value <= 10 * step)
    if whole.unit is TimeUnit.SECOND and whole.value <= 10:
        step = Fraction(whole.value) / 10
    fractions = [k * step / whole.value for k in range(int(whole.value // step) + 1)]
    if 1 - fractions[-1] < step / whole.value / 2:
        fractions.pop()
    return [*fractions, Fraction(1)]
