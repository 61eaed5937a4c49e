"""Which parameters Muon updates: the hidden matrices of a model."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from composable._support.warn import warn_user
from composable.optim.attention import split_projections
from composable.optim.roles import MATRICES, OTHERS, ROLES, TABLES, choose_roles, collect, roles_of

MUON, ADAMW = "muon", "adamw"
_NAMES = {name: name if name in (MATRICES, TABLES) else OTHERS for name in ROLES}


def muon_groups(
    model: nn.Module,
    *more: nn.Module,
    matrices: Sequence[str] = (),
    others: Sequence[str] = (),
    stacked: Mapping[str, int] | None = None,
    split_attention: str | None = None,
) -> list[dict[str, Any]]:
    """Divide parameters into hidden matrices, for Muon, and all others, for AdamW.

    Hidden matrices are the parameters with the role "matrices" of `role_groups`. The weights of
    convolutions and of `nn.Bilinear` are matrices of shape `[out_channels, the rest]`. Other
    weights of three dimensions, such as the weights of experts, are batches of matrices. The
    projections of `nn.MultiheadAttention` and the gates of `nn.LSTM` and `nn.GRU` are stacked in
    one parameter; each is a separate matrix.

    Args:
        model: The model.
        more: Other modules that are trained, such as the loss: they have no hidden matrix.
        matrices: Names of further hidden matrices, such as parameters without "weight" in their
            names, or patterns: "blocks.*.experts".
        others: Names or patterns of parameters to leave to AdamW, such as a second head.
        stacked: The number of matrices of equal size that a parameter (or each matrix of a batch)
            holds along its outputs, by name or pattern: `{"*.qkv.weight": 3}`.
        split_attention: How the projections of attention to queries, keys and values are divided:
            "projections" divides those that are fused in one parameter, and "heads" all of them,
            into a matrix for each head. They are found by their names and by the number of heads
            of the module around them. None divides the projections of `nn.MultiheadAttention` only.

    Returns:
        The groups, for `Muon`. Their names are "matrices", "others" and, for tables of hashed
        n-grams (`NGramEmbedding`), "tables". Add options, such as "lr", to a group to override
        `Muon`'s. A surgery of the `Trainer` adds new parameters to the right group.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A pattern matches no parameter, or contradicts the rule: an embedding (or a
            parameter tied to one), or a parameter with fewer than two dimensions, as a matrix.

    Warns:
        UserWarning: The model has no hidden matrix, or no projection that `split_attention`
            divides.

    Example:
        >>> from composable.optim import muon_groups
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
        >>> [(group["name"], len(group["params"])) for group in muon_groups(model)]
        [('matrices', 1), ('others', 4)]
    """
    chosen = {MATRICES: matrices, OTHERS: others}
    found = split_projections(roles_of(model, *more), model, split_attention)
    roles = choose_roles(found, chosen, stacked, argument="{}")
    if not any(role.name == MATRICES for role in roles):
        warn_user(
            f"{type(model).__name__} has no hidden matrix, so Muon updates all parameters by "
            "AdamW; name matrices by muon_groups(model, matrices=[...]).",
        )
    return [
        {"params": params, "name": name, "half": MUON, "stacked": 1, "batched": False, **layout}
        if name == MATRICES
        else {"params": params, "name": name, "half": ADAMW}
        for name, layout, params in collect(roles, _NAMES, always=(MATRICES, OTHERS))
    ]
