"""SWA, as an algorithm."""

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import attrs
from attrs.validators import optional

from composable._support.checks import check_entries
from composable._support.dtensors import is_sharded
from composable._support.warn import warn_user
from composable.algorithms._averaging import WeightAverage
from composable.algorithms._validators import (
    batches_or_epochs,
    boolean,
    in_range,
    integer_at_least,
    one_of,
)
from composable.batches.model_call import CalledModel
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import Time, TimeLike, TimeUnit, check_time, reached, share_of_run
from composable.core.window import Window
from composable.data.grouping import batches_of, mean_over_shards, shards_in
from composable.functional import (
    batch_norm_statistics,
    recompute_batch_norm_statistics,
    swa,
)

_BATCH_END, _EPOCH_END, _STEP = Event.BATCH_END, Event.EPOCH_END, Event.BEFORE_OPTIMIZER_STEP


class NothingAveragedWarning(UserWarning):
    """A run in which no update of an average falls between its start and its end."""


def _swa_start(value: TimeLike) -> Time:
    return check_time("swa_start", value)


def _swa_end(value: TimeLike) -> Time:
    return check_time("swa_end", value)


def _update_interval(value: TimeLike) -> Time:
    return check_time("update_interval", value)


@attrs.frozen(repr=False)
class SWA(WeightAverage):
    """Evaluate and predict with the mean of the weights late in training: see `functional.swa`.

    From `swa_start` on, the weights are added to a running mean at each multiple of
    `update_interval`, up to the last batch that starts before `swa_end`. From the first update to
    the end of the run, evaluations use the mean. `state.averages[name]` holds it, and after `fit`
    the model does, as with `EMA`.

    The running statistics of batch norms are averaged with the weights. In the batches from
    `swa_end` on, they are recomputed for the averaged weights, at the cost of one forward pass
    per batch. If no batch follows, as with `swa_end="1dur"`, they stay averaged.

    If no update falls between start and end, as in a run of three epochs with the defaults,
    nothing is averaged, evaluations use the original weights, and a warning is raised.

    Args:
        swa_start: Time at which averaging starts.
        swa_end: Time at which averaging ends.
        update_interval: Time between two updates, in batches or epochs.
        schedule_swa_lr: Anneal the learning rates of all parameter groups to `swa_lr`, and keep
            them there until the end of the run.
        anneal_strategy: "linear", or "cos" for cosine annealing.
        anneal_steps: Number of updates over which the learning rate is annealed. 0 sets it to
            `swa_lr` after the first update.
        swa_lr: Learning rate at the end of the annealing, above 0. Required with
            `schedule_swa_lr`, and not allowed without it.

    Raises:
        ValueError: `swa_end` is not after `swa_start`, `update_interval` is not in batches or
            epochs, or only one of `schedule_swa_lr` and `swa_lr` is given.

    Warns:
        NothingAveragedWarning: The length of the run is known at the start of training, and no
            update falls between start and end.
    """

    swa_start: Time = attrs.field(default=Time.parse("0.7dur"), converter=_swa_start, eq=str)
    swa_end: Time = attrs.field(default=Time.parse("0.97dur"), converter=_swa_end, eq=str)
    update_interval: Time = attrs.field(
        default=Time(1, TimeUnit.EPOCH),
        converter=_update_interval,
        validator=batches_or_epochs("1ep"),
        eq=str,
    )
    schedule_swa_lr: bool = attrs.field(default=False, validator=boolean)
    anneal_strategy: str = attrs.field(default="linear", validator=one_of("linear", "cos"))
    anneal_steps: int = attrs.field(default=10, validator=integer_at_least(0))
    swa_lr: float | None = attrs.field(default=None, validator=optional(in_range(0, ends="()")))

    incompatible_with = MappingProxyType({"EMA": "both replace the model that is evaluated"})
    discouraged_with = MappingProxyType(
        {"SWA": "the model is evaluated with the average of the last one"}
    )

    def __attrs_post_init__(self) -> None:
        start, end = self.swa_start, self.swa_end
        if start.unit is end.unit and end <= start:
            raise ValueError(
                f"swa_end={str(end)!r} must be after swa_start={str(start)!r}, such as "
                "SWA(swa_start='0.7dur', swa_end='0.97dur')."
            )
        if self.schedule_swa_lr is (self.swa_lr is None):
            raise ValueError(
                f"schedule_swa_lr={self.schedule_swa_lr} and swa_lr={self.swa_lr} must be given "
                "together; pass both, such as SWA(schedule_swa_lr=True, swa_lr=0.05), or neither, "
                "to keep the learning rate of the schedules."
            )

    @property
    def by_epoch(self) -> bool:
        """Whether updates happen at the end of epochs, instead of batches."""
        return self.update_interval.unit is TimeUnit.EPOCH

    @property
    def recomputes(self) -> bool:
        """Whether batches after `swa_end` recompute the statistics of batch norms."""
        return str(self.swa_end) != "1dur"

    @property
    def events(self) -> frozenset[Event]:
        """The events of updates, statistics, evaluations and, if scheduled, learning rates."""
        ends = {_EPOCH_END if self.by_epoch else _BATCH_END}
        if self.recomputes:
            ends.add(_BATCH_END)
        steps = {_STEP} if self.schedule_swa_lr else set()
        return self.EVALUATES | ends | steps | {Event.FIT_START}

    @property
    def reads(self) -> frozenset[str]:
        """The fields that it reads: the batch only if it recomputes statistics."""
        batch = {"batch"} if self.recomputes else set()
        return frozenset({"model", "timestamp", "max_duration", "memory", "averages"} | batch)

    @property
    def writes(self) -> frozenset[str]:
        """The fields that it writes: the learning rate only if it is scheduled."""
        rate = {"lr_override"} if self.schedule_swa_lr else set()
        return frozenset({"model", "memory", "averages"} | rate)

    def window(self) -> Window:
        """Return the window from `swa_start` on: the mean is evaluated until the end of the run."""
        return Window(
            self.swa_start,
            condition=f"averaging every {self.update_interval} until {self.swa_end}",
        )

    def match(self, event: Event, state: State) -> bool:
        """Match if an update is due, or the mean is used."""
        if event is Event.FIT_START:
            return True
        if event in self.EVALUATES or event is _STEP:
            return self.name in state.averages
        ended = reached(state, self.swa_end, state.previous_timestamp)
        if ended:
            return event is _BATCH_END and self.name in state.averages
        now = state.timestamp.epoch if self.by_epoch else state.timestamp.batch
        return (
            event is (_EPOCH_END if self.by_epoch else _BATCH_END)
            and now % self.update_interval.value == 0
            and reached(state, self.swa_start)
        )

    def apply(self, event: Event, state: State) -> State:
        """Update the mean, its statistics or the learning rate, or evaluate with the mean."""
        if event is Event.FIT_START:
            return self._warn_if_nothing_is_due(state)
        if event in self.EVALUATES:
            return self.evaluate(state)
        if event is _STEP:
            return state.evolve(lr_override=self.annealed(state.memory[self.name]["count"]))
        if reached(state, self.swa_end, state.previous_timestamp):
            return self._recompute(state)
        return self._update(state)

    def check_memory(self, memory: Any, state: State) -> None:
        """Raise a `ValueError` if a loaded memory does not hold a mean."""
        check_entries(memory, "count", "seen")
        for name in ("count", "seen"):
            if type(memory[name]) is not int or memory[name] < 0:
                raise ValueError(f"{name} must be a non-negative integer.")

    def annealed(self, count: int) -> Callable[[Any], Any]:
        """Return the function of a learning rate that anneals it after `count` updates."""
        done = min(1.0, count / self.anneal_steps) if self.anneal_steps else 1.0
        share = (1 - math.cos(math.pi * done)) / 2 if self.anneal_strategy == "cos" else done
        target: float = self.swa_lr  # type: ignore[assignment]
        return lambda rate: target * share + rate * (1 - share)

    def _update(self, state: State) -> State:
        average, current = self.average_of(state), self.weights_of(state)
        count = state.memory[self.name]["count"] if self.name in state.averages else 0
        state = state.with_average(self.name, swa(average, current, count))
        return state.remember(self.name, {"count": count + 1, "seen": 0})

    def _recompute(self, state: State) -> State:
        """Add the batch to the running statistics for the averaged weights."""
        memory = state.memory[self.name]
        model = self.averaged_model(state)
        if is_sharded(state.model) and batch_norm_statistics(state.model):
            raise ValueError(
                "SWA cannot recompute the statistics of the batch norms of a sharded model, which "
                'it does after swa_end; use swa_end="1dur", or parallel="ddp".'
            )
        if not batch_norm_statistics(model):
            return state
        called, seen = CalledModel(model, state.model_call, state.batch_spec), memory["seen"]
        shards = [list(batches_of(one.batch)) for one in shards_in(state.batch)]
        found = []
        with state.precision.autocast(state.device):
            for batches in shards:
                cast = [state.precision.cast(batch) for batch in batches]
                new = recompute_batch_norm_statistics(called, cast, seen=seen)
                found.append(batch_norm_statistics(new.model))
        average = {**state.averages[self.name], **mean_over_shards(found, state.batch)}
        seen += len(shards[0])
        state = state.with_average(self.name, average)
        return state.remember(self.name, {**memory, "seen": seen})

    def _warn_if_nothing_is_due(self, state: State) -> State:
        """Warn at the start of training if a run of this length has no update."""
        whole, length = state.max_duration, state.epoch_length
        if whole is None or self.name in state.averages:
            return state
        batch = Time(1, TimeUnit.EPOCH if length is None else TimeUnit.BATCH)
        times = (self.swa_start, self.swa_end, self.update_interval, batch)
        start, end, step, last = (share_of_run(state, time) for time in times)
        if start is None or end is None or step is None or last is None:
            return state
        first = max(1, math.ceil(start / step)) * step
        if first > 1 or first - last >= end:
            warn_user(
                f"{self.name} will average nothing: no multiple of "
                f"update_interval={str(self.update_interval)!r} lies between "
                f"swa_start={str(self.swa_start)!r} and swa_end={str(self.swa_end)!r} of a run of "
                f"{whole}; pass a shorter update_interval, such as '10ba', or a later swa_end.",
                NothingAveragedWarning,
            )
        return state
