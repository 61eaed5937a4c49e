"""Weight decay for weights only: parameter groups without it for norms and biases."""

from typing import Any

from torch import nn

from composable._support.checks import check_module
from composable.optim.roles import NORMS_AND_BIASES, ROLES, TABLES, collect, roles_of

WEIGHTS = "weights"
_NAMES = {name: name if name in (NORMS_AND_BIASES, TABLES) else WEIGHTS for name in ROLES}
_OPTIONS = {NORMS_AND_BIASES: {"weight_decay": 0.0}}


def decay_groups(module: nn.Module, *more: nn.Module) -> list[dict[str, Any]]:
    """Divide parameters into a group with weight decay, one without, and one of tables.

    The group without has the parameters with the role "norms_and_biases" of `role_groups`: the
    parameters of normalization layers (modules with a base class whose name ends in "Norm", such as
    `LayerNorm`, `BatchNorm2d` and `LlamaRMSNorm`), the biases, and all other parameters with less
    than two dimensions, such as layer scales. Embeddings have weight decay. Tables of hashed
    n-grams (`NGramEmbedding`) are in a third group, with weight decay, if there are any.

    Args:
        module: The model.
        more: Other modules that are trained, such as the loss.

    Returns:
        The groups, in a form that optimizers of PyTorch take. Their names are "weights",
        "norms_and_biases" and, for tables, "tables". A surgery of the `Trainer` adds new
        parameters to the right one.

    Raises:
        TypeError: An argument is not a module.

    Example:
        >>> from composable.optim import decay_groups
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
        >>> optimizer = torch.optim.AdamW(decay_groups(model), lr=1e-3, weight_decay=0.1)
        >>> [(g["name"], len(g["params"]), g["weight_decay"]) for g in optimizer.param_groups]
        [('weights', 1, 0.1), ('norms_and_biases', 3, 0.0)]
    """
    check_module("module", module)
    return [
        {"params": params, "name": name, **_OPTIONS.get(name, {})}
        for name, _, params in collect(
            roles_of(module, *more), _NAMES, always=(WEIGHTS, NORMS_AND_BIASES), by_layout=False
        )
    ]
