"""The part of the state that the checkpoints of other loops hold."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from composable._support.tree import map_tensors
from composable.checkpoint.errors import CheckpointError
from composable.checkpoint.tree import pack, unpack
from composable.core.key import Key
from composable.core.state import State
from composable.core.time import Timestamp

_SAVED: dict[str, type] = {
    "timestamp": Timestamp,
    "previous_timestamp": Timestamp,
    "key": Key,
    "memory": dict,
    "averages": dict,
    "metrics": dict,
}


def pack_state(state: State) -> dict[str, Any]:
    """Return the clock, the seed, the memory and the averages as plain containers and tensors."""
    tensors, data = pack(saved_fields(state))
    return {"tensors": tensors, "data": data}


def saved_fields(state: State) -> dict[str, Any]:
    """Return the fields of the state that checkpoints hold."""
    return {name: getattr(state, name) for name in _SAVED}


def unpack_state(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the state that `pack_state` has packed.

    Args:
        saved: The result of `pack_state`.

    Raises:
        ValueError: `saved` is not a value of `pack_state`.
    """
    try:
        fields: dict[str, Any] = unpack(saved["tensors"], saved["data"])
        valid = {name: type(fields[name]) for name in _SAVED} == _SAVED
    except (CheckpointError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"saved must be the value of t.state_dict(): {error!r}") from error
    if not valid or fields.keys() != _SAVED.keys():
        raise ValueError(f"saved must be the value of t.state_dict(), with {', '.join(_SAVED)}.")
    return fields


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first parameter."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def place(state: State, *, memory: bool) -> State:
    """Return the state on the device of its model; also what it remembers, which may be loaded."""
    state = state.evolve(device=device_of(state.model))
    if not memory:
        return state

    def moved(tree: Any) -> Any:
        return map_tensors(lambda tensor: tensor.to(state.device), tree)

    return state.evolve(memory=moved(state.memory), averages=moved(state.averages))
