"""How Muon divides the projections of attention: by projection, or by head."""

import re
from collections.abc import Sequence
from typing import Any

import attrs
from torch import nn

from composable._support.warn import warn_user
from composable.optim.roles import MATRICES, Role

PROJECTIONS, HEADS = "projections", "heads"
_PLACE = re.compile(r"(?:(.*)\.)?(\w+?)[._](?:parametrizations\.)?weight(?:\.original\d*)?")
_THIRDS = {"c_attn", "in_proj", "qkv", "qkv_proj", "to_qkv", "Wqkv"}
"""Projections to queries, keys and values in one parameter, one after another."""
_BY_HEAD = {"query_key_value"}
"""Those in which the three of a head are neighbors."""
_SEPARATE = {
    *("q_proj", "k_proj", "v_proj", "query", "key", "value", "q_lin", "k_lin", "v_lin"),
    *("to_q", "to_k", "to_v", "wq", "wk", "wv", "c_q", "c_k", "c_v", "q_attn"),
}
_SIZES = ("head_dim", "attention_head_size", "head_size")
_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")


def split_projections(roles: Sequence[Role], model: nn.Module, by: str | None) -> list[Role]:
    """Return roles whose projections of attention are stacks of matrices.

    Args:
        roles: The roles of the parameters of a model.
        model: The model.
        by: "projections", "heads", or None to divide nothing.

    Raises:
        ValueError: `by` is another value.

    Warns:
        UserWarning: There is nothing to divide.
    """
    if by is None:
        return list(roles)
    if not isinstance(by, str) or by not in (PROJECTIONS, HEADS):
        raise ValueError(f"split_attention={by!r} must be 'projections', 'heads' or None.")
    modules = dict(model.named_modules(remove_duplicate=False))
    divided = [_divided(role, modules, by) for role in roles]
    if not any(role.stacked > 1 for role in divided):
        warn_user(
            f"split_attention={by!r} divides nothing in {type(model).__name__}: no module with a "
            f"number of heads ({', '.join(_COUNTS)}) has projections of one of the names "
            f"{', '.join(sorted(_THIRDS | _BY_HEAD | _SEPARATE))}. Pass stacked= instead.",
        )
    return divided


def _divided(role: Role, modules: dict[str, nn.Module], by: str) -> Role:
    place = _PLACE.fullmatch(role.names[0])
    if role.name != MATRICES or place is None or place[2] not in _THIRDS | _BY_HEAD | _SEPARATE:
        return role
    fused = 1 if place[2] in _SEPARATE else 3
    size = _head_size(modules[place[1] or ""], role.outputs // fused)
    if size is None or role.outputs % size:
        return role
    if by == HEADS:
        return attrs.evolve(role, stacked=role.outputs // size)
    heads = _count(modules[place[1] or ""])
    thirds = place[2] in _THIRDS and (heads is None or role.outputs == 3 * heads * size)
    return attrs.evolve(role, stacked=3) if thirds and role.outputs % 3 == 0 else role


def _head_size(module: nn.Module, width: int) -> int | None:
    """Return the size of a head, by the module around a projection of some width."""
    for name in _SIZES:
        if type(size := getattr(module, name, None)) is int and size > 0:
            return size
    heads = _count(module)
    return None if heads is None or width % heads else width // heads


def _count(module: nn.Module) -> int | None:
    owners: tuple[Any, ...] = (module, getattr(module, "config", None))
    found = (getattr(owner, name, None) for owner in owners for name in _COUNTS)
    return next((count for count in found if type(count) is int and count > 0), None)
