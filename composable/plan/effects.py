"""Detection of in-place changes to the state, and of undeclared ones.

A `State` is immutable, but the model, the optimizers and the tensors in it are PyTorch's objects
and can be written to. They are fingerprinted before and after each call of an algorithm or
callback. No values are copied or compared: every tensor counts its writes (`Tensor._version`).
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import Any

import attrs
from torch import Tensor, nn
from torch.optim import Optimizer

from composable.core.algorithm import Algorithm, leaves
from composable.core.event import Event
from composable.core.logger import Logger
from composable.core.state import State

_CHECKED = (
    "model",
    "loss_module",
    "optimizers",
    "batch",
    "outputs",
    "loss",
    "losses",
    "gradients",
    "memory",
    "averages",
    "metrics",
)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class ObserverError(RuntimeError):
    """A callback changed the state."""


class EffectError(RuntimeError):
    """An algorithm changed the state in place, or a field that it doesn't declare."""


@attrs.frozen(eq=False)
class CheckedAlgorithm:
    """An algorithm whose changes are checked against its declarations."""

    algorithm: Algorithm

    @property
    def name(self) -> str:
        """The name of the algorithm."""
        return self.algorithm.name

    def __call__(self, event: Event, state: State) -> Any:
        """Run the algorithm, and check its changes."""
        before = fingerprint(state)
        new = self.algorithm(event, state)
        for change in fingerprint_changes(before, fingerprint(state)):
            raise EffectError(
                f"{self.name} changed {change} at {event.name}: compute a new value, and return "
                "state.evolve(...) with it."
            )
        if isinstance(new, type(state)) and all(part.declares for part in leaves(self.algorithm)):
            self._check_fields(event, state, new)
        return new

    def _check_fields(self, event: Event, old: State, new: State) -> None:
        written = {name for name, value in vars(new).items() if value is not vars(old).get(name)}
        for name in sorted(written - set(self.algorithm.writes) - {"to_log", "replaced_modules"}):
            raise EffectError(
                f"{self.name} wrote state.{name} at {event.name}, but declares only that it writes "
                f"{sorted(self.algorithm.writes)}: add {name!r} to {self.name}.writes."
            )
        own = {part.name for part in leaves(self.algorithm)}
        for field, call in (("memory", "remember"), ("averages", "with_average")):
            before, after = getattr(old, field), getattr(new, field)
            for name in (before.keys() | after.keys()) - own:
                if before.get(name) is not after.get(name):
                    raise EffectError(
                        f"{self.name} wrote state.{field}[{name!r}] at {event.name}: an algorithm "
                        f"remembers values under its own name, with state.{call}(self.name, ...)."
                    )


@attrs.frozen(eq=False)
class ReadOnlyHook:
    """A method of a callback whose call must leave the state unchanged."""

    hook: Callable[[State, Logger], Any]
    name: str
    event: Event

    def __call__(self, state: State, logger: Logger) -> Any:
        """Call the method, and check that the state is unchanged."""
        before = fingerprint(state)
        requested = self.hook(state, logger)
        for change in fingerprint_changes(before, fingerprint(state)):
            raise ObserverError(
                f"{self.name} changed {change} at {self.event.name}, but callbacks must not change "
                "the state: compute on a clone(), or write an Algorithm, which returns a new state."
            )
        return requested


Fingerprint = tuple[Any, Any]
"""A value found in a state, and a mark that differs after a write to it.

The value is a reference, so that its id is not reused.
"""


def fingerprint(state: State) -> dict[str, Fingerprint]:
    """Fingerprint every mutable value in a state, by its path.

    Example:
        >>> from composable import State
        >>> from composable.plan.effects import fingerprint_changes, fingerprint
        >>> state = State(torch.nn.Linear(2, 1), loss=torch.tensor(1.0))
        >>> before = fingerprint(state)
        >>> _ = state.loss.mul_(2)
        >>> list(fingerprint_changes(before, fingerprint(state)))
        ['state.loss in place']
    """
    found: dict[str, Fingerprint] = {}
    for field in _CHECKED:
        _add(found, f"state.{field}", vars(state).get(field))
    return found


def fingerprint_changes(
    before: Mapping[str, Fingerprint], after: Mapping[str, Fingerprint]
) -> Iterator[str]:
    """Describe the differences between two fingerprints."""
    for path, (old, old_mark) in before.items():
        if path not in after:
            yield f"{path}, which is gone,"
            continue
        new, new_mark = after[path]
        if isinstance(old, _PLAIN) and isinstance(new, _PLAIN):
            if old_mark != new_mark:
                yield f"{path} from {old!r} to {new!r}"
        elif old is not new:
            yield f"{path}, which is another object,"
        elif old_mark != new_mark:
            yield f"{path} in place"
    yield from (f"{path}, which is new," for path in after if path not in before)


def _add(found: dict[str, Fingerprint], path: str, value: Any) -> None:
    """Add the fingerprints of the parts of a value, each by the path to it."""
    _adding(value.__class__)(found, path, value)


@cache
def _adding(kind: type) -> Callable[[dict[str, Fingerprint], str, Any], None]:
    """Return how to add a value of a type."""
    if add := next((add for known, add in _ADDING.items() if issubclass(kind, known)), None):
        return add
    return partial(_add_fields, _fields(kind))


def _add_plain(found: dict[str, Fingerprint], path: str, value: Any) -> None:
    found[path] = value, (value,)  # in a tuple, NaN equals itself


def _add_tensor(found: dict[str, Fingerprint], path: str, tensor: Tensor) -> None:
    found[path] = tensor, _mark(tensor)
    if tensor.is_leaf:
        _add(found, f"{path}.grad", tensor.grad)


def _add_module(found: dict[str, Fingerprint], path: str, module: nn.Module) -> None:
    found[path] = module, None
    _add(found, f"{path}.training", module.training)
    for parts in (module._parameters, module._buffers, module._modules):
        for name, part in parts.items():
            if part is not None:
                _add(found, f"{path}.{name}", part)


def _add_optimizer(found: dict[str, Fingerprint], path: str, optimizer: Optimizer) -> None:
    _add(found, f"{path}.param_groups", optimizer.param_groups)
    for i, state in enumerate(optimizer.state.values()):
        _add(found, f"{path}.state[{i}]", state)


def _add_items(found: dict[str, Fingerprint], path: str, value: Any) -> None:
    for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        _add(found, f"{path}[{key!r}]", part)


def _add_fields(names: Sequence[str], found: dict[str, Fingerprint], path: str, value: Any) -> None:
    if not names:  # its parts are not known
        found[path] = value, None
    for name in names:
        _add(found, f"{path}.{name}", getattr(value, name))


_ADDING: dict[Any, Callable[[dict[str, Fingerprint], str, Any], None]] = {
    _PLAIN: _add_plain,
    Tensor: _add_tensor,
    nn.Module: _add_module,
    Optimizer: _add_optimizer,
    (Mapping, tuple, list): _add_items,
}


def _fields(kind: type) -> list[str]:
    if attrs.has(kind):
        return [field.name for field in attrs.fields(kind)]
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return []


def _mark(tensor: Tensor) -> tuple[Any, ...]:
    # Assigning to `tensor.data` isn't counted as a write, but changes the address.
    try:
        return tensor._version, tensor.data_ptr(), tensor.requires_grad
    except _UNREADABLE:
        version, address = _read(attrgetter("_version"), tensor), _read(Tensor.data_ptr, tensor)
        return version, address, tensor.requires_grad


_UNREADABLE = (RuntimeError, ValueError, NotImplementedError)
"""What inference-mode, sparse, lazy and wrapper tensors raise."""


def _read(read: Callable[[Tensor], int], tensor: Tensor) -> int | None:
    try:
        return read(tensor)
    except _UNREADABLE:
        return None
