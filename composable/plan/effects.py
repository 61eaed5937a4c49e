"""Whether a callback or an algorithm changed what it was shown.

A `State` is frozen, but the model, the optimizers and the tensors in it are PyTorch's own and can
be written to. Here they are looked over before and after someone acts. Nothing is copied or
compared number by number: every tensor counts the writes to it (`Tensor._version`).
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import attrs
from torch import Tensor, nn
from torch.optim import Optimizer

from composable.core.algorithm import Algorithm, leaves
from composable.core.event import Event

if TYPE_CHECKING:
    from composable.core.logger import Logger
    from composable.core.state import State

__all__ = ["EffectError", "ObserverError", "changes", "fingerprint"]

_LOOKED_AT = ("model", "optimizers", "batch", "outputs", "loss", "gradients", "memory", "metrics")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class ObserverError(RuntimeError):
    """A callback changed something that it was to look at only."""


class EffectError(RuntimeError):
    """An algorithm changed something that it doesn't declare, or changed it in place."""


@attrs.frozen(eq=False)
class CheckedAlgorithm:
    """An algorithm that is held to what it declares."""

    algorithm: Algorithm

    @property
    def name(self) -> str:
        """The algorithm's."""
        return self.algorithm.name

    def __call__(self, event: Event, state: "State") -> Any:
        """Let the algorithm act, and compare."""
        before = fingerprint(state)
        new = self.algorithm(event, state)
        for change in changes(before, fingerprint(state)):
            raise EffectError(
                f"{self.name} changed {change} at {event.name}: compute a new value, and return "
                "state.evolve(...) with it."
            )
        if isinstance(new, type(state)) and all(part.declares for part in leaves(self.algorithm)):
            self._check_fields(event, state, new)
        return new

    def _check_fields(self, event: Event, old: "State", new: "State") -> None:
        written = {name for name, value in vars(new).items() if value is not vars(old)[name]}
        for name in sorted(written - set(self.algorithm.writes)):
            raise EffectError(
                f"{self.name} wrote state.{name} at {event.name}, and declares that it writes "
                f"{sorted(self.algorithm.writes)}: add {name!r} to {self.name}.writes."
            )
        for name in old.memory.keys() | new.memory.keys():
            own = name in {part.name for part in leaves(self.algorithm)}
            if not own and old.memory.get(name) is not new.memory.get(name):
                raise EffectError(
                    f"{self.name} wrote state.memory[{name!r}] at {event.name}: an algorithm "
                    "remembers under its own name, state.remember(self.name, ...)."
                )


@attrs.frozen(eq=False)
class ReadOnlyHook:
    """A hook of a callback that is refused where it changes the state it was shown."""

    hook: Callable[["State", "Logger"], Any]
    name: str
    event: Event

    def __call__(self, state: "State", logger: "Logger") -> Any:
        """Call the hook, and compare."""
        before = fingerprint(state)
        asked = self.hook(state, logger)
        for change in changes(before, fingerprint(state)):
            raise ObserverError(
                f"{self.name} changed {change} at {self.event.name}, and a callback only looks: "
                "compute on a clone(), or make it an Algorithm, which returns another state."
            )
        return asked


@attrs.frozen(eq=False)
class Fingerprint:
    """Something that was found in a state, and what can tell that it was written to."""

    what: Any  # held on to, so that its identity is not given to another object
    mark: Any


def fingerprint(state: "State") -> dict[str, Fingerprint]:
    """Everything that can be written to in a state, by the path to it.

    Example:
        >>> from composable import State
        >>> from composable.plan.effects import changes, fingerprint
        >>> state = State(torch.nn.Linear(2, 1), loss=torch.tensor(1.0))
        >>> before = fingerprint(state)
        >>> _ = state.loss.mul_(2)
        >>> list(changes(before, fingerprint(state)))
        ['state.loss in place']
    """
    found = {}
    for field in _LOOKED_AT:
        for path, what in _walk(f"state.{field}", getattr(state, field)):
            found[path] = Fingerprint(what, _mark(what))
    return found


def changes(before: Mapping[str, Fingerprint], after: Mapping[str, Fingerprint]) -> Iterator[str]:
    """What differs between two fingerprints, in words."""
    for path, old in before.items():
        new = after.get(path)
        if new is None:
            yield f"{path}, which is gone,"
        elif isinstance(old.what, _PLAIN) and isinstance(new.what, _PLAIN):
            if old.mark != new.mark:
                yield f"{path} from {old.what!r} to {new.what!r}"
        elif old.what is not new.what:
            yield f"{path}, which is another object,"
        elif old.mark != new.mark:
            yield f"{path} in place"
    yield from (f"{path}, which is new," for path in after if path not in before)


def _walk(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a value is made of, with the path to each part."""
    if isinstance(value, Tensor):
        yield path, value
        if value.is_leaf:
            yield f"{path}.grad", value.grad
    elif isinstance(value, nn.Module):
        yield from _walk_module(path, value)
    elif isinstance(value, Optimizer):
        yield from _walk(f"{path}.param_groups", value.param_groups)
        for i, of_one in enumerate(value.state.values()):
            yield from _walk(f"{path}.state[{i}]", of_one)
    elif isinstance(value, Mapping):
        for key in list(value):
            yield from _walk(f"{path}[{key!r}]", value[key])
    elif isinstance(value, (tuple, list)):
        for i, part in enumerate(value):
            yield from _walk(f"{path}[{i}]", part)
    elif names := _fields(value):
        for name in names:
            yield from _walk(f"{path}.{name}", getattr(value, name))
    else:
        yield path, value


def _walk_module(path: str, model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules(remove_duplicate=False):
        here = f"{path}.{name}" if name else path
        yield here, module
        yield f"{here}.training", module.training
        for own, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield from _walk(f"{here}.{own}", tensor)


def _fields(value: Any) -> list[str]:
    if attrs.has(type(value)):
        return [field.name for field in attrs.fields(type(value))]
    if dataclasses.is_dataclass(type(value)):
        return [field.name for field in dataclasses.fields(value)]
    return []


def _mark(what: Any) -> Any:
    if isinstance(what, Tensor):
        # Assigning to `tensor.data` counts as no write, but moves the tensor to another place.
        version, place = _read(_version, what), _read(Tensor.data_ptr, what)
        return version, place, what.requires_grad
    return (what,) if isinstance(what, _PLAIN) else None  # in a tuple, a NaN is itself


_version = attrgetter("_version")


def _read(read: Callable[[Tensor], int], tensor: Tensor) -> int | None:
    try:
        return read(tensor)
    except (RuntimeError, ValueError, NotImplementedError):
        return None  # of inference mode, sparse, lazy, or a wrapper: it has none
