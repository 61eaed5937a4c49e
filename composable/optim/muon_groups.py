"""Which parameters Muon updates: the hidden matrices of a model."""

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import attrs
from torch import nn

from composable.core._warnings import warn_user
from composable.functional._checks import check_count, check_module
from composable.optim.tables import TABLES, tables_of

__all__ = ["muon_groups"]

MUON, ADAMW = "muon", "adamw"
_EMBEDDING = re.compile("Embedding")
_NORM = re.compile(r"Norm(\dd)?$", re.IGNORECASE)
_PARAMETRIZED = re.compile(r"(.*?)\.?parametrizations\.(\w+)")
_GATES = {nn.LSTM: 4, nn.GRU: 3}


def muon_groups(
    model: nn.Module,
    *more: nn.Module,
    matrices: Sequence[str] = (),
    others: Sequence[str] = (),
    stacked: Mapping[str, int] | None = None,
) -> list[dict[str, Any]]:
    """Divide parameters into hidden matrices, for Muon, and all others, for AdamW.

    A hidden matrix is a parameter with two dimensions or more whose name contains "weight", unless
    it belongs to

    - an embedding: a module with a base class whose name contains "Embedding",
    - a normalization layer: one whose name ends in "Norm",
    - the output layer: the last module of the model with such a parameter, in the order of
      registration, and the result of `model.get_output_embeddings()`, if there is one,
    - or to one of these and another module, which is tied to it.

    The weights of convolutions are matrices of shape `[out_channels, the rest]`. The projections of
    `nn.MultiheadAttention` and the gates of `nn.LSTM` and `nn.GRU` are stacked in one parameter;
    each is a matrix of its own.

    Args:
        model: The model.
        more: Other modules that are trained, such as the loss: they have no hidden matrix.
        matrices: Names of further hidden matrices, such as parameters without "weight" in their
            names, or patterns: "blocks.*.experts".
        others: Names or patterns of parameters to leave to AdamW, such as a second head.
        stacked: The number of matrices of equal size that a parameter holds along its first
            dimension, by name or pattern: `{"*.qkv.weight": 3}`.

    Returns:
        The groups, for `Muon`. Their names are "matrices", "others" and, for tables of hashed
        n-grams (`NGramEmbedding`), "tables". Add options, such as "lr", to a group to override
        those of `Muon`. A surgery of the `Trainer` adds new parameters to the right group.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A pattern matches no parameter, or contradicts the rule: an embedding (or a
            parameter tied to one), or a parameter with fewer than two dimensions, as a matrix.

    Warns:
        UserWarning: The model has no hidden matrix.

    Example:
        >>> from composable.optim import muon_groups
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
        >>> [(group["name"], len(group["params"])) for group in muon_groups(model)]
        [('matrices', 1), ('others', 4)]
    """
    check_module("model", model)
    for i, one in enumerate(more):
        check_module(f"more[{i}]", one)
    chosen = {"matrices": _patterns("matrices", matrices), "others": _patterns("others", others)}
    counts = _counts(stacked)
    every = {id(role.parameter): role for role in roles_of(model)}
    for one in more:
        for role in roles_of(one):
            every.setdefault(id(role.parameter), _as_other(role))
    roles = _choose(list(every.values()), chosen, counts)
    hidden = [role for role in roles if role.hidden]
    if not hidden:
        warn_user(
            f"{type(model).__name__} has no hidden matrix, so Muon updates all parameters by "
            "AdamW; name matrices by muon_groups(model, matrices=[...]).",
            UserWarning,
        )
    held = {1: [role.parameter for role in hidden if role.stacked == 1]}
    for role in hidden:
        if role.stacked != 1:
            held.setdefault(role.stacked, []).append(role.parameter)
    groups: list[dict[str, Any]] = [
        {"params": params, "name": "matrices", "half": MUON, "stacked": count}
        for count, params in held.items()
    ]
    tables = tables_of(model, *more)
    taken = {id(parameter) for parameter in tables}
    rest = [one.parameter for one in roles if not one.hidden and id(one.parameter) not in taken]
    groups.append({"params": rest, "name": "others", "half": ADAMW})
    return [*groups, *([{"params": tables, "name": TABLES, "half": ADAMW}] if tables else [])]


@attrs.frozen(eq=False)
class Role:
    """What a parameter is to Muon.

    Args:
        names: Its names; several if it is shared.
        parameter: The parameter.
        kind: "matrix", or what it is instead.
        stacked: The number of matrices that it holds.
    """

    names: tuple[str, ...]
    parameter: nn.Parameter
    kind: str
    stacked: int = 1

    @property
    def hidden(self) -> bool:
        """Whether it is a hidden matrix."""
        return self.kind == "matrix"

    def matches(self, pattern: str) -> bool:
        """Return whether one of its names matches a pattern."""
        return any(name == pattern or fnmatchcase(name, pattern) for name in self.names)


def roles_of(model: nn.Module) -> list[Role]:
    """Return the role of each parameter by the rule of `muon_groups`."""
    places: dict[int, list[tuple[str, nn.Module, str]]] = {}
    parameters = {}
    for path, owner, name, parameter in _parameters(model):
        parameters[id(parameter)] = parameter
        places.setdefault(id(parameter), []).append((path, owner, name))
    kinds = {}
    for number, parameter in parameters.items():
        kinds[number] = _kind(parameter, places[number])
    for head in _heads(model, kinds):
        kinds[head] = "the output layer"
    return [
        Role(
            tuple(path for path, _, _ in places[number]),
            parameter,
            kinds[number],
            _stacked(places[number]) if kinds[number] == "matrix" else 1,
        )
        for number, parameter in parameters.items()
    ]


def _as_other(role: Role) -> Role:
    """Return the role of a parameter outside of the model."""
    return attrs.evolve(role, kind="a parameter of the loss") if role.hidden else role


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    """Iterate over the full name, the owner and the own name of every parameter.

    The owner of a parametrized tensor is the module that has it.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    for path, owner in modules.items():
        for name, parameter in owner.named_parameters(recurse=False):
            full = f"{path}.{name}" if path else name
            found = _PARAMETRIZED.fullmatch(path)
            if found and name == "original":
                yield full, modules[found[1]], found[2], parameter
            else:
                yield full, owner, name, parameter


def _kind(parameter: nn.Parameter, places: Sequence[tuple[str, nn.Module, str]]) -> str:
    if parameter.ndim < 2:
        return "a parameter with fewer than two dimensions"
    if not parameter.is_floating_point():
        return "a parameter that is not floating-point"
    classes = [base.__name__ for _, owner, _ in places for base in type(owner).__mro__]
    if any(_EMBEDDING.search(one) for one in classes):
        return "an embedding"
    if any(_NORM.search(one) for one in classes):
        return "a parameter of a normalization layer"
    if not any("weight" in name for _, _, name in places):
        return 'a parameter without "weight" in its name'
    return "matrix"


def _heads(model: nn.Module, kinds: Mapping[int, str]) -> set[int]:
    """Return the weights of the output layers."""
    last: set[int] = set()
    owner_of_last: nn.Module | None = None
    weights = ("matrix", "an embedding")
    for _, owner, _, parameter in _parameters(model):
        embeds = any(_EMBEDDING.search(base.__name__) for base in type(owner).__mro__)
        if kinds[id(parameter)] in weights and not embeds:
            last = {*last, id(parameter)} if owner is owner_of_last else {id(parameter)}
            owner_of_last = owner
    outputs = getattr(model, "get_output_embeddings", None)
    own = outputs() if callable(outputs) else None
    named = {id(p) for p in own.parameters()} if isinstance(own, nn.Module) else set()
    return {number for number in last | named if kinds.get(number) == "matrix"}


def _stacked(places: Sequence[tuple[str, nn.Module, str]]) -> int:
    _, owner, name = places[0]
    if isinstance(owner, nn.MultiheadAttention):
        return 3 if name == "in_proj_weight" else 1
    gates = next((count for kind, count in _GATES.items() if isinstance(owner, kind)), 1)
    return gates if name.startswith(("weight_ih", "weight_hh")) else 1


# --- overrides ---


def _patterns(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise TypeError(
            f"{name}={value!r} must be a list of names of parameters, such as ['head.weight']."
        )
    return tuple(value)


def _counts(value: Any) -> dict[str, int]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value):
        raise TypeError(
            f"stacked={value!r} must be a mapping of names of parameters to numbers of matrices, "
            "such as {'*.qkv.weight': 3}."
        )
    for pattern, count in value.items():
        check_count(f"stacked[{pattern!r}]", count, 1)
    return dict(value)


def _choose(
    roles: list[Role], chosen: Mapping[str, tuple[str, ...]], counts: Mapping[str, int]
) -> list[Role]:
    """Apply the choices of the user to the roles."""
    given = [(pattern, name) for name, patterns in chosen.items() for pattern in patterns]
    for pattern, argument in [*given, *((pattern, "stacked") for pattern in counts)]:
        if not any(role.matches(pattern) for role in roles):
            raise ValueError(
                f"{argument} contains {pattern!r}, which matches no parameter: use names of "
                "model.named_parameters()."
            )
    return [_chosen(role, chosen, counts) for role in roles]


def _chosen(role: Role, chosen: Mapping[str, tuple[str, ...]], counts: Mapping[str, int]) -> Role:
    as_matrix = any(map(role.matches, chosen["matrices"]))
    if any(map(role.matches, chosen["others"])):
        if as_matrix:
            raise ValueError(
                f"matrices and others both contain {role.names[0]!r}: pass it in only one."
            )
        return attrs.evolve(role, kind="a parameter of others=")
    if as_matrix:
        check_matrix(role)
        role = attrs.evolve(role, kind="matrix")
    for pattern, count in counts.items():
        if role.matches(pattern):
            if not role.hidden or len(role.parameter) % count:
                raise ValueError(
                    f"stacked={dict(counts)!r} does not fit {role.names[0]!r} of shape "
                    f"{tuple(role.parameter.shape)}, {role.kind}: it must be a hidden matrix whose "
                    f"first dimension is divisible by {count}."
                )
            role = attrs.evolve(role, stacked=count)
    return role


def check_matrix(role: Role) -> None:
    """Raise a ValueError if Muon can't update a parameter as a matrix, or must not."""
    wrong = role.parameter.ndim < 2 or not role.parameter.is_floating_point()
    if wrong or role.kind == "an embedding":
        tied = f", tied to {role.names[1]!r}" if len(role.names) > 1 else ""
        raise ValueError(
            f"matrices contains {role.names[0]!r}{tied}, which is {role.kind} and not a "
            "hidden matrix: leave it to AdamW, as muon_groups(model) does."
        )
