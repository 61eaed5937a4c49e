"""Learning rates that decay from the last layer of a model to the first.

Howard and Ruder, "Universal Language Model Fine-tuning for Text Classification", ACL 2018,
https://arxiv.org/abs/1801.06146 (discriminative fine-tuning); Bao et al., "BEiT", ICLR 2022,
https://arxiv.org/abs/2106.08254 (layer-wise decay)
"""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from composable._support.checks import checked, within
from composable.optim.roles import matches_pattern

_LISTS = (nn.Sequential, nn.ModuleList)


@checked(lr=within(0, ends="[)"), decay=within(0, 1, ends="(]"))
def layerwise_groups(
    model: nn.Module,
    lr: float,
    decay: float = 0.75,
    *,
    layers: Sequence[str | Sequence[str]] | None = None,
) -> list[dict[str, Any]]:
    r"""Give each layer of a model a learning rate: $\text{lr} \cdot \text{decay}^{\,n - 1 - i}$.

    $i$ counts the $n$ layers from the input, from 0. By default they are found by this rule: each
    element of an `nn.Sequential` or `nn.ModuleList` is a layer, as is each other module beside or
    before such a list. A layer without a weight of two dimensions or more, such as a norm, belongs
    to the layer before it. A parameter that is registered between two layers belongs to the first
    of them, and a shared parameter to its first layer.

    Args:
        model: The model, whose modules are registered in the order in which they are called.
        lr: The learning rate of the last layer.
        decay: The ratio of the learning rates of a layer and of the next one, in (0, 1].
        layers: The layers from input to output: for each, a name of a module or a parameter, a
            pattern such as "blocks.0.*", or a list of these. All parameters must belong to one.

    Returns:
        The groups, for any optimizer of PyTorch. Their names are "layer0", "layer1", ...

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, the model has no parameters, or `layers` has a name
            that matches nothing, or lacks a parameter.

    Example:
        >>> from composable.optim import layerwise_groups
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
        >>> optimizer = torch.optim.AdamW(layerwise_groups(model, lr=0.1, decay=0.5))
        >>> [(group["name"], group["lr"]) for group in optimizer.param_groups]
        [('layer0', 0.025), ('layer1', 0.05), ('layer2', 0.1)]
    """
    named = dict(model.named_parameters())
    if not named:
        raise ValueError(
            f"model={type(model).__name__} has no parameters; pass the model to train."
        )
    found = _found(model, named) if layers is None else _given(layers, named)
    return [
        {
            "params": [named[name] for name in names],
            "name": f"layer{i}",
            "lr": lr * decay ** (len(found) - 1 - i),
        }
        for i, names in enumerate(found)
    ]


def _found(model: nn.Module, named: dict[str, nn.Parameter]) -> list[list[str]]:
    """Return the names of the parameters of each layer, by the rule."""
    layers: list[list[str]] = []
    early: list[str] = []  # of no layer yet
    for is_layer, names in _walk(model, ""):
        own = [name for name in names if name in named]
        if is_layer and any(named[name].ndim > 1 for name in own):
            layers.append([*early, *own])
            early = []
        elif layers:
            layers[-1].extend(own)
        else:
            early.extend(own)
    return layers if not early else [early]


def _walk(module: nn.Module, path: str) -> Iterator[tuple[bool, list[str]]]:
    """Yield the names of the parameters of layers, and of what is registered between them.

    Whether it is a layer is said before the names.
    """
    yield False, [_join(path, name) for name, _ in module.named_parameters(recurse=False)]
    for name, child in module.named_children():
        if isinstance(child, _LISTS) or (not isinstance(module, _LISTS) and _has_list(child)):
            yield from _walk(child, _join(path, name))
        else:
            yield True, [_join(path, f"{name}.{one}") for one, _ in child.named_parameters()]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _has_list(module: nn.Module) -> bool:
    return any(isinstance(one, _LISTS) for one in module.modules())


def _given(layers: Any, named: dict[str, nn.Parameter]) -> list[list[str]]:
    """Return the names of the parameters of each layer, as the user defined them."""
    if not isinstance(layers, (list, tuple)) or not layers:
        raise TypeError(
            f"layers={layers!r} must be a list of names of modules, such as ['embed', 'blocks.0']."
        )
    rest, found = dict(named), []
    for i, given in enumerate(layers):
        patterns = [given] if isinstance(given, str) else given
        if not isinstance(patterns, (list, tuple)) or not all(isinstance(p, str) for p in patterns):
            raise TypeError(f"layers[{i}]={given!r} must be a name or a list of names.")
        for pattern in patterns:
            if not any(matches_pattern(name, pattern) for name in named):
                raise ValueError(
                    f"layers[{i}] has {pattern!r}, which matches no parameter: use names of "
                    "model.named_parameters()."
                )
        found.append([name for name in rest if any(matches_pattern(name, p) for p in patterns)])
        rest = {name: p for name, p in rest.items() if name not in found[-1]}
    if rest:
        raise ValueError(
            f"layers={layers!r} lacks the parameter {next(iter(rest))!r}: add its module to one."
        )
    return found
