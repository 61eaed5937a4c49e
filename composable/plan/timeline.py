"""When each algorithm is active over a run: what can be said of it before the run begins."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import attrs

from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.time import Time, TimeLike, TimeUnit, check_time
from composable.core.window import Window
from composable.plan._drawing import draw
from composable.plan.compatibility import Occurrence, occurrences

__all__ = ["Row", "Span", "Timeline", "timeline"]

_MANY = 100  # turns of `every` that are drawn one by one
_BEFORE = frozenset({Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD, Event.FIT_START})
_AFTER = frozenset({Event.FIT_END})


@attrs.frozen
class Span:
    """A part of the run, in fractions of it.

    Without conditions, the algorithm acts in the batches that begin in it, from `start` up to
    `end`; with conditions, in those of them in which all hold, which can't be known beforehand.
    """

    start: Fraction
    end: Fraction
    conditions: tuple[str, ...] = ()


@attrs.frozen
class Row:
    """An algorithm, and when it is active."""

    name: str
    stage: Stage
    spans: tuple[Span, ...]

    def active(self, fraction: float | Fraction) -> bool | None:
        """Whether it is active in a batch that begins at a fraction of the run; None for maybe."""
        here = [span for span in self.spans if span.start <= fraction < span.end]
        return None if here and all(span.conditions for span in here) else bool(here)


@attrs.frozen
class Timeline:
    """When each algorithm is active, over a run of known length. Notebooks show it as a picture.

    An algorithm that acts once, before or after training, has a span of no length. An average
    is active from the time on at which its first update may come, at the end of a batch.

    Example:
        >>> from composable import Plan, during, when
        >>> from composable.algorithms import MixUp, SelectiveBackprop
        >>> def large(state):
        ...     return len(state.targets) >= 32
        >>> plan = Plan.compile([when(large, during("20ba", "80ba", MixUp()))])
        >>> picture = plan.timeline("10ep", epoch_length=10)
        >>> print(picture)
        MixUp  mix  from 2ep to 8ep, where large holds
        >>> picture.rows[0].active(0.5) is None  # maybe
        True
        >>> picture.svg()[:4]
        '<svg'
    """

    rows: tuple[Row, ...]
    max_duration: Time = attrs.field(eq=str)
    epoch_length: int | None = None

    def svg(self) -> str:
        """The picture, as the text of an SVG file."""
        return draw(self)

    def save(self, path: str | Path) -> None:
        """Write the picture to a file.

        Raises:
            ValueError: The file's name doesn't end in .svg.
        """
        path = Path(path)
        if path.suffix != ".svg":
            raise ValueError(f"path={str(path)!r} must end in .svg: the picture is an SVG.")
        path.write_text(self.svg(), encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg()

    def say(self, span: Span) -> str:
        """A span in words."""
        if span.start == span.end:
            return ", ".join(span.conditions) or f"at {self.at(span.start)}"
        if span.start == 0 and span.end == 1:
            return ", ".join(span.conditions) or "all along"
        return ", ".join([f"from {self.at(span.start)} to {self.at(span.end)}", *span.conditions])

    def at(self, fraction: Fraction) -> str:
        """A time of the run in the unit of its length, or in batches where that isn't whole."""
        value = fraction * self.max_duration.value
        if value.denominator == 1 or self.max_duration.unit is TimeUnit.SECOND:
            return str(Time(value, self.max_duration.unit))
        if self.max_duration.unit is TimeUnit.EPOCH and self.epoch_length is not None:
            batches = value * self.epoch_length
            if batches.denominator == 1:
                return str(Time(batches, TimeUnit.BATCH))
        return str(Time(fraction, TimeUnit.DURATION))

    def __str__(self) -> str:
        if not self.rows:
            return "No algorithms: the loop trains alone."
        said = [
            (row.name, row.stage.name.lower(), ", ".join(map(self.say, row.spans)) or "never")
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(*said, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in said)


def timeline(
    algorithms: Sequence[Algorithm], max_duration: TimeLike, epoch_length: int | None = None
) -> Timeline:
    """The timeline of algorithms in their order: see `Plan.timeline`."""
    length = check_time("max_duration", max_duration)
    if length.unit is TimeUnit.DURATION or not length.value:
        raise ValueError(
            f"max_duration={str(length)!r} is no length of a run: give epochs, batches, samples, "
            "tokens or seconds, such as '10ep'."
        )
    if epoch_length is not None and (isinstance(epoch_length, bool) or epoch_length < 1):
        raise ValueError(f"epoch_length={epoch_length!r} must be 1 or more, or None.")
    found: dict[str, tuple[Stage, list[Span]]] = {}
    for algorithm in algorithms:
        for occurrence in occurrences(algorithm):
            leaf = occurrence.algorithm
            _, spans = found.setdefault(leaf.name, (leaf.stage, []))
            spans += _spans(occurrence, length, epoch_length)
    rows = tuple(Row(name, stage, _joined(spans)) for name, (stage, spans) in found.items())
    return Timeline(rows, length, epoch_length)


def fraction_of_run(time: Time, whole: Time, epoch_length: int | None) -> Fraction | None:
    """Where a time is in a run of a length, or None where that can't be known beforehand."""
    if time.unit is TimeUnit.DURATION:
        return Fraction(time.value)
    if time.unit is whole.unit:
        return Fraction(time.value) / whole.value
    batches = {TimeUnit.BATCH: 1, TimeUnit.EPOCH: epoch_length}
    one, other = batches.get(time.unit), batches.get(whole.unit)
    if one is None or other is None:
        return None
    return Fraction(time.value * one) / (whole.value * other)


def _spans(occurrence: Occurrence, whole: Time, epoch_length: int | None) -> list[Span]:
    """The parts of the run in which an algorithm in its occurrence is active."""
    leaf = occurrence.algorithm
    span, lasts = Span(Fraction(0), Fraction(1)), True
    turns: list[Time] = []
    for window in (*occurrence.windows(), leaf.window()):
        span, lasts = _within(span, window, whole, epoch_length), lasts and window.end is None
        if window.interval is not None:
            turns.append(window.interval)
    once = _once(span, frozenset(leaf.events))
    if once is not None:
        return once
    # What has no end may act at the end of the very last batch, as an average does.
    if span.start > span.end or (span.start == span.end and not lasts):
        return []
    spans = [span]
    for interval in turns:
        spans = [turn for one in spans for turn in _turns(one, interval, whole, epoch_length)]
    return spans


def _within(span: Span, window: Window, whole: Time, epoch_length: int | None) -> Span:
    """What of a span lies in a window; limits that can't be placed become conditions."""
    start, end, said = span.start, span.end, []
    if window.start is not None and window.start.value:
        at = fraction_of_run(window.start, whole, epoch_length)
        start = start if at is None else max(start, at)
        said += [f"from {window.start} on"] if at is None else []
    if window.end is not None:
        at = fraction_of_run(window.end, whole, epoch_length)
        end = end if at is None else min(end, at)
        said += [f"up to {window.end}"] if at is None else []
    said += [window.condition] if window.condition else []
    return Span(start, end, (*span.conditions, *said))


def _once(span: Span, events: frozenset[Event]) -> list[Span] | None:
    """The span of no length of what acts before or after training alone; None for others."""
    for when, at, these in (("before", 0, _BEFORE), ("after", 1, _AFTER)):
        if events <= these:
            acts = span.start <= at <= span.end and span.start <= span.end
            words = (f"once, {when} training", *span.conditions)
            return [Span(Fraction(at), Fraction(at), words)] if acts else []
    return None


def _turns(span: Span, interval: Time, whole: Time, epoch_length: int | None) -> Iterable[Span]:
    """The turns of `every` in a span, or the span with a condition where they are too many."""
    step = fraction_of_run(interval, whole, epoch_length)
    if step is None or (span.end - span.start) / step > _MANY:
        return [attrs.evolve(span, conditions=(*span.conditions, f"every {interval}"))]
    width = step / interval.value
    first, last = span.start // step, -(-span.end // step)
    turns = [
        Span(max(span.start, k * step), min(span.end, k * step + width), span.conditions)
        for k in range(int(first), int(last))
    ]
    return [turn for turn in turns if turn.start < turn.end]


def _joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans in order, those that touch made one where their conditions are the same."""
    joined: list[Span] = []
    for span in sorted(spans, key=lambda one: (one.conditions, one.start, one.end)):
        last = joined[-1] if joined else None
        if last and last.conditions == span.conditions and span.start <= last.end:
            joined[-1] = attrs.evolve(last, end=max(last.end, span.end))
        else:
            joined.append(span)
    return tuple(sorted(joined, key=lambda one: (one.start, one.end)))
