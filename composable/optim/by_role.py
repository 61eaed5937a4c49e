"""An optimizer, or options of one, for each role of parameters."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
from torch import nn
from torch.optim import Optimizer

from composable._support.warn import warn_user
from composable.optim.multi import MultiOptimizer
from composable.optim.roles import (
    EMBEDDINGS,
    HEAD,
    NORMS_AND_BIASES,
    ROLES,
    ModelGroups,
    ModelParameters,
    role_groups,
    roles_of,
)

Factory: TypeAlias = Callable[[Any], Optimizer]
_NAMED = 5
"""The most parameters that an error names."""


@attrs.frozen
class ByRole:
    """See `by_role`."""

    optimizers: Mapping[str, Factory | Mapping[str, Any]]
    default: Factory | None = None
    roles: Mapping[str, Sequence[str]] | None = None
    stacked: Mapping[str, int] | None = None

    def __call__(self, params: Any) -> Optimizer:
        """Build the optimizer of a model, or of the parameters that the `Trainer` passes."""
        if not isinstance(params, (nn.Module, ModelParameters, ModelGroups)):
            raise TypeError(
                f"params={type(params).__name__} must be the model: by_role(...)(model). The "
                "roles of a plain list of parameters are not known."
            )
        modules = (params,) if isinstance(params, nn.Module) else params.modules
        groups = role_groups(*modules, roles=self.roles, stacked=self.stacked)
        if isinstance(params, ModelGroups):  # the Trainer's decay_norms_and_biases=False
            groups = [
                {"weight_decay": 0.0, **group} if group["name"] == NORMS_AND_BIASES else group
                for group in groups
            ]
        self._check_roles(groups, modules)
        parts: list[Optimizer] = []
        for name, given in self.optimizers.items():
            own = [group for group in groups if group["name"] == name]
            if own and not isinstance(given, Mapping):
                parts.append(given(own))
        rest = [
            {**group, **given}
            for group in groups
            if isinstance(given := self.optimizers.get(group["name"], {}), Mapping)
        ]
        if rest:
            parts.append(self._default_for(rest, modules)(ModelGroups(rest, modules, by_role=True)))
        return parts[0] if len(parts) == 1 else MultiOptimizer(parts)

    def _default_for(self, rest: Sequence[dict[str, Any]], modules: Sequence[nn.Module]) -> Factory:
        if self.default is not None:
            return self.default
        held = {id(p) for p in rest[0]["params"]}
        names = [role.names[0] for role in roles_of(*modules) if id(role.parameter) in held]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise ValueError(
            f"no optimizer has {', '.join(map(repr, names[:_NAMED]))}{more}, with the role "
            f"{rest[0]['name']!r}: add an optimizer for this role, or pass default=, for all that "
            "have none."
        )

    def _check_roles(
        self, groups: Sequence[Mapping[str, Any]], modules: Sequence[nn.Module]
    ) -> None:
        """Warn about roles that no parameter has."""
        found = {group["name"] for group in groups}
        for name in self.optimizers:
            if name in found:
                continue
            tied = (role for role in roles_of(*modules) if len(role.names) > 1)
            both = next((one.names for one in tied if one.name == EMBEDDINGS), ())
            why = (
                f": the head is tied, {both[0]!r} is {both[1]!r} too, and has the role "
                f"{EMBEDDINGS!r}"
                if name == HEAD and both
                else ""
            )
            warn_user(
                f"optimizers has the role {name!r}, and no parameter of "
                f"{type(modules[0]).__name__} has it{why}. Drop it, or name parameters by "
                f"by_role(..., roles={{{name!r}: [...]}}).",
            )


def by_role(
    optimizers: Mapping[str, Factory | Mapping[str, Any]],
    default: Factory | None = None,
    *,
    roles: Mapping[str, Sequence[str]] | None = None,
    stacked: Mapping[str, int] | None = None,
) -> ByRole:
    """Give the parameters of each role a separate optimizer, or separate options.

    The roles are defined by `role_groups`. Tied parameters have one role: an embedding that is also
    the head is an embedding.

    Args:
        optimizers: For each role a function of parameter groups that returns an optimizer, such as
            `functools.partial(Adagrad, lr=0.1)`; or options of the default optimizer:
            `{"lr": 0.3, "betas": (0.9, 0.95)}`.
        default: The optimizer of all parameters with options, or of a role that is not given. With
            `Muon`, the role "matrices" is its first half, and all others are its AdamW half.
        roles: As in `role_groups`: names or patterns by role, which may be a new role.
        stacked: As in `role_groups`.

    Returns:
        A value for `optimizers=` of the `Trainer`. In your own loop, call it with the model. The
        optimizer is a `MultiOptimizer`, or the result of the only function.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A role is unknown, or has options and there is no default; when it is called,
            a parameter has no optimizer, or the roles of the user overlap or match nothing.

    Warns:
        UserWarning: When it is called: no parameter has one of the roles.

    Example:
        >>> from functools import partial
        >>> from composable.optim import by_role
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
        >>> optimizers = by_role(
        ...     {"embeddings": partial(torch.optim.Adagrad, lr=0.1), "head": {"lr": 1e-3}},
        ...     default=partial(torch.optim.AdamW, lr=1e-2),
        ... )
        >>> [(group["name"], group["lr"]) for group in optimizers(model).param_groups]
        [('embeddings', 0.1), ('matrices', 0.01), ('head', 0.001), ('norms_and_biases', 0.01)]
    """
    if not isinstance(optimizers, Mapping):
        raise TypeError(
            f"optimizers={optimizers!r} must be a mapping of roles to optimizers or options, such "
            "as {'tables': functools.partial(Adagrad, lr=0.1)}."
        )
    if default is not None and not _is_factory(default):
        raise TypeError(f"default={default!r} must be a function that returns an optimizer.")
    if roles is not None and not isinstance(roles, Mapping):
        raise TypeError(f"roles={roles!r} must be a mapping of roles to lists of names.")
    for name, given in optimizers.items():
        known = (*ROLES, *(role for role in roles or () if role not in ROLES))
        if name not in known:
            raise ValueError(
                f"optimizers has the role {name!r}, which must be one of "
                f"{', '.join(map(repr, known))}, or defined by roles={{{name!r}: [...]}}."
            )
        if isinstance(given, Mapping):
            if default is None:
                raise ValueError(
                    f"optimizers[{name!r}]={given!r} are options of the default optimizer: pass "
                    "default=."
                )
        elif not _is_factory(given):
            raise TypeError(
                f"optimizers[{name!r}]={given!r} must be a function that returns an optimizer, or "
                "a mapping of options."
            )
    return ByRole(optimizers, default, roles, stacked)


def _is_factory(given: Any) -> bool:
    return callable(given) and not isinstance(given, (type, Optimizer))
