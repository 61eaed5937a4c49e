"""The roles of parameters in a model, and parameter groups by role.

This is the one rule from which all groups of this package are made: `muon_groups`, `decay_groups`
and `by_role` name or merge roles.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import attrs
from torch import nn

from composable._support.checks import check_count, check_module
from composable._support.embeddings import output_embeddings
from composable.functional import NGramEmbedding

MATRICES, EMBEDDINGS, HEAD = "matrices", "embeddings", "head"
NORMS_AND_BIASES, TABLES, OTHERS = "norms_and_biases", "tables", "others"
ROLES = (MATRICES, EMBEDDINGS, HEAD, NORMS_AND_BIASES, TABLES, OTHERS)
"""The roles that the rule assigns."""

_EMBEDDING, _NORM = re.compile("Embedding"), re.compile(r"Norm(\dd)?$", re.IGNORECASE)
_PARAMETRIZED = re.compile(r"(.*?)\.?parametrizations\.(\w+)")
_CONV1D = "transformers.pytorch_utils.Conv1D"
_GATES = {nn.LSTM: 4, nn.GRU: 3}
_ONE_MATRIX = re.compile("Conv|^Bilinear$")  # applied to patches, and to products of two inputs
USUAL = {"stacked": 1, "transposed": False, "batched": False}
"""The usual layout of a matrix."""
_Place = tuple[str, nn.Module, str]
"""A full name, the module that has the parameter, and its name there."""


@attrs.frozen(eq=False)
class Role:
    """The role of a parameter.

    Args:
        names: Its names; several if it is shared.
        parameter: The parameter.
        name: The name of the role.
        stacked: The number of matrices that it holds along its outputs.
        transposed: Whether its outputs are its second dimension, not its first.
        batched: Whether it is a batch of matrices, its last two dimensions, such as of experts.
    """

    names: tuple[str, ...]
    parameter: nn.Parameter
    name: str
    stacked: int = 1
    transposed: bool = False
    batched: bool = False

    @property
    def outputs(self) -> int:
        """The size of the dimension of the outputs."""
        return self.parameter.shape[self.transposed - (2 if self.batched else 0)]

    @property
    def layout(self) -> dict[str, Any]:
        """Its layout as options of a group: those that are not the usual ones."""
        own = {name: getattr(self, name) for name in USUAL} if self.name == MATRICES else USUAL
        return {name: value for name, value in own.items() if value != USUAL[name]}

    def matches(self, pattern: str) -> bool:
        """Return whether one of its names matches a pattern."""
        return any(matches_pattern(name, pattern) for name in self.names)


def role_groups(
    model: nn.Module,
    *more: nn.Module,
    roles: Mapping[str, Sequence[str]] | None = None,
    stacked: Mapping[str, int] | None = None,
) -> list[dict[str, Any]]:
    """Divide parameters into groups by their role in the model.

    - "tables": tables of hashed n-grams (`NGramEmbedding`);
    - "norms_and_biases": the parameters of normalization layers (modules with a base class whose
      name ends in "Norm"), biases, and all others with fewer than two dimensions;
    - "embeddings": parameters of modules with a base class whose name contains "Embedding", and
      what is tied to them, such as a tied head;
    - "head": the weights of the output layer: of the last module with weights, in the order of
      registration, and of `model.get_output_embeddings()`, if there is one;
    - "matrices": all other parameters with "weight" in their names, the hidden matrices;
    - "others": the rest, such as position embeddings without a module, and weights of a loss.

    Args:
        model: The model.
        more: Other modules that are trained, such as the loss.
        roles: Names of parameters or modules, or patterns such as "blocks.*.experts", by role:
            one of these, or a new role.
        stacked: The number of matrices of equal size that a parameter holds along its outputs, by
            name or pattern: `{"*.qkv.weight": 3}`. Default: as in `nn.MultiheadAttention`,
            `nn.LSTM` and `nn.GRU`.

    Returns:
        The groups, for any optimizer of PyTorch, each with the name of its role as "name". Roles
        without a parameter have no group. There is a "stacked" group for each number of stacked
        matrices, a "transposed" group for weights of `Conv1D` of Transformers, whose outputs are
        the second dimension, and a "batched" group for batches of matrices, such as the weights of
        experts.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A pattern matches no parameter, or two roles have the same one.

    Example:
        >>> from composable.optim import role_groups
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
        >>> [(group["name"], len(group["params"])) for group in role_groups(model)]
        [('matrices', 1), ('embeddings', 1), ('head', 1), ('norms_and_biases', 2)]
    """
    if roles is not None and not isinstance(roles, Mapping):
        raise TypeError(f"roles={roles!r} must be a mapping of roles to lists of names.")
    chosen = choose_roles(roles_of(model, *more), roles or {}, stacked, argument="roles[{!r}]")
    return [{"params": params, "name": name, **layout} for name, layout, params in collect(chosen)]


def roles_of(model: nn.Module, *more: nn.Module) -> list[Role]:
    """Return the role of each parameter of a model, and of modules beside it, by the rule."""
    check_module("model", model)
    found = {id(role.parameter): role for role in _roles_in(model)}
    for i, module in enumerate(more):
        check_module(f"more[{i}]", module)
        for role in _roles_in(module):
            outside = attrs.evolve(role, name=OTHERS, stacked=1, transposed=False)
            found.setdefault(id(role.parameter), outside if role.name in (MATRICES, HEAD) else role)
    return list(found.values())


def collect(
    roles: Sequence[Role],
    names: Mapping[str, str] | None = None,
    always: Sequence[str] = (),
    *,
    by_layout: bool = True,
) -> Iterator[tuple[str, dict[str, Any], list[nn.Parameter]]]:
    """Yield groups: their names, the layouts of their matrices, and the parameters.

    Args:
        roles: The roles of the parameters.
        names: The names of groups by role; by default each role is a group.
        always: The names of groups that exist even without parameters, before all others.
        by_layout: Whether matrices of each layout have a separate group.
    """
    usual: tuple[Any, ...] = ()
    held: dict[str, dict[Any, list[nn.Parameter]]] = {name: {usual: []} for name in always}
    for name in ROLES:
        held.setdefault((names or {}).get(name, name), {})
    for role in roles:
        group = held.setdefault((names or {}).get(role.name, role.name), {})
        layout = tuple(role.layout.items()) if by_layout else usual
        group.setdefault(layout, []).append(role.parameter)
    for name, group in held.items():
        for layout, params in group.items():
            yield name, dict(layout), params


def matches_pattern(name: str, pattern: str) -> bool:
    """Return whether a pattern is the name of a parameter, of a module around it, or matches it."""
    return name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)


# --- the rule ---


def _roles_in(model: nn.Module) -> list[Role]:
    places: dict[int, list[_Place]] = {}
    parameters = {}
    for path, owner, name, parameter in _parameters(model):
        parameters[id(parameter)] = parameter
        places.setdefault(id(parameter), []).append((path, owner, name))
    names = {number: _role(one, places[number]) for number, one in parameters.items()}
    names |= dict.fromkeys(_heads(model, names), HEAD)
    return [
        Role(
            tuple(path for path, _, _ in places[number]),
            parameter,
            names[number],
            *_layout(parameter, places[number], names[number]),
        )
        for number, parameter in parameters.items()
    ]


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    """Iterate over the full name, the owner and the local name of every parameter.

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


def _role(parameter: nn.Parameter, places: Sequence[_Place]) -> str:
    owners, names = [owner for _, owner, _ in places], [name for _, _, name in places]
    if any(isinstance(owner, NGramEmbedding) for owner in owners):
        return TABLES
    if parameter.ndim < 2 or any(name.endswith("bias") for name in names):
        return NORMS_AND_BIASES
    if any(_is_a(_EMBEDDING, owner) for owner in owners):
        return EMBEDDINGS
    if any(_is_a(_NORM, owner) for owner in owners):
        return NORMS_AND_BIASES
    weight = any("weight" in name for name in names)
    return MATRICES if weight and parameter.is_floating_point() else OTHERS


def _is_a(kind: "re.Pattern[str]", module: nn.Module) -> bool:
    return any(kind.search(base.__name__) for base in type(module).__mro__)


def _is_conv1d(module: nn.Module) -> bool:
    return any(f"{base.__module__}.{base.__name__}" == _CONV1D for base in type(module).__mro__)


def _heads(model: nn.Module, names: Mapping[int, str]) -> set[int]:
    """Return the weights of the output layers."""
    last: set[int] = set()
    owner_of_last: nn.Module | None = None
    for _, owner, _, parameter in _parameters(model):
        if names[id(parameter)] in (MATRICES, EMBEDDINGS) and not _is_a(_EMBEDDING, owner):
            last = {*last, id(parameter)} if owner is owner_of_last else {id(parameter)}
            owner_of_last = owner
    own = output_embeddings(model)
    named = {id(p) for p in own.parameters()} if isinstance(own, nn.Module) else set()
    return {number for number in last | named if names.get(number) == MATRICES}


def _layout(parameter: nn.Parameter, places: Sequence[_Place], role: str) -> tuple[int, bool, bool]:
    owners = [owner for _, owner, _ in places]
    batched = parameter.ndim == 3 and not any(_is_a(_ONE_MATRIX, owner) for owner in owners)
    if role != MATRICES:
        return 1, False, batched
    return _stacked(places), any(map(_is_conv1d, owners)), batched


def _stacked(places: Sequence[_Place]) -> int:
    _, owner, name = places[0]
    if isinstance(owner, nn.MultiheadAttention):
        return 3 if name == "in_proj_weight" else 1
    gates = next((count for kind, count in _GATES.items() if isinstance(owner, kind)), 1)
    return gates if name.startswith(("weight_ih", "weight_hh")) else 1


# --- choices of the user ---


def choose_roles(
    roles: Sequence[Role],
    chosen: Mapping[str, Sequence[str]],
    stacked: Mapping[str, int] | None,
    *,
    argument: str,
) -> list[Role]:
    """Apply the choices of the user to roles.

    Args:
        roles: The roles by the rule.
        chosen: Names or patterns by role.
        stacked: Numbers of stacked matrices, by name or pattern.
        argument: The format of the name of an argument, for errors.

    Raises:
        TypeError: A choice is of the wrong type.
        ValueError: A pattern matches no parameter, two roles have the same one, or a parameter
            cannot be a matrix.
    """
    patterns = {name: _patterns(argument.format(name), some) for name, some in chosen.items()}
    counts = _counts(stacked)
    given = [(argument.format(name), one) for name, some in patterns.items() for one in some]
    for name, pattern in [*given, *(("stacked", pattern) for pattern in counts)]:
        if not any(role.matches(pattern) for role in roles):
            raise ValueError(
                f"{name} contains {pattern!r}, which matches no parameter: use names of "
                "model.named_parameters()."
            )
    return [_with_count(_chosen(role, patterns, argument), counts) for role in roles]


def _chosen(role: Role, patterns: Mapping[str, Sequence[str]], argument: str) -> Role:
    found = [name for name, some in patterns.items() if any(map(role.matches, some))]
    if len(found) > 1:
        both = " and ".join(map(argument.format, found[:2]))
        raise ValueError(f"{both} both contain {role.names[0]!r}: pass it in only one.")
    if found == [MATRICES]:
        check_matrix(role)
    if not found or found == [role.name]:
        return role
    return attrs.evolve(role, name=found[0], stacked=1, transposed=False)


def _with_count(role: Role, counts: Mapping[str, int]) -> Role:
    for pattern, count in counts.items():
        if role.matches(pattern):
            if role.name != MATRICES or role.outputs % count:
                raise ValueError(
                    f"stacked={dict(counts)!r} does not fit {role.names[0]!r} of shape "
                    f"{tuple(role.parameter.shape)} and the role {role.name!r}: it must be a "
                    f"hidden matrix whose outputs, {role.outputs}, are divisible by {count}."
                )
            role = attrs.evolve(role, stacked=count)
    return role


def check_matrix(role: Role) -> None:
    """Raise a ValueError if Muon can't update a parameter as a matrix, or must not."""
    if role.name in (EMBEDDINGS, TABLES):
        kind = "an embedding"
    elif role.parameter.ndim < 2:
        kind = "a parameter with fewer than two dimensions"
    elif not role.parameter.is_floating_point():
        kind = "a parameter that is not floating-point"
    else:
        return
    tied = f", tied to {role.names[1]!r}" if len(role.names) > 1 else ""
    raise ValueError(
        f"matrices contains {role.names[0]!r}{tied}, which is {kind} and not a hidden matrix: "
        "leave it to AdamW, as muon_groups(model) does."
    )


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


# --- parameters and groups that know their modules ---


class ModelParameters(Iterator[nn.Parameter]):
    """An iterator over parameters, like `model.parameters()`, with the modules that they are of.

    Args:
        parameters: The parameters.
        modules: The model, and then the loss, if it has parameters.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], modules: Iterable[nn.Module]) -> None:
        self._parameters = iter(parameters)
        self.modules = tuple(modules)

    def __next__(self) -> nn.Parameter:
        return next(self._parameters)


class ModelGroups(list[dict[str, Any]]):
    """A list of parameter groups, with the modules that they are of.

    Args:
        groups: The groups.
        modules: The model, and then the loss, if it has parameters.
        by_role: Whether the groups are as in `role_groups`; otherwise as in `decay_groups`.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        modules: Iterable[nn.Module],
        *,
        by_role: bool = False,
    ) -> None:
        super().__init__(groups)
        self.modules, self.by_role = tuple(modules), by_role
