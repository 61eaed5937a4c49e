"""When each algorithm is active over a run, as far as it is known beforehand."""

from collections.abc import Iterable, Sequence
from fractions import Fraction

import attrs

from composable.core.algorithm import BEFORE_TRAINING, Algorithm, Stage
from composable.core.event import Event
from composable.core.time import HasTime, Time, TimeUnit, counts_whole, share_of_run
from composable.core.window import Window
from composable.plan.compatibility import Occurrence, occurrences

_MAX_TURNS = 100  # of `every`; more become a condition
_AFTER = frozenset({Event.FIT_END})


@attrs.frozen
class Span:
    """A part of a run, from `start` up to `end`, as fractions of the run.

    Without conditions, the algorithm acts in all batches that begin in the span. With conditions,
    it acts in those batches in which all of them hold, which is known only at run time.
    """

    start: Fraction
    end: Fraction
    conditions: tuple[str, ...] = ()


@attrs.frozen
class Row:
    """An algorithm, and the spans in which it is active."""

    name: str
    stage: Stage
    spans: tuple[Span, ...]

    def active(self, fraction: float | Fraction) -> bool | None:
        """Return whether it acts in a batch that begins at this fraction; None if unknown."""
        here = [span for span in self.spans if span.start <= fraction < span.end]
        return None if here and all(span.conditions for span in here) else bool(here)


def find_rows(algorithms: Sequence[Algorithm], run: HasTime) -> tuple[Row, ...]:
    """Find the spans of every algorithm without parts, in the order of the plan."""
    found: dict[str, tuple[Stage, list[Span]]] = {}
    for algorithm in algorithms:
        for occurrence in occurrences(algorithm):
            leaf = occurrence.algorithm
            _, spans = found.setdefault(leaf.name, (leaf.stage, []))
            spans += _spans(occurrence, run)
    return tuple(Row(name, stage, _joined(spans)) for name, (stage, spans) in found.items())


def find_unmeasured(algorithms: Iterable[Algorithm], clock: HasTime) -> list[str]:
    """Find the algorithms that change within epochs or iterations, whose length is unknown.

    They read `epoch_length`, on which the elapsed share of a run depends, or have a window that
    opens or closes at another share of the run than after a whole number of epochs or iterations.
    """
    whole = clock.max_duration
    if whole is None or not counts_whole(clock, whole):
        return []
    found: list[str] = []
    for occurrence in (one for each in algorithms for one in occurrences(each)):
        leaf = occurrence.algorithm
        windows = (*occurrence.windows(), leaf.window())
        times = [time for one in windows for time in (one.start, one.end) if time is not None]
        reads = "epoch_length" in leaf.reads and not BEFORE_TRAINING.issuperset(leaf.events)
        if reads or any(
            time.unit is TimeUnit.DURATION and Fraction(time.value * whole.value).denominator > 1
            for time in times
        ):
            found.append(leaf.name)
    return list(dict.fromkeys(found))


def _spans(occurrence: Occurrence, run: HasTime) -> list[Span]:
    """Find the spans of one occurrence of an algorithm."""
    leaf = occurrence.algorithm
    span, unlimited = Span(Fraction(0), Fraction(1)), True
    intervals: list[Time] = []
    for window in (*occurrence.windows(), leaf.window()):
        span = _intersect(span, window, run)
        unlimited = unlimited and window.end is None
        if window.interval is not None:
            intervals.append(window.interval)
    once = _once(span, frozenset(leaf.events))
    if once is not None:
        return once
    # A window without an end includes the end of the last batch, where an average may be updated.
    if span.start > span.end or (span.start == span.end and not unlimited):
        return []
    spans = [span]
    for interval in intervals:
        spans = [turn for one in spans for turn in _turns(one, interval, run)]
    return spans


def _intersect(span: Span, window: Window, run: HasTime) -> Span:
    """Intersect a span with a window; limits that are unknown beforehand become conditions."""
    start, end, conditions = span.start, span.end, []
    if window.start is not None and window.start.value:
        at = share_of_run(run, window.start)
        start = start if at is None else max(start, at)
        conditions += [f"from {window.start} on"] if at is None else []
    if window.end is not None:
        at = share_of_run(run, window.end)
        end = end if at is None else min(end, at)
        conditions += [f"up to {window.end}"] if at is None else []
    conditions += [window.condition] if window.condition else []
    return Span(start, end, (*span.conditions, *conditions))


def _once(span: Span, events: frozenset[Event]) -> list[Span] | None:
    """Return the empty span of an algorithm that acts before or after training; else None."""
    for when, at, these in (("before", 0, BEFORE_TRAINING), ("after", 1, _AFTER)):
        if events <= these:
            acts = span.start <= at <= span.end and span.start <= span.end
            conditions = (f"once, {when} training", *span.conditions)
            return [Span(Fraction(at), Fraction(at), conditions)] if acts else []
    return None


def _turns(span: Span, interval: Time, run: HasTime) -> Iterable[Span]:
    """Split a span into the turns of `every`; too many turns become a condition."""
    step = share_of_run(run, interval)
    if step is None or (span.end - span.start) / step > _MAX_TURNS:
        return [attrs.evolve(span, conditions=(*span.conditions, f"every {interval}"))]
    width = step / interval.value
    first, last = span.start // step, -(-span.end // step)
    turns = [
        Span(max(span.start, k * step), min(span.end, k * step + width), span.conditions)
        for k in range(int(first), int(last))
    ]
    return [turn for turn in turns if turn.start < turn.end]


def _joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sort spans, and join adjacent ones that have the same conditions."""
    joined: list[Span] = []
    for span in sorted(spans, key=lambda one: (one.conditions, one.start, one.end)):
        last = joined[-1] if joined else None
        if last and last.conditions == span.conditions and span.start <= last.end:
            joined[-1] = attrs.evolve(last, end=max(last.end, span.end))
        else:
            joined.append(span)
    return tuple(sorted(joined, key=lambda one: (one.start, one.end)))
