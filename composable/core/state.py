"""The immutable state of a training run."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from composable._other_trainers import STATE, explain_attribute
from composable._support.checks import as_path
from composable.batches.model_call import ModelCall, call_with_input, explain_batch, explain_dtype
from composable.batches.precision import Precision
from composable.batches.spec import BatchSpec
from composable.core.key import Key
from composable.core.results import Results
from composable.core.time import Time, Timestamp, check_time, elapsed, reached

FLOPS = "flops"
"""The entry of the memory that has the floating-point operations so far."""

_EMPTY: Mapping[str, Any] = MappingProxyType({})


def _read_only(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """Copy a mapping into a read-only one, recursively."""
    return MappingProxyType({name: _frozen(value) for name, value in mapping.items()})


def _frozen(value: Any) -> Any:
    return _read_only(value) if isinstance(value, dict) else value


def _copied(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(mapping))


def _plain(value: Any) -> Any:
    """Convert read-only mappings to dictionaries, recursively."""
    if isinstance(value, MappingProxyType):
        return {name: _plain(held) for name, held in value.items()}
    return value


def _as_time(value: Any) -> Time | None:
    return None if value is None else check_time("max_duration", value)


def _check_mapping(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}={value!r} must be a mapping, by name.")


def _mapping(
    name: str, convert: Callable[[Any], Mapping[str, Any]] = _read_only
) -> Callable[[Any], Any]:
    def converter(value: Any) -> Mapping[str, Any]:
        _check_mapping(name, value)
        return convert(value)

    return converter


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "memory": _mapping("memory"),
    "averages": _mapping("averages"),
    "metrics": _mapping("metrics", lambda value: MappingProxyType(Results(_read_only(value)))),
    "gradients": attrs.converters.optional(_mapping("gradients", _copied)),
    "to_log": _mapping("to_log", _copied),
    "losses": _mapping("losses", _copied),
    "replaced_modules": _mapping("replaced_modules"),
    "max_duration": _as_time,
}


def _convert(_: type, fields: list[Any]) -> list[Any]:
    return [field.evolve(converter=_CONVERTERS.get(field.name)) for field in fields]


class FrozenStateError(attrs.exceptions.FrozenInstanceError):
    """A field of a `State` was assigned to."""

    def __init__(self, message: str) -> None:
        AttributeError.__init__(self, message)  # attrs' own takes no message
        self.msg = message


@attrs.frozen(slots=False, eq=False, repr=False, field_transformer=_convert)
class State:
    """The complete state of a run, immutable.

    `state.evolve(field=value)` returns another state; nothing changes this one. Models, optimizers
    and tensors are PyTorch's objects. They are updated in place in four cases only: `backward`
    writes gradients, `optimizer.step` writes parameters, normalization layers write their running
    statistics, and the parameters in `frozen` require no gradient during a step.

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
    """The current batch."""
    outputs: Any = None
    """The outputs of the model, from `AFTER_FORWARD` on. A batch that is split has them for each of
    its parts, up to `AFTER_BACKWARD`; they are not kept, and reading them later is an error."""
    loss: Tensor | None = None
    """The loss of the batch. It is attached to the autograd graph only between `AFTER_LOSS` and the
    backward pass."""
    gradients: Mapping[str, Tensor] | None = None
    """Gradients by parameter name; they replace the parameters' `.grad` at the optimizer step."""
    frozen: frozenset[str] = frozenset()
    """Names of the parameters that are not trained on this batch, from `BEFORE_TRAIN_BATCH` on.
    Empty between batches."""
    second_pass: Callable[["State"], Mapping[str, Tensor]] | None = None
    """Requests a second forward and backward pass over this batch, at other weights: a function of
    the state after the first pass that returns these weights by parameter name. Set it at
    `BEFORE_TRAIN_BATCH`."""
    whole_loss: bool = False
    """Requests that the loss of a batch that is split be computed once, of the outputs for all of
    its parts. Set it at `BEFORE_TRAIN_BATCH`."""
    update: str | None = None
    """The update in progress, in a run with `updates`: its optimizer is the only one then."""
    losses: Mapping[str, Tensor] = _EMPTY
    """The losses of the updates that were taken in this batch, by name, and the terms that they
    return: `losses["generator"]`, `losses["discriminator/real"]`."""
    lr_override: Callable[[Any], Any] | None = None
    """Overrides the learning rates of this step: a function of the learning rate of a parameter
    group. Set it at `BEFORE_OPTIMIZER_STEP`."""
    timestamp: Timestamp = Timestamp()
    previous_timestamp: Timestamp = Timestamp()
    """The timestamp at the beginning of the last finished batch."""
    max_duration: Time | None = attrs.field(default=None, converter=_as_time)
    epoch_length: int | None = None
    """Batches in an epoch, or None if unknown."""
    key: Key = Key(0)
    """The key from which all randomness of the run is derived."""
    memory: Mapping[str, Any] = _EMPTY
    """The values that algorithms keep between calls, by their names."""
    averages: Mapping[str, Mapping[str, Tensor]] = _EMPTY
    """Averages of the weights, by the names of the algorithm and the tensor; in float32 for 16-bit
    weights. The model holds the weights that are trained."""
    metrics: Mapping[str, Mapping[str, float]] = _EMPTY
    """The results of the last evaluation, by evaluator and metric: `metrics["eval"]["accuracy"]`,
    or by the name under which it is logged, `metrics["metrics/eval/accuracy"]`."""
    device: torch.device = torch.device("cpu")
    batch_spec: BatchSpec = BatchSpec()
    """Which part of the batch is the input and which is the target."""
    model_call: ModelCall = call_with_input
    """How the model is called: with the input of the batch, with the whole batch, or with its
    entries as keyword arguments. See `composable.batches.model_call`."""
    precision: Precision = Precision()
    """The dtypes in which the model and the loss are computed. An algorithm that calls the model
    itself does so within `state.precision.autocast(state.device)`."""
    loss_module: nn.Module | None = None
    """The module that computes the loss, if `loss_fn` is one: its parameters and buffers are
    trained and saved like the model's. Its gradients are clipped and perturbed with the model's;
    other algorithms change or average the parameters of the model only."""
    to_log: Mapping[str, Any] = _EMPTY
    """What an algorithm logs with `log`. It is logged after the algorithms of an event, and empty
    otherwise."""
    replaced_modules: Mapping[str, Mapping[str, int]] = _EMPTY
    """How many modules each algorithm replaced before training, by its name and their class. The
    loggers get it as hyperparameters."""

    def evolve(self, **changes: Any) -> "State":
        """Return this state with some fields replaced.

        Raises:
            TypeError: There is no such field.
        """
        for name in changes:
            if name in _CONVERTERS:
                changes[name] = _CONVERTERS[name](changes[name])
        fields = self.__dict__ | changes  # measured: with many fields a third faster than {**, **}
        odd = len(fields) != _COUNT or "outputs" not in fields
        if odd and (unknown := sorted(changes.keys() - _FIELDS)):
            raise TypeError(f"State has no field {unknown}: it has {sorted(_FIELDS)}.")
        new: State = _new(State)  # measured: a third of the cost of the generated constructor
        _set(new, "__dict__", fields)
        return new

    def evolve_unchecked(self, **changes: Any) -> "State":
        """Do what `evolve` does, for fields that exist and need no conversion.

        The loop uses it at every step. Do not pass `memory`, `averages`, `metrics`, `gradients`
        (other than None), `to_log` or `max_duration`: they would not be made read-only.
        """
        new: State = _new(State)
        _set(new, "__dict__", self.__dict__ | changes)
        return new

    def without_outputs(self) -> "State":
        """Return this state without the field `outputs`: reading it is an error."""
        new: State = _new(State)
        _set(new, "__dict__", {n: value for n, value in self.__dict__.items() if n != "outputs"})
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
        """Return this state with `inputs=` or `targets=` of its batch replaced."""
        return self.evolve_unchecked(batch=self.batch_spec.replace(self.batch, **parts))

    def forward(self) -> Any:
        """Call the model on the batch."""
        try:
            return self.model_call(self.model, self.batch, self.batch_spec)
        except RuntimeError as error:
            explain_dtype(error, self.model, self.batch)
            raise
        except (AttributeError, TypeError) as error:
            explain_batch(error, self.model_call, self.batch)
            raise

    def compute_loss(self, outputs: Any) -> Tensor:
        """Compute the loss of outputs and the batch."""
        return self.loss_fn(outputs, self.batch)  # type: ignore[misc]  # None without a loss

    def remember(self, name: str, value: Any) -> "State":
        """Return this state with `value`, of plain containers and tensors, as `memory[name]`."""
        # Other values are read-only already; to convert them again would take time for each.
        memory = MappingProxyType({**self.memory, name: _frozen(value)})
        return self.evolve_unchecked(memory=memory)

    def with_average(self, name: str, tensors: Mapping[str, Tensor]) -> "State":
        """Return this state with averages of weights, by tensor, as `averages[name]`."""
        averages = MappingProxyType({**self.averages, name: _frozen(dict(tensors))})
        return self.evolve_unchecked(averages=averages)

    def log(self, metrics: Mapping[str, Any]) -> "State":
        """Return this state with metrics to log, such as the strength of an augmentation.

        Args:
            metrics: Numbers, strings or tensors of one element, by name. Tensors stay on the device
                until a logger writes.

        Example:
            >>> from composable import State
            >>> state = State(torch.nn.Linear(2, 1))
            >>> dict(state.log({"mixup/weight": 0.75}).to_log)
            {'mixup/weight': 0.75}
        """
        _check_mapping("metrics", metrics)
        return self.evolve_unchecked(to_log=MappingProxyType({**self.to_log, **metrics}))

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The model, and the loss if it is a module, by their names in checkpoints."""
        loss = {} if self.loss_module is None else {"loss_fn": self.loss_module}
        return {"model": self.model, **loss}

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Iterate over the parameters of the model, and of the loss as `loss_fn.<name>`."""
        yield from self.model.named_parameters()
        if self.loss_module is not None:
            for name, parameter in self.loss_module.named_parameters():
                yield f"loss_fn.{name}", parameter

    def current_gradients(self) -> Mapping[str, Tensor]:
        """Return the gradients that the optimizers will use, by parameter name."""
        if self.gradients is not None:
            return self.gradients
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        held = {id(parameter) for group in groups for parameter in group["params"]}
        return {
            name: parameter.grad
            for name, parameter in self.named_parameters()
            if parameter.grad is not None and (id(parameter) in held or not groups)
        }

    def generator(self, *names: str | int) -> torch.Generator:
        """Create a CPU generator that depends only on the seed, `names` and the batch number."""
        return self.key.fold(*names, self.timestamp.batch).generator()

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes and reports: rank 0, or the only process."""
        from composable.core.plain_state import is_main_process  # on use

        return is_main_process()

    @property
    def flops(self) -> float | None:
        """The floating-point operations of training so far, of all processes.

        A `SpeedMonitor` with `flops_per_batch` counts them. They are kept in `memory["flops"]`, and
        so across a resume. None if nothing has been counted.
        """
        return self.memory.get(FLOPS)

    @property
    def elapsed(self) -> float:
        """The completed fraction of the run."""
        return elapsed(self)

    def reached(self, time: "Time | str | int") -> bool:
        """Return whether the run has reached `time`."""
        return reached(self, check_time("time", time))

    def to_json(self, path: str | Path | None = None, *, indent: int | None = None) -> str:
        """Return the plain values of this state as JSON, and write them to a file.

        It has the timestamps, `max_duration`, `epoch_length`, the seed, the metrics, `frozen`, and
        the entries of `memory` that JSON represents exactly, with `flops`; and, to look at, the
        classes of the model, the optimizers and the schedulers, the device, the precision, the
        version of PyTorch, `is_main_process`, `local_rank`, `elapsed`, `epoch` with the fraction of
        the one in progress, and `max_steps`, the batches of the run. It has no tensors: a
        checkpoint saves everything. Metrics that are not finite are the strings "NaN", "Infinity"
        and "-Infinity".

        Args:
            path: A file to write, which is replaced if it exists. Default: none.
            indent: The number of spaces by which to indent lines; a single line if None.

        Raises:
            OSError: The file cannot be written.

        Example:
            >>> import json
            >>> from composable import State, Timestamp
            >>> state = State(torch.nn.Linear(2, 1), timestamp=Timestamp(batch=3), epoch_length=5)
            >>> json.loads(state.to_json())["timestamp"]["batch"]
            3
        """
        from composable._support.paths import write_atomically  # on use
        from composable.core.plain_state import write_json

        text = write_json(self, indent)
        if path is not None:
            write_atomically(as_path("path", path), f"{text}\n".encode())
        return text

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for `pickle`, which cannot store read-only mappings."""
        return {name: _plain(value) for name, value in self.__dict__.items()}

    def __setstate__(self, fields: dict[str, Any]) -> None:
        converted = {n: _CONVERTERS[n](v) if n in _CONVERTERS else v for n, v in fields.items()}
        _set(self, "__dict__", converted)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return explain_attribute(self, name, STATE)

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


def _refuse_assignment(self: State, name: str, value: object = None) -> None:
    raise FrozenStateError(
        f"State is frozen: state.{name} can't be assigned. "
        f"Return state.evolve({name}=...) from your algorithm instead."
    )


State.__setattr__ = _refuse_assignment  # type: ignore[method-assign, assignment]
State.__delattr__ = _refuse_assignment  # type: ignore[method-assign, assignment]
