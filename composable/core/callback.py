"""Observers of training."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from inspect import signature
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from torch import nn

from composable._other_trainers import explain_arguments
from composable._support.notes import add_origin_note
from composable._support.warn import warn_user
from composable.core.control import Control
from composable.core.event import Event
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.time import Time

Self = TypeVar("Self", bound="Callback")

# Per context, not per process: callbacks that one thread enters don't observe other threads.
_entered: ContextVar[tuple["Callback", ...]] = ContextVar("entered_callbacks", default=())


class AttachedRun(Protocol):
    """What a callback may ask of a run, besides the state."""

    @property
    def train_dataloader(self) -> Iterable[Any] | None:
        """The loader of the training data, not yet divided among processes."""

    @property
    def evaluators(self) -> tuple[Any, ...]:
        """The evaluators, each with its loader."""

    @property
    def loss_scaler(self) -> Any:
        """The loss scaler: the tensor `scale`, and `num_skipped`, the number of skipped steps."""

    @property
    def gradient_factor(self) -> Any:
        """What the gradients of the last step were multiplied by after its last part."""

    @property
    def checkpoints(self) -> Any:
        """How the run is saved: `managers`, a list to which a callback adds its manager."""

    @property
    def recorders(self) -> list[Any]:
        """What records the run: its beginning and its end."""

    def count_flops_with(self, counter: Any, /) -> None:
        """Count floating-point operations with a callback, unless an earlier one does."""

    def evaluated_model(self, state: State, /) -> nn.Module:
        """Return a model with the weights with which a state is evaluated, to be read only."""

    def check_whole(self, message: str, /) -> None:
        """Raise a ValueError with a message if each process has a part of the parameters."""


class Callback:
    """An observer of training: it reads the state, logs metrics and makes requests.

    A subclass defines a method `(state, logger)` for each event that it observes, named like the
    event in lower case. Or it defines `run_event(event, state, logger)`, which is called at every
    event and replaces these methods. A method returns None or a `Control`. Attributes that are
    named like an event but aren't callable are ignored.

    State that a resumed run needs is returned by `state_dict` and restored by `load_state_dict`.

    `with callback:` adds the callback to every Trainer that is called inside the block: see
    `register_global_callback`.

    Example:
        >>> from composable import Callback, Control
        >>> class EpochMonitor(Callback):
        ...     def epoch_start(self, state, logger):
        ...         print(f"Epoch: {state.timestamp.epoch}")
        >>> class StopEarly(Callback):
        ...     def batch_end(self, state, logger):
        ...         return Control.STOP if state.timestamp.batch == 3 else None
        >>> class LowestLoss(Callback):
        ...     lowest = float("inf")
        ...
        ...     def eval_after_all(self, state, logger):
        ...         self.lowest = min(self.lowest, state.metrics["eval"]["loss"])
        ...
        ...     def state_dict(self):
        ...         return {"lowest": self.lowest}
        ...
        ...     def load_state_dict(self, state):
        ...         self.lowest = state["lowest"]
    """

    _saved_attributes: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """The attributes that are its state, each with the type of its value: see `check_type`."""

    records_run: ClassVar[bool] = False
    """Whether it records the run, as a `RunRecorder`, so that the `Trainer` adds none."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        explain_arguments(cls)

    @property
    def name(self) -> str:
        """The name in the plan and in error messages."""
        return type(self).__name__

    def __repr__(self) -> str:
        """Return the class, with the arguments that are kept and are not the defaults."""
        from composable._support.secrets import redact  # on use

        kept, shown = getattr(self, "__dict__", {}), []
        for name, argument in signature(type(self)).parameters.items():
            value = kept.get(name, kept.get(f"_{name}", argument.default))
            value = str(value) if isinstance(value, (PurePath, Time)) else value
            if isinstance(value, (int, float, str)) and value != argument.default:
                shown.append(f"{name}={redact({name: value})[name]!r}")
        return f"{self.name}({', '.join(shown)})"

    def run_event(self, event: Event, state: State, logger: Logger) -> Control | None:
        """Handle any event; by default, call the method that is named like the event."""
        hook = getattr(self, event.value, None)
        return hook(state, logger) if callable(hook) else None

    if TYPE_CHECKING:  # for editors and type checkers: at run time, a subclass has those it defines

        def init(self, state: State, logger: Logger, /) -> Control | None: ...
        def before_load(self, state: State, logger: Logger, /) -> Control | None: ...
        def after_load(self, state: State, logger: Logger, /) -> Control | None: ...
        def fit_start(self, state: State, logger: Logger, /) -> Control | None: ...
        def iteration_start(self, state: State, logger: Logger, /) -> Control | None: ...
        def epoch_start(self, state: State, logger: Logger, /) -> Control | None: ...
        def before_dataloader(self, state: State, logger: Logger, /) -> Control | None: ...
        def after_dataloader(self, state: State, logger: Logger, /) -> Control | None: ...
        def batch_start(self, state: State, logger: Logger, /) -> Control | None: ...
        def before_train_batch(self, state: State, logger: Logger, /) -> Control | None: ...
        def before_forward(self, state: State, logger: Logger, /) -> Control | None: ...
        def after_forward(self, state: State, logger: Logger, /) -> Control | None: ...
        def before_loss(self, state: State, logger: Logger, /) -> Control | None: ...
        def after_loss(self, state: State, logger: Logger, /) -> Control | None: ...
        def before_backward(self, state: State, logger: Logger, /) -> Control | None: ...
        def after_backward(self, state: State, logger: Logger, /) -> Control | None: ...
        def after_train_batch(self, state: State, logger: Logger, /) -> Control | None: ...
        def before_optimizer_step(self, state: State, logger: Logger, /) -> Control | None: ...
        def after_optimizer_step(self, state: State, logger: Logger, /) -> Control | None: ...
        def before_zero_grad(self, state: State, logger: Logger, /) -> Control | None: ...
        def after_zero_grad(self, state: State, logger: Logger, /) -> Control | None: ...
        def before_scheduler_step(self, state: State, logger: Logger, /) -> Control | None: ...
        def after_scheduler_step(self, state: State, logger: Logger, /) -> Control | None: ...
        def batch_end(self, state: State, logger: Logger, /) -> Control | None: ...
        def log(self, state: State, logger: Logger, /) -> Control | None: ...
        def eval_before_all(self, state: State, logger: Logger, /) -> Control | None: ...
        def eval_standalone_start(self, state: State, logger: Logger, /) -> Control | None: ...
        def eval_start(self, state: State, logger: Logger, /) -> Control | None: ...
        def eval_batch_start(self, state: State, logger: Logger, /) -> Control | None: ...
        def eval_before_forward(self, state: State, logger: Logger, /) -> Control | None: ...
        def eval_after_forward(self, state: State, logger: Logger, /) -> Control | None: ...
        def eval_batch_end(self, state: State, logger: Logger, /) -> Control | None: ...
        def eval_end(self, state: State, logger: Logger, /) -> Control | None: ...
        def eval_standalone_end(self, state: State, logger: Logger, /) -> Control | None: ...
        def eval_after_all(self, state: State, logger: Logger, /) -> Control | None: ...
        def batch_checkpoint(self, state: State, logger: Logger, /) -> Control | None: ...
        def before_save(self, state: State, logger: Logger, /) -> Control | None: ...
        def after_save(self, state: State, logger: Logger, /) -> Control | None: ...
        def epoch_end(self, state: State, logger: Logger, /) -> Control | None: ...
        def epoch_checkpoint(self, state: State, logger: Logger, /) -> Control | None: ...
        def iteration_end(self, state: State, logger: Logger, /) -> Control | None: ...
        def iteration_checkpoint(self, state: State, logger: Logger, /) -> Control | None: ...
        def fit_end(self, state: State, logger: Logger, /) -> Control | None: ...
        def predict_start(self, state: State, logger: Logger, /) -> Control | None: ...
        def predict_batch_start(self, state: State, logger: Logger, /) -> Control | None: ...
        def predict_before_forward(self, state: State, logger: Logger, /) -> Control | None: ...
        def predict_after_forward(self, state: State, logger: Logger, /) -> Control | None: ...
        def predict_batch_end(self, state: State, logger: Logger, /) -> Control | None: ...
        def predict_end(self, state: State, logger: Logger, /) -> Control | None: ...

    def attach(self, run: AttachedRun) -> None:
        """Receive the run before each call of a Trainer, if the state is not enough."""

    def close(self) -> None:
        """Release files and screens: called when `fit`, `eval` or `predict` ends or fails."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs: plain containers and tensors.

        It is saved in every checkpoint. By default it is empty.
        """
        return {_entry(name): copy.deepcopy(getattr(self, name)) for name in self._saved_attributes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned.

        Raises:
            ValueError: `state` is not one that `state_dict` returns, or isn't empty and this class
                doesn't override the method.
        """
        attributes = self._saved_attributes
        if not attributes:
            if not state:
                return
            raise ValueError(
                f"{self.name} was given the state {sorted(state)}, but has none: was it saved by "
                "another callback? A class that defines state_dict must define load_state_dict too."
            )
        check_state(self, state, {_entry(name): kind for name, kind in attributes.items()})
        for name in attributes:
            setattr(self, name, copy.deepcopy(state[_entry(name)]))

    def __enter__(self: Self) -> Self:
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        # ContextVar.reset would need blocks to end in the reverse order of their beginnings, and
        # generators can end them in any order: so each block removes its own entry.
        entered = list(_entered.get())
        for i in reversed(range(len(entered))):
            if entered[i] is self:
                del entered[i]
                break
        _entered.set(tuple(entered))


class FunctionCallback(Callback):
    """A plain function `(event, state, logger) -> Control | None` as a callback."""

    def __init__(self, function: Callable[[Event, State, Logger], Control | None]) -> None:
        self.function = function

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def run_event(self, event: Event, state: State, logger: Logger) -> Control | None:
        """Call the function."""
        return self.function(event, state, logger)


def _entry(attribute: str) -> str:
    """Return the name of an attribute in the state."""
    return attribute.removeprefix("_")


def check_state(callback: Callback, state: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Check that a saved state has the same keys as the callback's state, and their types.

    Raises:
        ValueError: The keys differ, or a value has another type.
    """
    from composable.core.stateful import check_type  # on use

    own = callback.state_dict().keys()
    if state.keys() != own:
        raise ValueError(
            f"{callback.name} was given the state {sorted(state)}, and its own has {sorted(own)}: "
            "was it saved by another callback?"
        )
    for name, kind in kinds.items():
        check_type(state[name], kind, name)


def hooks_of(callback: Callback) -> dict[Event, Callable[..., Any]]:
    """Return the `(state, logger)` functions of a callback, by event."""
    if type(callback).run_event is not Callback.run_event:
        return {event: partial(callback.run_event, event) for event in Event}
    hooks = {event: getattr(callback, event.value, None) for event in Event}
    return {event: hook for event, hook in hooks.items() if callable(hook)}  # data has such names


def callback_id(callback: Callback) -> int:
    """Return the identity of a callback; a function keeps its identity however it is wrapped."""
    return id(callback.function if isinstance(callback, FunctionCallback) else callback)


def entered_callbacks() -> tuple[Callback, ...]:
    """Return the callbacks whose `with` blocks are active here, the outermost first."""
    return _entered.get()


@contextmanager
def closing(callbacks: Iterable[Callback], *, at_the_end: bool = True) -> Iterator[None]:
    """Close every callback once when the block ends or fails, and raise the first error.

    Args:
        callbacks: The callbacks to close.
        at_the_end: Whether to close them if the block ends without an error too.

    Example:
        >>> from composable.core.callback import Callback, closing
        >>> class Door(Callback):
        ...     def close(self):
        ...         print("closed")
        >>> with closing([Door()]):
        ...     print("open")
        open
        closed
    """
    first: BaseException | None = None
    try:
        yield
    except BaseException as error:
        first = error
    if first is not None or at_the_end:
        for callback in callbacks:
            first = _close(callback, first)
    if first is not None:
        raise first


def _close(callback: Callback, first: BaseException | None) -> BaseException | None:
    try:
        callback.close()
    except BaseException as error:  # an interrupt must not keep the others from being closed
        add_origin_note(error, callback, "close")
        if first is None:
            return error
        warn_user(f"{callback.name} could not be closed: {error}", UserWarning)
    return first
