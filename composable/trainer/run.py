"""A run: its state, its step, and the parts that are saved with it."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import attrs
from torch import nn

from composable._support.warn import warn_user
from composable.core.control import Control
from composable.core.event import Event
from composable.core.state import FLOPS, State
from composable.core.stateful import Count, SavedFields, Stateful, saved
from composable.core.time import Time, TimeUnit
from composable.data.grouping import each_batch
from composable.distributed.signals import Signals
from composable.engines.engine import Engine
from composable.engines.scaled import LossScaler
from composable.engines.shares import LossShares
from composable.metrics import Evaluator
from composable.optim.learning_rates import LearningRates
from composable.plan.dispatch import Dispatcher
from composable.trainer.evaluated_weights import EvaluatedWeights
from composable.trainer.evaluation import EvaluationLoop
from composable.trainer.guards import NonFiniteGuard, NonFiniteLossError
from composable.trainer.microbatches import Microbatches
from composable.trainer.step import Step, build_step, compose, scheduling
from composable.trainer.training_data import TrainingData

if TYPE_CHECKING:
    from composable.callbacks.speed_monitor import SpeedMonitor
    from composable.resume.manager import CheckpointManager
    from composable.runs.recorder import RunRecorder
    from composable.trainer.train_metrics import TrainMetrics
    from composable.trainer.updates import RunUpdate


class UnsupportedRequestWarning(UserWarning):
    """A callback requested something that this run cannot do."""


class RunCheckpoints(Protocol):
    """The checkpoints of a run, as `Run` and the loop use them."""

    managers: list["CheckpointManager"]

    def describe(self) -> list[dict[str, Any]]: ...
    def save_requested(self, state: State) -> State: ...
    def save_outdated(self, state: State) -> State: ...
    def save_end(self, state: State) -> State: ...
    def roll_back(self, error: NonFiniteLossError) -> State: ...


_ONE_BATCH = Time(1, TimeUnit.BATCH)
_PART = "name of the part in a checkpoint"


@attrs.define(eq=False, kw_only=True)
class Run:
    """What a run consists of. The `Trainer` builds it, and the loop drives it.

    `state` is the state after the last finished batch: an interruption leaves the run there.
    """

    state: State
    rates: LearningRates = attrs.field(metadata={_PART: "rates"})
    data: TrainingData = attrs.field(metadata={_PART: "data"})
    evaluation: EvaluationLoop = attrs.field(metadata={_PART: "evaluation"})
    guard: NonFiniteGuard = attrs.field(metadata={_PART: "guard"})
    loss_scaler: LossScaler = attrs.field(metadata={_PART: "loss_scaler"})
    loss_shares: LossShares = attrs.field(metadata={_PART: "loss_shares"})
    """The shares of the parts of a batch in its loss."""
    microbatches: Microbatches = attrs.field(metadata={_PART: "microbatches"})
    progress: "Progress" = attrs.field(metadata={_PART: "progress"})
    dispatcher: Dispatcher = attrs.field(metadata={_PART: "requests"})
    weights: EvaluatedWeights = attrs.field(metadata={_PART: "weights"}, init=False)
    checkpoints: "RunCheckpoints" = attrs.field(init=False)
    """Saves and restores the run; it composes the first batch."""
    seconds: dict[str, float] = attrs.field(init=False, factory=Counter)
    """What evaluations, checkpoints and waiting for data have taken in this process."""
    log_interval: Time
    iteration_length: int | None
    engine: Engine
    """How the outputs, gradients and steps of the run are computed."""
    signals: Signals = attrs.field(init=False)
    fire: Callable[[Event, State], State] = attrs.field(init=False)
    logs_each_batch: bool = attrs.field(init=False)
    """Whether `log_interval` is one batch, which need not be computed."""
    after_dataloader: Step | None = attrs.field(init=False)
    """Fires the event for each batch of the loader that belongs to the step, if any listens."""
    step: Step = attrs.field(init=False)
    begin_batch: Step | None = attrs.field(init=False)
    """Calls `after_dataloader`, and sets the learning rates of the batch by the schedules."""
    step_schedulers: Step | None = attrs.field(init=False)
    """Steps the PyTorch schedulers that step after each batch."""
    batch_end: Step | None = attrs.field(init=False)
    batch_checkpoint: Step | None = attrs.field(init=False)
    recorders: list["RunRecorder"] = attrs.field(factory=list)
    flops_counter: "SpeedMonitor | None" = None
    train_metrics: "TrainMetrics | None" = None
    updates: "Sequence[RunUpdate]" = ()
    """The updates of each step; none if it has one loss."""
    unlogged: dict[str, Any] = attrs.field(init=False, factory=dict)
    """The last losses of updates since the last row of the log."""

    def __attrs_post_init__(self) -> None:
        self.fire, self.signals = self.dispatcher.fire, self.engine.signals
        self.logs_each_batch = self.log_interval == _ONE_BATCH
        self.weights = EvaluatedWeights(lambda: self.dispatcher.plan)

    def compose(self) -> None:
        """Compose a batch for the plan that the dispatcher has now, and connect its callbacks."""
        self.checkpoints.managers.clear()
        self.recorders.clear()
        self.flops_counter = self.train_metrics = None
        for callback in self.dispatcher.plan.callbacks:
            callback.attach(self)
        self.after_dataloader = self.dispatcher.firing(Event.AFTER_DATALOADER)
        if self.microbatches.groups and self.after_dataloader is not None:
            self.after_dataloader = partial(each_batch(self.fire), Event.AFTER_DATALOADER)
        rates, after = self.rates, self.rates.steps_after_batch()
        set_rates = scheduling(self.dispatcher.firing, [rates.set]) if rates.schedules else None
        begins = self.after_dataloader or set_rates
        self.begin_batch = begins and compose(self.after_dataloader, set_rates)
        self.step_schedulers = scheduling(self.dispatcher.firing, after) if after else None
        self.batch_end = self._firing_joined(Event.BATCH_END)
        self.batch_checkpoint = self._firing_joined(Event.BATCH_CHECKPOINT)
        self.step = build_step(self)

    def _firing_joined(self, event: Event) -> Step | None:
        """Return what fires an event and joins requests, or None if that has no effect."""
        if self.engine.has_shards:
            return partial(self.fire_joined, event)
        return self.dispatcher.firing(event)

    def fire_joined(self, event: Event, state: State) -> State:
        """Fire an event, and let the requests of callbacks be the same on all processes."""
        state = self.fire(event, state)
        self.join_requests(event)
        return state

    @property
    def parts(self) -> dict[str, Stateful]:
        """The parts that a checkpoint saves, by their names in it."""
        fields = (attribute for attribute in attrs.fields(Run) if _PART in attribute.metadata)
        parts = {field.metadata[_PART]: getattr(self, field.name) for field in fields}
        for update in self.updates:
            parts[f"loss_scaler of {update.update.name}"] = update.scaler
            parts[f"loss_shares of {update.update.name}"] = update.shares
        return parts

    def take_training_weights(self) -> None:
        """Let the model hold the weights that are trained; they may have been changed."""
        self.state = self.weights.remove(self.weights.adopt_changes(self.state))

    @contextmanager
    def at_evaluated_weights(self) -> Iterator[None]:
        """Let the model hold the evaluated weights, where these are the best checkpoint's.

        Averages, which change during training, are in a copy of the model.
        """
        if self.weights.installed:
            self.state = self.weights.adopt_changes(self.state)
        within = not self.weights.installed and self.weights.best is not None
        if within:
            self.state = self.weights.install(self.state)
        try:
            yield
        finally:
            if within:
                self.state = self.weights.remove(self.state)

    @property
    def train_dataloader(self) -> Any:
        """The loader of the training data, or the function in its place."""
        return self.data.loader

    @property
    def evaluators(self) -> tuple[Evaluator, ...]:
        """The evaluators, with their loaders."""
        return self.evaluation.evaluators

    @property
    def gradient_factor(self) -> Any:
        """What the gradients of the last step were multiplied by after its last part."""
        return self.engine.shares.factor

    def evaluated_model(self, state: State) -> nn.Module:
        """Return a model with the weights with which the state is evaluated."""
        return self.weights.model(state)

    def check_whole(self, message: str) -> None:
        """Raise a ValueError with a message if each process has a part of the parameters."""
        self.engine.check_whole(message)

    def count_flops_with(self, counter: "SpeedMonitor") -> None:
        """Count floating-point operations with a callback, unless an earlier one does."""
        if self.flops_counter is None and counter.counts(self.state):
            self.flops_counter = counter

    def count_flops(self, counter: "SpeedMonitor", state: State) -> State:
        """Add the floating-point operations of a batch to the run's."""
        flops = counter.flops_of(state)
        return state.remember(FLOPS, (state.flops or 0.0) + flops) if flops else state

    def evaluate_due(self, before: State, state: State, event: Event) -> State:
        """Run the evaluators that are due, or all of them if a callback requested it."""
        requested = self.dispatcher.pop(Control.EVALUATE)
        if requested and not self.evaluators:
            warn_user(
                "a callback requested Control.EVALUATE, which this Trainer cannot do; pass an "
                "eval_dataloader.",
                UnsupportedRequestWarning,
            )
        each, length = self.evaluators, self.iteration_length
        due = [e for e in each if requested or e.is_due(before, state, event, length)]
        return self._evaluate(state, due)

    def evaluate_end(self, state: State) -> State:
        """Run the evaluators at the end of training, except those that have just been run."""
        wanted = [e for e in self.evaluators if e.eval_interval is not None]
        due = [e for e in wanted if not self.evaluation.is_current(e, state)]
        return self._evaluate(state, due)

    def _evaluate(self, state: State, due: list[Evaluator]) -> State:
        began = time.perf_counter()
        state = self.evaluation.run(state, due)
        self.seconds["evaluation"] += time.perf_counter() - began
        return state

    def join_requests(self, event: Event) -> None:
        """Let the requests of the callbacks at an event be the same on all processes."""
        self.engine.join_requests(event, self.dispatcher)

    def interrupt(self, state: State) -> None:
        """End the run after a signal: save a checkpoint first.

        Raises:
            KeyboardInterrupt: The signal was SIGINT.
            Preempted: The signal was SIGTERM.
        """
        if self.checkpoints.managers:
            self.state = self.checkpoints.save_outdated(state)
        raise self.signals.interruption()


@attrs.define(eq=False)
class Progress(SavedFields):
    """The calls of `fit`."""

    requested_duration: Time | None = saved(Time | None, default=None)
    """The `max_duration` of the user, before any algorithm changed it."""
    num_fits: int = saved(Count, default=0)
    """How often training was started, including the fit in progress."""
    fit_in_progress: bool = saved(bool, default=False)
    """Whether a fit was started and has not ended."""
    calls: list[str | None] = saved(list[str | None], factory=list)
    """The `duration` of each call of `fit` that the script has made."""
    of_call: bool = saved(bool, default=False)
    """Whether the state has the length of a call with a duration, not the run's."""
    whole: Time | None = None
    """The length of the run: the user's, or what an algorithm made of it."""
    _repeated: int | None = None
    """How many of `calls` a restarted script has repeated; None for another script."""

    def resume(self, *, restart: bool) -> None:
        """Expect the calls of a restarted script, or of another script."""
        self._repeated = 0 if restart else None
        if not restart:
            self.calls = []

    def repeats(self, duration: Time | None) -> bool:
        """Return whether a call of `fit` is one that the script made before it was restarted."""
        at = len(self.calls) if self._repeated is None else self._repeated
        self._repeated = None
        if self.calls[at : at + 1] != [_text(duration)]:
            del self.calls[at:]  # another script's
            return False
        self._repeated = at + 1
        return True

    @property
    def has_ended(self) -> bool:
        """Whether the call of `fit` that was just repeated had ended."""
        return not self.fit_in_progress or self._repeated != len(self.calls)

    def add_call(self, duration: Time | None) -> None:
        """Record a call of `fit`."""
        self.calls.append(_text(duration))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the calls of `fit`; a changed `max_duration` of the user stays."""
        super().load_state_dict({**state, "requested_duration": self.requested_duration})


def _text(duration: Time | None) -> str | None:
    return None if duration is None else str(duration)
