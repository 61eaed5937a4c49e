"""Durations of training, and the progress of a run.

A `Time` is a duration in one unit. A `Timestamp` counts the finished batches, epochs and so on. A
`Clock` is a timestamp together with the duration of the run, against which any `Time` can be
measured. Counts are integers and fractions are exact: 0.1 of a run of 30 batches is batch 3, not
batch 3.0000000000000004.
"""

import re
from collections.abc import Sequence
from decimal import Context, Decimal
from enum import Enum
from fractions import Fraction
from functools import lru_cache, total_ordering
from typing import Any, Protocol, TypeAlias

import attrs


class TimeUnit(Enum):
    """A unit in which training is measured."""

    ITERATION = "iter"
    EPOCH = "ep"
    BATCH = "ba"
    SAMPLE = "sp"
    TOKEN = "tok"
    DURATION = "dur"
    """The whole run: "0.5dur" is half of it."""
    SECOND = "sec"
    """Wall time of training, without evaluation."""

    __hash__ = object.__hash__

    @property
    def plural(self) -> str:
        """The plural of its name, for messages."""
        irregular = {TimeUnit.BATCH: "batches", TimeUnit.DURATION: "fractions of the run"}
        return irregular.get(self, f"{self.name.lower()}s")


# Names for what every batch reads: on Python 3.11, reading a member of an Enum is slow.
_DURATION, _EPOCH = TimeUnit.DURATION, TimeUnit.EPOCH
_FRACTIONAL = (_DURATION, TimeUnit.SECOND)
_ALLOWED = (
    "a number and a unit: '10ep' (epochs), '2ba' (batches), '100sp' (samples), '1000tok' "
    "(tokens), '2iter' (iterations), '0.5dur' (half of the run), '30sec', '90s' or '1h30m'; "
    "a plain integer means epochs"
)
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_NUMBER = rf"{_DIGITS}(?:\.[0-9]+)?(?:e[0-9]{{1,2}})?|[0-9]+/[0-9]+"
_NUMBER_AND_UNIT = re.compile(rf"({_NUMBER})(iter|ep|ba|sp|tok|dur|sec)")
_WALL_CLOCK = re.compile(r"(?=[0-9])(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+(?:\.[0-9]+)?)s)?")


@total_ordering
@attrs.frozen(eq=False, order=False)
class Time:
    """An exact duration of training in one unit.

    Args:
        value: At least 0. An integer, except for fractions of the run and for seconds. Or a string
            that includes the unit: see `Time.parse`.
        unit: A `TimeUnit`, or its short name.

    Raises:
        ValueError: `value` is negative, infinite or has a fraction that its unit can't have.
        TypeError: `value` is not a number, or two units are mixed in arithmetic or in a comparison
            such as `<`. Times of different units are unequal.

    Example:
        >>> from composable import Time
        >>> Time("10ep")
        Time('10ep')
        >>> Time.parse("1h30m") == Time(5400, "sec")
        True
        >>> Time.parse("3ba") / Time.parse("30ba")
        Time('0.1dur')
        >>> Time.parse("0.1dur") * 3 == Time.parse("0.3dur")
        True
    """

    value: int | Fraction
    unit: TimeUnit

    def __init__(
        self, value: int | float | Fraction | str, unit: TimeUnit | str | None = None
    ) -> None:
        if unit is None:
            parsed = Time.parse(value)  # type: ignore[arg-type]
            value, unit = parsed.value, parsed.unit
        unit = _as_unit(unit)
        exact = _as_exact(value)  # type: ignore[arg-type]
        if exact < 0:
            raise ValueError(f"value={value!r} is negative: a Time is at least 0.")
        if exact.denominator != 1 and unit not in _FRACTIONAL:
            raise ValueError(
                f"value={value!r} is not whole, and {unit.plural} cannot be split: "
                "pass an integer, or a fraction of the run such as '0.5dur'."
            )
        self.__attrs_init__(  # type: ignore[attr-defined]
            exact.numerator if exact.denominator == 1 else exact, unit
        )

    @classmethod
    def parse(cls, text: "TimeLike") -> "Time":
        """Parse a string; an integer means epochs, and a `Time` is returned unchanged.

        Args:
            text: Such as "10ep", "2ba", "100sp", "1000tok", "2iter", "0.5dur", "1/3dur",
                "30sec", "90s", "1h30m"; large numbers also as "3e10sp" or "4_000tok".

        Raises:
            ValueError: The string has none of these forms; the message lists them.
            TypeError: It is neither a string, an integer nor a `Time`.
        """
        if isinstance(text, Time):
            return text
        if isinstance(text, int) and not isinstance(text, bool):
            return cls(text, TimeUnit.EPOCH)
        if not isinstance(text, str):
            raise TypeError(f"A time must be {_ALLOWED}; got {text!r}.")
        return _parse(text)

    @property
    def seconds(self) -> float:
        """The duration in seconds; only for a time in seconds."""
        if self.unit is not TimeUnit.SECOND:
            raise TypeError(f"{self} is not in seconds.")
        return float(self.value)

    def __str__(self) -> str:
        return f"{_print_exact(self.value)}{self.unit.value}"

    def __repr__(self) -> str:
        return f"Time({str(self)!r})"

    def __hash__(self) -> int:
        return hash((self.value, self.unit))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):  # equal things must have equal hashes
            raise TypeError(f"{self!r} cannot be compared with a string: use Time({other!r}).")
        if not isinstance(other, Time):
            return NotImplemented
        return self.unit is other.unit and self.value == other.value

    def __lt__(self, other: "Time") -> bool:
        if not isinstance(other, Time):
            return NotImplemented
        self._same_unit(other, "compared with")
        return self.value < other.value

    def __add__(self, other: "Time | str") -> "Time":
        other = Time.parse(other)
        self._same_unit(other, "added to")
        return Time(self.value + other.value, self.unit)

    def __sub__(self, other: "Time | str") -> "Time":
        other = Time.parse(other)
        self._same_unit(other, "taken from")
        return Time(self.value - other.value, self.unit)

    def __mul__(self, factor: int | float | Fraction) -> "Time":
        return Time(self.value * _as_exact(factor), self.unit)

    __rmul__ = __mul__

    def __truediv__(self, other: "Time | str | int | Fraction") -> "Time":
        if isinstance(other, (Time, str)):
            other = Time.parse(other)
            self._same_unit(other, "divided by")
            divisor, unit = Fraction(other.value), TimeUnit.DURATION
        else:
            divisor, unit = _as_exact(other), self.unit
        if not divisor:
            raise ZeroDivisionError(f"{self} cannot be divided by {other}, which is zero.")
        return Time(Fraction(self.value) / divisor, unit)

    def _same_unit(self, other: "Time", verb: str) -> None:
        if self.unit is not other.unit:
            raise TypeError(
                f"{self} cannot be {verb} {other}: {self.unit.plural} and "
                f"{other.unit.plural} are different units, and how they relate depends on "
                "the run. Use one unit, or measure both against a run: Clock.fraction_of(time)."
            )


TimeLike: TypeAlias = Time | str | int


def check_time(name: str, time: TimeLike) -> Time:
    """Parse the time passed as the argument `name`, which errors mention."""
    try:
        return Time.parse(time)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}={time!r}: {error}") from None


def check_length(
    name: str, length: TimeLike, units: Sequence[TimeUnit] = (*TimeUnit,), advice: str = ""
) -> Time:
    """Parse a time that is greater than 0.

    Args:
        name: The argument, which errors mention.
        length: Its value.
        units: The units that it may have.
        advice: What the error for 0 ends with.

    Raises:
        TypeError: It is not a time.
        ValueError: It is 0, not a valid time, or in another unit.
    """
    time = check_time(name, length)
    if not time.value:
        raise ValueError(f"{name}={str(time)!r} must be greater than 0{advice}.")
    if time.unit not in units:
        allowed = " or ".join(", ".join(unit.plural for unit in units).rsplit(", ", 1))
        example = f"'10{units[0].value}'"
        raise ValueError(f"{name}={str(time)!r} must be in {allowed}, such as {example}.")
    return time


def _as_unit(unit: TimeUnit | str) -> TimeUnit:
    try:
        return TimeUnit(unit)
    except ValueError:
        allowed = ", ".join(repr(u.value) for u in TimeUnit)
        raise ValueError(f"unit={unit!r} is unknown: use one of {allowed}.") from None


def _as_exact(value: int | float | Fraction) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, float, Fraction)):
        raise TypeError(f"value={value!r} must be an int, a float or a Fraction.")
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"value={value!r} is not finite.")
        # 0.1 means one tenth, not the nearest binary number. (NumPy's own repr has the type in it.)
        return Fraction(float.__repr__(value))
    return Fraction(value)


_DECIMALS = Context(prec=60, Emin=-999999, Emax=999999, traps=[])
"""Not the thread's context, whose precision may change, and which may raise errors."""


def _print_exact(value: int | Fraction) -> str:
    if isinstance(value, int):
        return str(value)
    decimal = _DECIMALS.divide(Decimal(value.numerator), Decimal(value.denominator))
    return f"{decimal:f}" if Fraction(decimal) == value else str(value)


@lru_cache(maxsize=1024)
def _parse(text: str) -> Time:
    if match := _NUMBER_AND_UNIT.fullmatch(text):
        number, unit = match.groups()
        if number.endswith("/0") or re.search(r"/0+$", number):
            raise ValueError(f"invalid time {text!r}: it divides by zero.")
        try:
            return Time(Fraction(number.replace("_", "")), TimeUnit(unit))
        except ValueError as error:
            raise ValueError(f"invalid time {text!r}: {error}") from None
    if match := _WALL_CLOCK.fullmatch(text):
        hours, minutes, seconds = match.groups(default="0")
        total = int(hours) * 3600 + int(minutes) * 60 + Fraction(seconds)
        return Time(total, TimeUnit.SECOND)
    raise ValueError(f"invalid time {text!r}: a time is {_ALLOWED}.")


@attrs.frozen
class Timestamp:
    """The progress of a run.

    Only finished batches, epochs and so on are counted: during the first batch, `batch` is 0. The
    four wall-clock times are seconds of training, without evaluation.

    Example:
        >>> from composable import Timestamp
        >>> now = Timestamp().next_batch(samples=32)
        >>> now.batch, now.sample, now.epoch
        (1, 32, 0)
        >>> now.next_epoch().batch_in_epoch
        0
    """

    iteration: int = 0
    epoch: int = 0
    batch: int = 0
    sample: int = 0
    token: int = 0
    epoch_in_iteration: int = 0
    token_in_iteration: int = 0
    batch_in_epoch: int = 0
    sample_in_epoch: int = 0
    token_in_epoch: int = 0
    total_wct: float = 0.0
    iteration_wct: float = 0.0
    epoch_wct: float = 0.0
    batch_wct: float = 0.0

    def next_batch(self, samples: int = 0, tokens: int = 0, seconds: float = 0.0) -> "Timestamp":
        """Return the timestamp after one more batch."""
        new: Any = object.__new__(_Draft)  # every step needs one, and the constructor is slow
        new.iteration = self.iteration
        new.epoch = self.epoch
        new.batch = self.batch + 1
        new.sample = self.sample + samples
        new.token = self.token + tokens
        new.epoch_in_iteration = self.epoch_in_iteration
        new.token_in_iteration = self.token_in_iteration + tokens
        new.batch_in_epoch = self.batch_in_epoch + 1
        new.sample_in_epoch = self.sample_in_epoch + samples
        new.token_in_epoch = self.token_in_epoch + tokens
        new.total_wct = self.total_wct + seconds
        new.iteration_wct = self.iteration_wct + seconds
        new.epoch_wct = self.epoch_wct + seconds
        new.batch_wct = seconds
        new.__class__ = Timestamp  # frozen from here on
        return new  # type: ignore[no-any-return]

    def next_epoch(self) -> "Timestamp":
        """Return the timestamp after the end of the epoch."""
        return attrs.evolve(
            self,
            epoch=self.epoch + 1,
            epoch_in_iteration=self.epoch_in_iteration + 1,
            batch_in_epoch=0,
            sample_in_epoch=0,
            token_in_epoch=0,
            epoch_wct=0.0,
        )

    def next_iteration(self) -> "Timestamp":
        """Return the timestamp after the end of the iteration."""
        return attrs.evolve(
            self,
            iteration=self.iteration + 1,
            epoch_in_iteration=0,
            token_in_iteration=0,
            iteration_wct=0.0,
        )

    def get(self, unit: TimeUnit | str) -> Time:
        """Return the count of one unit as a `Time`."""
        unit = _as_unit(unit)
        if unit is TimeUnit.DURATION:
            raise TypeError("a timestamp has no fraction of the run: use Clock.fraction_of.")
        return Time(getattr(self, _FIELD[unit]), unit)


class _Draft(Timestamp):
    """A timestamp whose fields can be assigned, until it becomes a `Timestamp`."""

    __slots__ = ()
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__


_FIELD = {
    TimeUnit.ITERATION: "iteration",
    TimeUnit.EPOCH: "epoch",
    TimeUnit.BATCH: "batch",
    TimeUnit.SAMPLE: "sample",
    TimeUnit.TOKEN: "token",
    TimeUnit.SECOND: "total_wct",
}


class HasTime(Protocol):
    """The progress and the duration of a run: a `State` or a `Clock`."""

    @property
    def timestamp(self) -> Timestamp: ...
    @property
    def max_duration(self) -> Time | None: ...
    @property
    def epoch_length(self) -> int | None: ...


def _as_length(value: TimeLike | None) -> Time | None:
    length = None if value is None else check_time("max_duration", value)
    if length is not None and length.unit is TimeUnit.DURATION:
        raise ValueError(
            f"max_duration={str(length)!r} is a fraction of itself; pass epochs, batches, samples, "
            "tokens or seconds, such as '10ep'."
        )
    return length


@attrs.frozen
class Clock:
    """A timestamp together with the duration of the run. A `State` can be used in its place.

    Args:
        timestamp: The progress of the run.
        max_duration: The duration of the run, or None if unknown.
        epoch_length: Batches in an epoch, or None if unknown.

    Example:
        >>> from composable import Clock
        >>> clock = Clock.at(batch=3, max_duration="2ep", epoch_length=5)
        >>> clock.fraction_of("1dur")
        Fraction(3, 10)
        >>> clock.reached("0.3dur"), clock.reached("1ep")
        (True, False)
    """

    timestamp: Timestamp
    max_duration: Time | None = attrs.field(default=None, converter=_as_length)
    epoch_length: int | None = None

    @classmethod
    def at(cls, *, batch: int, max_duration: TimeLike, epoch_length: int | None = None) -> "Clock":
        """Create the clock of a run after `batch` batches: for schedules in your own loop.

        Args:
            batch: The number of finished batches.
            max_duration: The duration of the run, in batches or epochs.
            epoch_length: Batches in an epoch; required if `max_duration` is in epochs.

        Raises:
            ValueError: The progress of the run can't be derived from the number of batches.
        """
        unit = check_time("max_duration", max_duration).unit
        if unit is TimeUnit.EPOCH and not epoch_length:
            raise ValueError(
                f"max_duration={max_duration!r} is in epochs, but epoch_length={epoch_length}: "
                "pass the number of batches in an epoch, such as len(loader)."
            )
        if unit not in (TimeUnit.BATCH, TimeUnit.EPOCH):
            raise ValueError(
                f"max_duration={max_duration!r} cannot be compared with batch={batch}; pass "
                "batches or epochs, or build a Clock from your own Timestamp."
            )
        epoch, within = divmod(batch, epoch_length) if epoch_length else (0, batch)
        now = Timestamp(epoch=epoch, batch=batch, batch_in_epoch=within)
        return cls(now, max_duration, epoch_length)

    def fraction_of(self, length: TimeLike) -> Fraction:
        """Return the progress as a fraction of `length`; above 1 if `length` is exceeded."""
        done, total = progress(self, Time.parse(length))
        if not total:
            raise ValueError(f"length={length!r} is zero: the fraction is undefined.")
        return Fraction(done) / Fraction(total)

    def reached(self, time: TimeLike) -> bool:
        """Return whether the run has reached `time`."""
        return reached(self, Time.parse(time))


def progress(
    clock: HasTime, length: Time, now: Timestamp | None = None
) -> tuple[int | Fraction | float, int | Fraction]:
    """Return the progress (of the clock, or at `now`) and `length` in the finest known unit."""
    if length.unit is _DURATION:
        done, total = progress(clock, _whole(clock, length), now)
        return done, total * length.value
    if now is None:
        now = clock.timestamp
    if length.unit is _EPOCH:
        count = clock.epoch_length
        if count is not None:
            return now.epoch * count + now.batch_in_epoch, length.value * count
    return getattr(now, _FIELD[length.unit]), length.value


def counts_whole(clock: HasTime, length: Time) -> bool:
    """Return whether only whole epochs or iterations of a length are counted, of unknown length."""
    unit = length.unit
    if unit is _DURATION and clock.max_duration is not None:
        unit = clock.max_duration.unit
    return unit is TimeUnit.ITERATION or (unit is TimeUnit.EPOCH and not clock.epoch_length)


def _whole(clock: HasTime, fraction: object = "1dur") -> Time:
    if clock.max_duration is None:
        raise ValueError(f"{fraction} is undefined: the run has no max_duration.")
    return clock.max_duration


def reached(clock: HasTime, time: Time, now: Timestamp | None = None) -> bool:
    """Return whether the run has reached `time`, or had at `now`."""
    whole = clock.max_duration if time.unit is _DURATION else None
    if whole is None:
        done, total = progress(clock, time, now)
        return done >= total
    done, total = progress(clock, whole, now)
    value = time.value  # multiplying by a Fraction would take ten times as long
    return done * value.denominator >= total * value.numerator


def elapsed(clock: HasTime) -> float:
    """Return the completed fraction of the run, from 0.0 to 1.0.

    Raises:
        ValueError: The run has no `max_duration`.
    """
    try:
        done, total = progress(clock, _whole(clock))
    except AttributeError:
        raise _no_clock(clock=clock) from None
    return min(float(done / total), 1.0) if total else 1.0


def share_of_run(clock: HasTime, length: Time) -> Fraction | None:
    """Return `length` as a share of the run, or None if they cannot be related."""
    whole = clock.max_duration
    if length.unit is TimeUnit.DURATION:
        return Fraction(length.value)
    counted = {TimeUnit.BATCH, TimeUnit.EPOCH} if clock.epoch_length else set()
    if whole is None or not (length.unit is whole.unit or {length.unit, whole.unit} <= counted):
        return None
    return Fraction(progress(clock, length)[1]) / progress(clock, whole)[1]


def _no_clock(**clocks: Any) -> TypeError:
    given = " and ".join(f"{name}={value!r}" for name, value in clocks.items())
    return TypeError(f"{given} must be a State or a Clock, which have a time and a duration.")


def crossed(before: HasTime, after: HasTime, interval: Time) -> bool:
    """Return whether a multiple of `interval` lies after `before` and not after `after`."""
    if not isinstance(interval, Time):
        raise TypeError(f'interval={interval!r} must be a Time, such as Time("2ep").')
    if not interval.value:
        return False
    try:
        then, step = progress(before, interval)
        now, _ = progress(after, interval)
    except AttributeError:
        raise _no_clock(before=before, after=after) from None
    return then // step != now // step
