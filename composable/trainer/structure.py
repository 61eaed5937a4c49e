"""The structure of what a checkpoint saves, and the check of it before anything is changed.

The hashes of a checkpoint say that its bytes are those that were written. They do not say that a
run wrote them. So the entries of everything that is loaded and their types are compared with the
declared ones, and an error names the path in the file. Each part of a run declares what it saves
by the return type of its `state_dict`; `RunState` has what belongs to no part.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from torch import Tensor
from typing_extensions import TypedDict, is_typeddict

from composable.checkpoint.errors import DamagedCheckpointError
from composable.core.key import Key
from composable.core.stateful import Kind, is_count, is_number
from composable.core.time import Time, Timestamp
from composable.trainer.run import parts

if TYPE_CHECKING:
    from cattrs import Converter

__all__ = ["ENGINE", "check_entries", "check_structure", "short", "structure"]

ENGINE = "engine"
"""What a checkpoint has in addition if DeepSpeed computed the steps."""


def _is_group(value: Any) -> bool:
    numbers = value.get("params") if isinstance(value, Mapping) else None
    return isinstance(numbers, list) and all(map(is_count, numbers))


Group = Annotated[Mapping[str, Any], Kind("a group with a list of numbers as params", _is_group)]
Loss = Annotated[
    Tensor | None,
    Kind("a number in a tensor, or None", lambda value: value is None or is_number(value)),
]


class ModuleState(TypedDict):
    """The model, or the module that computes the loss, with the weights that are evaluated."""

    weights: dict[str, Any]
    buffers: dict[str, Tensor]
    without_gradients: list[str]
    in_evaluation: list[str]


class RawState(TypedDict):
    """The values that are trained, of the tensors that are evaluated with others."""

    model: dict[str, Tensor]
    loss_fn: dict[str, Tensor]


class OptimizerState(TypedDict):
    """The state dict of an optimizer, with its type and the names of its parameters."""

    type: str
    parameters: list[list[str]]
    state: Mapping[Any, Any]
    param_groups: list[Group]


class RunState(TypedDict):
    """What a checkpoint has in addition to the states of the parts."""

    model: ModuleState
    timestamp: Timestamp
    key: Key
    loss_fn: ModuleState
    raw: RawState
    optimizers: list[OptimizerState]
    loss: Loss
    memory: dict[str, Any]
    averages: dict[str, dict[str, Tensor]]
    metrics: dict[str, dict[str, Any]]
    previous_timestamp: Timestamp
    max_duration: Time | None
    callbacks: dict[str, Any]


@cache
def structure() -> dict[str, Any]:
    """Return the type of each entry of a checkpoint."""
    kinds: dict[str, Any] = {name: part.type for name, part in parts().items()}
    declared = {
        name: get_type_hints(kind.state_dict, include_extras=True)["return"]
        for name, kind in kinds.items()
    }
    rest = get_type_hints(RunState, include_extras=True)
    return {**rest, **declared, ENGINE: Mapping[str, Any]}


def check_entries(saved: Mapping[str, Any], path: str) -> None:
    """Check that all entries of a state are known, and their types without what is inside.

    Args:
        saved: What `composable.trainer.run_state.capture` returned, or some of its entries.
        path: Where it was read, for errors.

    Raises:
        DamagedCheckpointError: An entry is unknown, or has another type.
    """
    for name, value in saved.items():
        if name not in structure():
            raise DamagedCheckpointError(f"{path} is damaged: unknown entry {name[:80]!r}.")
        try:
            _check_of(structure()[name])(value, None)
        except _Misfit as fault:
            raise DamagedCheckpointError(f"{path}: state/{name} {fault}") from None


def check_structure(saved: Mapping[str, Any], path: str) -> None:
    """Check the entries of a state and their types.

    Args:
        saved: What `composable.trainer.run_state.capture` returned, or some of its entries.
        path: Where it was read, for errors.

    Raises:
        DamagedCheckpointError: An entry is missing or unexpected, or has another type.
    """
    for name, value in saved.items():
        try:
            _converter().structure(value, structure()[name])
        except Exception as error:
            where, fault = _first_fault(error, f"{path}: state/{name}")
            raise DamagedCheckpointError(f"{where} {fault}") from None
    for i, optimizer in enumerate(saved.get("optimizers", ())):
        _check_lengths(optimizer, f"{path}: state/optimizers/{i}/parameters")


def _check_lengths(optimizer: OptimizerState, where: str) -> None:
    named = [len(names) for names in optimizer["parameters"]]
    numbered = [len(group["params"]) for group in optimizer["param_groups"]]
    if named != numbered:
        raise DamagedCheckpointError(
            f"{where} names {named} parameters, and the groups have {numbered}."
        )


# --- with cattrs ---


Hook: TypeAlias = Callable[[Any, Any], Any]


class _Misfit(TypeError):
    """A value has another type than the declared one."""


_NAMES = {
    str: "a string",
    bool: "True or False",
    list: "a list",
    dict: "a dictionary",
    Mapping: "a dictionary",
    Tensor: "a tensor",
    NoneType: "None",
}


@cache
def _converter() -> "Converter":
    """Return a converter that refuses what it would otherwise convert, such as "1" to 1."""
    from cattrs import Converter  # on use: it is slow to import
    from cattrs.cols import list_structure_factory
    from cattrs.gen import mapping_structure_factory

    converter = Converter(forbid_extra_keys=True)
    of_items: dict[Any, Any] = {list: list_structure_factory, dict: mapping_structure_factory}

    def is_container(kind: Any) -> bool:
        return get_origin(kind) in of_items

    def container(kind: Any) -> Hook:
        items = of_items[get_origin(kind)](kind, converter)
        check = _check_of(kind)
        return lambda value, _: items(check(value, kind), kind)

    converter.register_structure_hook_factory(is_container, container)
    converter.register_structure_hook_factory(_is_plain, _check_of)
    for plain in (str, bool):
        converter.register_structure_hook(plain, _check_of(plain))
    return converter


def _classes(kind: Any) -> tuple[Any, ...]:
    """Return the classes of which a value of a type is an instance of one."""
    if get_origin(kind) in (Union, UnionType):
        return tuple(one for member in get_args(kind) for one in _classes(member))
    return (dict if is_typeddict(kind) else get_origin(kind) or kind,)


def _is_plain(kind: Any) -> bool:
    """Return whether an instance check is all: not for items, entries, and `Any`."""
    return get_origin(kind) is Annotated or not {list, dict, Any}.intersection(_classes(kind))


@cache
def _check_of(kind: Any) -> Hook:
    """Return the check that a value is of a type, whatever its items and entries are."""
    if get_origin(kind) is Annotated:
        (wanted,) = kind.__metadata__
    else:
        classes = _classes(kind)
        name = " or ".join(_NAMES.get(one, f"a {one.__name__}") for one in classes)
        wanted = Kind(name, lambda value: isinstance(value, classes))

    def check(value: Any, _: object) -> Any:
        if not wanted.fits(value):
            raise _Misfit(f"is {short(value)}, and must be {wanted.name}.")
        return value

    return check


def _first_fault(error: Exception, where: str) -> tuple[str, str]:
    """Return the path and the text of the first fault that a converter found."""
    if hasattr(error, "group_exceptions"):
        noted, others = error.group_exceptions()
        if others:
            return _first_fault(others[0], where)
        inner, note = noted[0]
        name = getattr(note, "name", None) or note.index
        return _first_fault(inner, f"{where}/{str(name)[:80]}")
    if isinstance(error, KeyError):
        return where, "is missing."
    if extra := getattr(error, "extra_fields", None):
        return where, f"has the unknown entries {sorted(map(str, extra))[:12]}."
    return where, str(error) if isinstance(error, _Misfit) else "must be a dictionary."


def short(value: Any) -> str:
    """Return a value, or its type, in a few words."""
    if isinstance(value, (str, int, float, NoneType)):
        try:
            return repr(value)[:80]
        except ValueError:  # an integer with too many digits to print
            return "an integer"
    return f"a {type(value).__name__}"
