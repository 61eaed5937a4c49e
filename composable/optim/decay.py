"""Weight decay for weights only: parameter groups without it for norms and biases."""

import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from composable.functional._checks import check_module
from composable.optim.tables import TABLES, tables_of

__all__ = ["decay_groups"]

WEIGHTS, NORMS_AND_BIASES = "weights", "norms_and_biases"
_NORM = re.compile(r"Norm(\dd)?$", re.IGNORECASE)


def decay_groups(module: nn.Module, *more: nn.Module) -> list[dict[str, Any]]:
    """Divide parameters into a group with weight decay, one without, and one of tables.

    The group without has the parameters of normalization layers (modules with a base class whose
    name ends in "Norm", such as `LayerNorm`, `BatchNorm2d` and `LlamaRMSNorm`), the biases, and all
    other parameters with less than two dimensions, such as layer scales. Embeddings have weight
    decay. A shared parameter is in one group, that of its first name. Tables of hashed n-grams
    (`NGramEmbedding`) are in a third group, with weight decay, if there are any.

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
    groups: list[dict[str, Any]] = [
        {"params": [], "name": WEIGHTS},
        {"params": [], "name": NORMS_AND_BIASES, "weight_decay": 0.0},
    ]
    for one in (module, *more):
        check_module("module", one)
    tables = tables_of(module, *more)
    seen = {id(table) for table in tables}
    for one in (module, *more):
        for _, parameter, decays in parameters_by_decay(one):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                groups[not decays]["params"].append(parameter)
    return [*groups, *([{"params": tables, "name": TABLES}] if tables else [])]


def parameters_by_decay(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, bool]]:
    """Iterate over the names and parameters of a module, and whether they have weight decay."""
    for path, owner in module.named_modules():
        norm = any(_NORM.search(base.__name__) for base in type(owner).__mro__)
        for name, parameter in owner.named_parameters(recurse=False):
            decays = not norm and not name.endswith("bias") and parameter.ndim > 1
            yield f"{path}.{name}" if path else name, parameter, decays


def group_by_decay(
    groups: list[dict[str, Any]], place: dict[str, Any], decays: bool
) -> dict[str, Any]:
    """Return the group for a new parameter: that of `decay_groups` beside `place`, or `place`."""
    named = {group.get("name"): group for group in groups}
    if place.get("name") in (WEIGHTS, NORMS_AND_BIASES) and {WEIGHTS, NORMS_AND_BIASES} <= set(
        named
    ):
        return named[WEIGHTS if decays else NORMS_AND_BIASES]
    return place
