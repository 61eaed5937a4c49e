"""The state of a training run, as a value."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from composable.core.batch import BatchSpec
from composable.core.key import Key
from composable.core.time import Time, Timestamp, elapsed, reached

__all__ = ["FrozenStateError", "State"]

_EMPTY: Mapping[str, Any] = MappingProxyType({})


def _read_only(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """A mapping that nobody can change: not through itself, nor through what it was made from."""
    return MappingProxyType({name: _frozen(value) for name, value in mapping.items()})


def _frozen(value: Any) -> Any:
    return _read_only(value) if isinstance(value, dict) else value


def _as_time(value: Any) -> Time | None:
    return None if value is None else Time.parse(value)


def _as_gradients(value: Any) -> Mapping[str, Tensor] | None:
    return None if value is None else MappingProxyType(dict(value))


class FrozenStateError(attrs.exceptions.FrozenInstanceError):
    """Something tried to assign to a `State`."""

    def __init__(self, message: str) -> None:
        AttributeError.__init__(self, message)  # attrs' own takes no message
        self.msg = message


@attrs.frozen(slots=False, eq=False, repr=False)
class State:
    """Everything that a run consists of, frozen.

    `state.evolve(field=value)` gives another state; nothing changes this one. The leaves are
    PyTorch's own and are updated in place in four places only: `backward` writes gradients,
    `optimizer.step` writes parameters, normalisation layers write their running statistics, and
    the parameters in `frozen` require no gradient for the time of a step.

    Example:
        >>> from composable import State
        >>> state = State(model=torch.nn.Linear(2, 1))
        >>> state.evolve(loss=torch.tensor(0.5)).loss
        tensor(0.5000)
        >>> state.loss is None
        True
        >>> state.loss = torch.tensor(0.5)
        Traceback (most recent call last):
            ...
        composable.core.state.FrozenStateError: State is frozen: state.loss can't be assigned...
    """

    model: nn.Module
    """The model that is trained."""
    loss_fn: Callable[[Any, Any], Tensor] | None = None
    """`loss_fn(outputs, batch)`: the loss of a batch."""
    optimizers: tuple[Optimizer, ...] = ()
    schedulers: tuple[Any, ...] = ()
    batch: Any = None
    """The batch at hand."""
    outputs: Any = None
    """What the model made of it (of its last microbatch)."""
    loss: Tensor | None = None
    """Its loss, detached but between `AFTER_LOSS` and the backward pass."""
    gradients: Mapping[str, Tensor] | None = attrs.field(default=None, converter=_as_gradients)
    """Gradients by parameter name that replace the parameters' `.grad` at the optimizer's step."""
    frozen: frozenset[str] = frozenset()
    """Names of the parameters that this batch doesn't train, from `BEFORE_TRAIN_BATCH` on; empty
    between two batches."""
    second_pass: Callable[["State"], Mapping[str, Tensor]] | None = None
    """Asks the loop, for one batch, to compute the gradients once more, with other weights: a
    function of the state after the first pass that gives these weights, by parameter name. Set it
    at `BEFORE_TRAIN_BATCH`."""
    lr_override: Callable[[Any], Any] | None = None
    """Asks the loop, for one step, to use other learning rates: a function of the rate that a
    group of parameters has. Set it at `BEFORE_OPTIMIZER_STEP`."""
    timestamp: Timestamp = Timestamp()
    previous_timestamp: Timestamp = Timestamp()
    """The timestamp before the last finished batch: when that batch began."""
    max_duration: Time | None = attrs.field(default=None, converter=_as_time)
    epoch_length: int | None = None
    """Batches in an epoch, or None where it isn't known."""
    key: Key = Key(0)
    """What all randomness of the run is derived from."""
    memory: Mapping[str, Any] = attrs.field(default=_EMPTY, converter=_read_only)
    """What algorithms remember, by their names."""
    metrics: Mapping[str, Mapping[str, float]] = attrs.field(default=_EMPTY, converter=_read_only)
    """The results of the last evaluation, by evaluator and metric."""
    device: torch.device = torch.device("cpu")
    batch_spec: BatchSpec = BatchSpec()
    """Which part of the batch is the input and which is the target."""
    model_takes_batch: bool = False
    """Whether the model is called with the whole batch instead of its input."""

    def evolve(self, **changes: Any) -> "State":
        """This state with some fields changed.

        Raises:
            TypeError: There is no such field.
        """
        for name in changes:
            if name in _CONVERTERS:
                changes[name] = _CONVERTERS[name](changes[name])
        fields = self.__dict__ | changes  # measured: with many fields a third faster than {**, **}
        if len(fields) != _COUNT:
            unknown = sorted(changes.keys() - _FIELDS)
            raise TypeError(f"State has no field {unknown}: it has {sorted(_FIELDS)}.")
        new: State = _new(State)  # measured: a third of the cost of the generated constructor
        _set(new, "__dict__", fields)
        return new

    def evolve_unchecked(self, **changes: Any) -> "State":
        """Do what `evolve` does, for fields that exist and need no conversion.

        The loop uses it at every step. Do not pass `memory`, `metrics`, `gradients` (other than
        None) or `max_duration`: they would not be made read-only.
        """
        new: State = _new(State)
        _set(new, "__dict__", self.__dict__ | changes)
        return new

    @property
    def inputs(self) -> Any:
        """The input part of the batch."""
        return self.batch_spec.inputs(self.batch)

    @property
    def targets(self) -> Any:
        """The target part of the batch."""
        return self.batch_spec.targets(self.batch)

    def with_batch(self, **parts: Any) -> "State":
        """This state with `inputs=` or `targets=` of its batch replaced."""
        return self.evolve(batch=self.batch_spec.replace(self.batch, **parts))

    def forward(self) -> Any:
        """Call the model on the batch."""
        return self.model(
            self.batch if self.model_takes_batch else self.batch_spec.inputs(self.batch)
        )

    def remember(self, name: str, value: Any) -> "State":
        """This state with `value` in the memory under `name`: plain containers and tensors."""
        return self.evolve(memory={**self.memory, name: value})

    def current_gradients(self) -> Mapping[str, Tensor]:
        """The gradients that the optimizers will see, by parameter name."""
        if self.gradients is not None:
            return self.gradients
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        held = {id(parameter) for group in groups for parameter in group["params"]}
        return {
            name: parameter.grad
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None and (id(parameter) in held or not groups)
        }

    def generator(self, *who: str | int) -> torch.Generator:
        """A CPU generator that depends on the seed, `who` and the batch number alone."""
        return self.key.fold(*who, self.timestamp.batch).generator()

    @property
    def elapsed(self) -> float:
        """The fraction of the run that is done."""
        return elapsed(self)

    def reached(self, time: "Time | str | int") -> bool:
        """Whether `time` of the run is done."""
        return reached(self, Time.parse(time))

    def __repr__(self) -> str:
        now = self.timestamp
        return (
            f"<State of {type(self.model).__name__}: epoch {now.epoch}, batch {now.batch}, "
            f"max_duration {self.max_duration}, memory {sorted(self.memory)}>"
        )


_new = object.__new__
_set = object.__setattr__
_FIELDS = frozenset(field.name for field in attrs.fields(State))
_COUNT = len(_FIELDS)
_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "memory": _read_only,
    "metrics": _read_only,
    "gradients": _as_gradients,
    "max_duration": _as_time,
}


def _refuse_assignment(self: State, name: str, value: object = None) -> None:
    raise FrozenStateError(
        f"State is frozen: state.{name} can't be assigned. "
        f"Return state.evolve({name}=...) from your algorithm instead."
    )


State.__setattr__ = _refuse_assignment  # type: ignore[method-assign, assignment]
State.__delattr__ = _refuse_assignment  # type: ignore[method-assign, assignment]
