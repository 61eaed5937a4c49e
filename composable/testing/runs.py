"""Record runs of an algorithm on a small problem, and compare them."""

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from composable._support.tree import tensors_of
from composable.core.algorithm import Algorithm, Stage
from composable.core.callback import Callback
from composable.core.control import Control
from composable.core.event import Event
from composable.core.logger import Logger
from composable.core.state import State
from composable.plan.effects import fingerprint
from composable.testing.modules import same_values
from composable.trainer.trainer import Trainer, training_weights

_ALL = list(Event)
STEP = _ALL[_ALL.index(Event.AFTER_DATALOADER) : _ALL.index(Event.BATCH_END) + 1]
"""The events of a training step."""

_LOOP_ACTED = {
    Event.AFTER_DATALOADER,
    Event.AFTER_FORWARD,
    Event.AFTER_LOSS,
    Event.AFTER_BACKWARD,
    Event.AFTER_OPTIMIZER_STEP,
    Event.BATCH_END,
}

_PLAIN = (bool, int, float, complex, str, bytes, type(None))

Acting = Callable[[Algorithm, Event, State], State]


@attrs.frozen
class Violation:
    """How a law is violated: the observation, the event, and the field or tensor."""

    what: str
    event: Event | None = None
    where: str | None = None


@attrs.frozen(eq=False)
class Moment:
    """The contents of the state at an event."""

    event: Event
    batch: int
    held: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.event.name} of batch {self.batch}"


Trace = list[Moment]


class Recorder(Callback):
    """Copies the contents of the state, at some events of every training step."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.stale = {event: _stale(event) for event in STEP if event in events}
        self.trace: Trace = []

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        """Copy the contents of the state."""
        if event in self.stale:
            batch = (state.previous_timestamp if event.counts_batch else state.timestamp).batch
            stale = self.stale[event]
            held = {path: v for path, v in contents(state).items() if not path.startswith(stale)}
            self.trace.append(Moment(event, batch, held))


def _stale(event: Event) -> tuple[str, ...]:
    """Return the fields that still hold values of an earlier step at this event."""
    stale = ["state.metrics"]  # evaluations also happen between the parts of a run
    if STEP.index(event) < STEP.index(Event.AFTER_FORWARD):
        stale.append("state.outputs")
    if STEP.index(event) < STEP.index(Event.AFTER_LOSS):
        stale.append("state.loss")
    return tuple(stale)


class StopAfter(Callback):
    """Stops the run after a number of batches."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def batch_end(self, state: State, logger: Logger) -> Control | None:
        """Request a stop."""
        return Control.STOP if state.timestamp.batch == self.batches else None


def contents(state: State) -> dict[str, Any]:
    """Copy the tensors and plain values of a state, by path."""
    held = {path: copied(value) for path, (value, _) in fingerprint(state).items()}
    counts = attrs.asdict(state.timestamp)
    held |= {
        f"state.timestamp.{name}": count
        for name, count in counts.items()
        # Seconds differ between runs; and an iteration is a fit unless its length is given.
        if "wct" not in name and "iteration" not in name
    }
    held["state.max_duration"] = str(state.max_duration)
    return held


def copied(value: Any) -> Any:
    """Copy a tensor; return a plain value itself, and the class name of anything else."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value if isinstance(value, _PLAIN) else type(value).__name__


def difference(ours: Trace, theirs: Trace, context: str, *, ignoring: str = "") -> Violation | None:
    """Return the first difference between two runs, if any, introduced by `context`.

    Paths that hold `ignoring` may differ.
    """
    for mine, other in zip_longest(ours, theirs):
        if mine is None or other is None:
            there = mine or other
            return Violation(
                f"{context}one run continues with {there}, but the other has ended", there.event
            )
        if (mine.event, mine.batch) != (other.event, other.batch):
            what = f"{context}one run is at {mine}, but the other is at {other}"
            return Violation(what, mine.event)
        for path in sorted(mine.held.keys() | other.held.keys(), key=_outside_in):
            how = _unlike(path, mine.held, other.held)
            if how and not (ignoring and ignoring in path):
                return Violation(f"{context}{path} {how} at {mine}", mine.event, path)
    return None


def _outside_in(path: str) -> tuple[int, str]:
    """Sort weights last, because their difference follows from an earlier one."""
    return (1 if path.startswith(("state.model", "state.optimizers")) else 0, path)


def _unlike(path: str, mine: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    if path not in mine or path not in other:
        return "exists in only one run"
    a, b = mine[path], other[path]
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        same = type(a) is type(b) and (a == b or (a != a and b != b))
        return None if same else f"is {a!r} in one run and {b!r} in the other"
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"is {a.dtype} {list(a.shape)} in one run and {b.dtype} {list(b.shape)} in the other"
    if same_values(a, b):
        return None
    return f"differs by up to {float((a.double() - b.double()).abs().max()):.3g}"


# --- probes: algorithms that show whether another one disturbs them ---


@attrs.frozen(repr=False)
class Draws(Algorithm):
    """Changes nothing, and stores a random number of each batch."""

    name: str = attrs.field(default="some draws", kw_only=True)

    events = frozenset({Event.BATCH_START})
    reads = frozenset({"key", "timestamp", "memory"})
    writes = frozenset({"memory"})

    def apply(self, event: Event, state: State) -> State:
        """Store a random number."""
        number = float(torch.rand((), generator=state.generator(self.name)))
        drawn = {**state.memory.get(self.name, {}), str(state.timestamp.batch): number}
        return state.remember(self.name, drawn)


@attrs.frozen(repr=False)
class Jitter(Algorithm):
    """Scales floating-point inputs of each batch by a random number."""

    name: str = attrs.field(default="some scaling", kw_only=True)

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.AUGMENT
    reads = frozenset({"batch", "key", "timestamp"})
    writes = frozenset({"batch"})

    def apply(self, event: Event, state: State) -> State:
        """Scale the inputs."""
        inputs = state.inputs
        if not (isinstance(inputs, Tensor) and inputs.is_floating_point()):
            return state
        factor = 1 + 0.1 * float(torch.rand((), generator=state.generator(self.name)))
        return state.with_batch(inputs=inputs * factor)


@attrs.frozen(repr=False)
class Noise(Algorithm):
    """Adds noise to the gradients."""

    name: str = attrs.field(default="some noise", kw_only=True)

    events = frozenset({Event.BEFORE_OPTIMIZER_STEP})
    stage = Stage.GRADIENTS
    reads = frozenset({"gradients", "key", "timestamp"})
    writes = frozenset({"gradients"})

    def apply(self, event: Event, state: State) -> State:
        """Add noise to the gradients."""
        generator = state.generator(self.name)
        noisy = {
            name: grad + 0.01 * torch.randn(grad.shape, generator=generator).to(grad)
            for name, grad in state.current_gradients().items()
        }
        return state.evolve(gradients=noisy)


# --- a case ---


@attrs.define(eq=False, slots=False)
class Case:
    """An algorithm and the small problem on which it is tested."""

    algorithm: Algorithm
    model: Callable[[], nn.Module]
    lone_model: Callable[[], nn.Module]
    """A model in which examples do not interact."""
    dataloader: Iterable[Any]
    loss_fn: Callable[[Any, Any], Tensor] | None
    microbatches: bool = False
    options: Mapping[str, Any] = attrs.field(factory=dict)
    no_effect: str = ""
    """Why it changes no result, if it changes none: it only saves time, say."""
    pristine: Algorithm = attrs.field(
        init=False, default=attrs.Factory(lambda self: copy.deepcopy(self.algorithm), True)
    )
    """A copy of the algorithm, made before its first run."""

    def fresh(self) -> Algorithm:
        """Return a new copy of the algorithm from before its first run."""
        return copy.deepcopy(self.pristine)

    def trainer(self, *algorithms: Any, **changes: Any) -> Trainer:
        """Build a trainer with these algorithms."""
        arguments = {
            "model": None,
            "train_dataloader": self.dataloader,
            "eval_dataloader": self.dataloader,
            "loss_fn": self.loss_fn,
            "optimizers": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
            "max_duration": "4ep",
            "progress_bar": False,
            "device": "cpu",
            "seed": 17,
            **self.options,
            **changes,
        }
        if arguments["model"] is None:
            arguments["model"] = self.model()
        return Trainer(algorithms=list(algorithms), **arguments)

    def recorder(self) -> Recorder:
        """Build a recorder for the events at which the loop or the algorithm may change state."""
        return Recorder({*_LOOP_ACTED, *self.algorithm.events})

    def run(self, *algorithms: Any, stop: int | None = None, **changes: Any) -> Trace:
        """Record a run with these algorithms; a run that is stopped is continued."""
        callbacks: list[Callback] = [recorder := self.recorder()]
        if stop is not None:
            callbacks.append(StopAfter(stop))
        trainer = self.trainer(*algorithms, callbacks=callbacks, **changes)
        trainer.fit()
        if stop is not None:
            trainer.fit()
        return self.ended(trainer, recorder.trace)

    def ended(self, trainer: Trainer, trace: Trace) -> Trace:
        """Extend a trace by the final state, and the predictions."""
        outputs = tensors_of(trainer.predict(self.dataloader))
        predictions = {f"predictions[{i}]": copied(output) for i, output in enumerate(outputs)}
        with training_weights(trainer):
            held = {**contents(trainer.state), **predictions}
        return [*trace, Moment(Event.FIT_END, trainer.state.timestamp.batch, held)]

    @cached_property
    def base(self) -> Trace:
        """The trace of the run with the algorithm."""
        return self.run(self.algorithm)

    @cached_property
    def without(self) -> Trace:
        """The trace of the run without it."""
        return self.run()

    @property
    def batches(self) -> int:
        """The number of batches in the run."""
        return self.base[-1].batch

    def around(self, act: Acting) -> Callable[[Event, State], State]:
        """Return a function that replaces the algorithm, and calls it through `act`."""

        def acting(event: Event, state: State) -> State:
            return act(self.algorithm, event, state) if event in self.algorithm.events else state

        acting.writes = self.algorithm.writes  # type: ignore[attr-defined]
        return acting
