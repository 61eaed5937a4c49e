"""EMA, as an algorithm."""

import math
from types import MappingProxyType

import attrs
from attrs.validators import optional

from composable.algorithms._averaging import WeightAverage
from composable.algorithms._validators import batches_or_epochs, in_range
from composable.core.algorithm import Remark
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import Time, TimeLike, TimeUnit, check_time, reached, share_of_run
from composable.core.window import Window
from composable.functional import ema, ema_smoothing, with_tensors

_BATCH_END, _EPOCH_END = Event.BATCH_END, Event.EPOCH_END
_DEFAULT = Time(1000, TimeUnit.BATCH)
_LARGE_SHARE = 0.2
_ONE = {unit: Time(1, unit) for unit in (TimeUnit.BATCH, TimeUnit.EPOCH)}


def _half_life(value: TimeLike | None) -> Time | None:
    return None if value is None else check_time("half_life", value)


def _update_interval(value: TimeLike | None) -> Time | None:
    return None if value is None else check_time("update_interval", value)


def _ema_start(value: TimeLike) -> Time:
    return check_time("ema_start", value)


@attrs.frozen(repr=False)
class EMA(WeightAverage):
    """Evaluate and predict with averaged weights: see `composable.functional.ema`.

    `state.averages[name]` holds the average, in float32 for 16-bit weights and without frozen ones.
    After `fit`, the model holds the averaged weights; a further `fit` continues with the original
    ones.

    Args:
        half_life: Time after which the weight of a past value halves, in batches or epochs.
            Default: "1000ba", unless `smoothing` is given.
        smoothing: Share of the average that each update keeps, in [0, 1]; an alternative to
            `half_life`.
        ema_start: Time at which averaging starts.
        update_interval: Time between two updates, in the unit of `half_life`. The default is one
            batch, or one epoch if `half_life` is in epochs.
        blend: Share of the average in the evaluated weights, in (0, 1]; the rest are the weights
            that are trained.

    Raises:
        ValueError: Both `half_life` and `smoothing` are given, or units are not batches or epochs,
            or differ.
    """

    half_life: Time | None = attrs.field(
        default=None, converter=_half_life, validator=batches_or_epochs("1ba"), eq=str
    )
    smoothing: float | None = attrs.field(default=None, validator=optional(in_range(0, 1)))
    ema_start: Time = attrs.field(default=Time(0, TimeUnit.DURATION), converter=_ema_start, eq=str)
    update_interval: Time | None = attrs.field(
        default=None, converter=_update_interval, validator=batches_or_epochs("1ba"), eq=str
    )
    blend: float = attrs.field(default=1.0, validator=in_range(0, 1, ends="(]"))

    reads = frozenset({"model", "timestamp", "max_duration", "averages"})
    writes = frozenset({"model", "averages"})
    incompatible_with = MappingProxyType({"SWA": "both replace the model that is evaluated"})
    discouraged_with = MappingProxyType(
        {"EMA": "the model is evaluated with the average of the last one"}
    )

    def __attrs_post_init__(self) -> None:
        if self.half_life is not None and self.smoothing is not None:
            raise ValueError(
                f"half_life={_text(self.half_life)} and smoothing={self.smoothing} must not both "
                "be given; pass one, such as EMA(half_life='100ba') or EMA(smoothing=0.99)."
            )
        if self.half_life is None and self.smoothing is None:
            object.__setattr__(self, "half_life", _DEFAULT)  # as attrs advises for frozen classes
        if self.half_life is not None and self.half_life.unit is not self.interval.unit:
            raise ValueError(
                f"half_life={_text(self.half_life)} and "
                f"update_interval={_text(self.update_interval)} must have the same unit, batches "
                "or epochs."
            )

    @property
    def events(self) -> frozenset[Event]:
        """The event of an update, `BATCH_END` or `EPOCH_END`, and the starts of evaluations."""
        by_epoch = self.interval.unit is TimeUnit.EPOCH
        return frozenset({_EPOCH_END if by_epoch else _BATCH_END}) | self.EVALUATES

    @property
    def interval(self) -> Time:
        """Time between two updates."""
        if self.update_interval is not None:
            return self.update_interval
        return _ONE[TimeUnit.BATCH if self.half_life is None else self.half_life.unit]

    @property
    def share_kept(self) -> float:
        """Share of the average that each update keeps."""
        if self.half_life is None:
            return self.smoothing  # type: ignore[return-value]
        return ema_smoothing.unchecked(float(self.half_life.value), float(self.interval.value))

    def match(self, event: Event, state: State) -> bool:
        """Match if an update is due, or an evaluation starts and there is an average."""
        if event in self.EVALUATES:
            return self.name in state.averages
        interval = self.interval
        by_epoch = interval.unit is TimeUnit.EPOCH
        if event is not (_EPOCH_END if by_epoch else _BATCH_END):
            return False
        now = state.timestamp.epoch if by_epoch else state.timestamp.batch
        if now % interval.value:
            return False
        return not self.ema_start.value or reached(state, self.ema_start)

    def evaluate(self, state: State) -> State:
        """Return the state with the average as its weights, or a blend of both."""
        if self.blend == 1:
            return super().evaluate(state)
        blended = ema.unchecked(
            self.average_of(state), self.weights_of(state), smoothing=self.blend
        )
        return state.evolve(model=with_tensors(state.model, blended))

    def remark(self, state: State) -> Remark | None:
        """Say if the half-life is a large share of the run: the average then lags behind."""
        share = share_of_run(state, self.half_life or self.interval)
        if share is None or not self.share_kept:
            return None
        half_life = float(share)
        if self.half_life is None:
            kept = self.share_kept
            half_life *= math.inf if kept == 1 else math.log(0.5) / math.log(kept)
        if half_life <= _LARGE_SHARE:
            return None
        given = f"smoothing={self.smoothing}" if self.half_life is None else ""
        given = given or f"half_life={_text(self.half_life)}"
        return Remark(
            f"{self.name}: {given} is a half-life of {half_life:.2g} times this run of "
            f"{state.max_duration}, so the average is largely one of early weights, and lags "
            "behind. Choose a half-life of a twentieth of the run or less.",
            warns=half_life > 1,
        )

    def window(self) -> Window:
        """Return the window from `ema_start` on."""
        often = f"every {self.interval}" if str(self.interval) != "1ba" else ""
        return Window(self.ema_start, condition=often)

    def apply(self, event: Event, state: State) -> State:
        """Update the average, or replace the weights of the model for an evaluation."""
        if event in self.EVALUATES:
            return self.evaluate(state)
        average = self.average_of(state)
        if self.name not in state.averages:
            return state.with_average(self.name, average)
        new = ema.unchecked(average, self.weights_of(state), smoothing=self.share_kept)
        return state.with_average(self.name, new)


def _text(time: Time | None) -> str:
    return repr(time if time is None else str(time))
