"""Layer freezing: train the first layers for a part of the time only.

Brock, Lim, Ritchie and Weston, "FreezeOut: Accelerate Training by Progressively Freezing Layers",
2017, https://arxiv.org/abs/1706.04983
"""

from math import floor
from typing import NamedTuple

from torch import nn

from ._checks import check_module, check_range

__all__ = ["FrozenLayers", "frozen_layers"]


class FrozenLayers(NamedTuple):
    """The leading layers that are frozen, and their parameters, both by name and in order."""

    layers: tuple[str, ...]
    parameters: tuple[str, ...]


def frozen_layers(
    model: nn.Module,
    *,
    elapsed: float,
    freeze_start: float = 0.5,
    freeze_level: float = 1.0,
) -> FrozenLayers:
    r"""Say which leading layers are frozen at a time of training.

    A layer is a module with parameters of its own, whether or not it has children; the order is
    that in which modules were registered. Of $n$ layers the first

    $$\left\lfloor (n - 1) \, \mathrm{level} \,
    \frac{\max(0, t - \mathrm{start})}{1 - \mathrm{start}} \right\rfloor$$

    are frozen at $t$, so the last one never is. The layers after the last one that trains
    (`requires_grad`) don't count, so that something always trains. Else the answer depends on the
    structure of the model and on $t$ alone: not on what is frozen already.

    A parameter that several layers share belongs to the last of them, and what a parametrization
    holds to the layer that is parametrized.

    Args:
        model: Any module; it is left as it was.
        elapsed: The share of the training that has passed, in [0, 1].
        freeze_start: The share of the training after which freezing begins, in [0, 1].
        freeze_level: The share of the layers that are frozen at the end, in [0, 1].

    Returns:
        The names of the layers and those of their parameters, as in `named_parameters()`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of its range.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 1))
        >>> frozen_layers(model, elapsed=0.5).layers
        ()
        >>> frozen_layers(model, elapsed=0.75)
        FrozenLayers(layers=('0',), parameters=('0.weight', '0.bias'))
        >>> frozen_layers(model, elapsed=1.0).layers
        ('0', '2')
    """
    check_module("model", model)
    check_range("elapsed", elapsed, 0, 1)
    check_range("freeze_start", freeze_start, 0, 1)
    check_range("freeze_level", freeze_level, 0, 1)
    if elapsed <= freeze_start:
        return FrozenLayers((), ())
    layers, last = _layers(model)
    share = freeze_level * (elapsed - freeze_start) / (1 - freeze_start)
    # 29 % of 100 layers are 29 of them, though 0.29 * 100 is a little less.
    count = floor(share * last + 1e-9)
    chosen = list(layers)[:count]
    return FrozenLayers(tuple(chosen), tuple(name for layer in chosen for name in layers[layer]))


def _layers(model: nn.Module) -> tuple[dict[str, list[str]], int]:
    """List the parameters of each layer, in order, and number the last layer that trains."""
    named = list(model.named_parameters(remove_duplicate=False))
    first = {id(parameter): name for name, parameter in reversed(named)}
    final = {id(parameter): name for name, parameter in named}
    layers: dict[str, list[str]] = {}
    trains = set()
    for name, parameter in named:
        if final[id(parameter)] == name:
            module = f".{name}".rpartition(".")[0]
            layer = module.partition(".parametrizations.")[0].removeprefix(".")
            layers.setdefault(layer, []).append(first[id(parameter)])
            if parameter.requires_grad:
                trains.add(layer)
    return layers, max((i for i, layer in enumerate(layers) if layer in trains), default=0)
