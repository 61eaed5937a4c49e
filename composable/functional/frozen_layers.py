"""Layer freezing: progressively freeze the first layers during training.

Brock, Lim, Ritchie and Weston, "FreezeOut: Accelerate Training by Progressively Freezing Layers",
2017, https://arxiv.org/abs/1706.04983
"""

from math import floor
from typing import NamedTuple

from torch import nn

from composable._support.checks import checked, within


class FrozenLayers(NamedTuple):
    """The names of the frozen layers and of their parameters, in order."""

    layers: tuple[str, ...]
    parameters: tuple[str, ...]


@checked(elapsed=within(0, 1), freeze_start=within(0, 1), freeze_level=within(0, 1))
def frozen_layers(
    model: nn.Module,
    *,
    elapsed: float,
    freeze_start: float = 0.5,
    freeze_level: float = 1.0,
) -> FrozenLayers:
    r"""Return the layers that are frozen at a time of training.

    A layer is a module that directly holds parameters, whether or not it has children. Layers are
    ordered by their registration in the model. Of $n$ layers the first

    $$\left\lfloor (n - 1) \, \mathrm{level} \,
    \frac{\max(0, t - \mathrm{start})}{1 - \mathrm{start}} \right\rfloor$$

    are frozen at $t$, so the last layer is never frozen. Layers after the last one with a parameter
    that requires a gradient don't count, so at least one layer always trains.

    A parameter that several layers share belongs to the last of them, and the parameters of a
    parametrization belong to the parametrized layer.

    Args:
        model: Any module. It is not modified.
        elapsed: Elapsed fraction of training, in [0, 1].
        freeze_start: Fraction of training after which freezing starts, in [0, 1].
        freeze_level: Share of the layers that are frozen at the end, in [0, 1].

    Returns:
        The names of the layers and of their parameters, as in `named_parameters()`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 1))
        >>> frozen_layers(model, elapsed=0.5).layers
        ()
        >>> frozen_layers(model, elapsed=0.75)
        FrozenLayers(layers=('0',), parameters=('0.weight', '0.bias'))
        >>> frozen_layers(model, elapsed=1.0).layers
        ('0', '2')
    """
    if elapsed <= freeze_start:
        return FrozenLayers((), ())
    layers, last = _layers(model)
    share = freeze_level * (elapsed - freeze_start) / (1 - freeze_start)
    # 1e-9: 29 % of 100 layers are 29 layers, although 0.29 * 100 < 29 in floats.
    count = floor(share * last + 1e-9)
    chosen = list(layers)[:count]
    return FrozenLayers(tuple(chosen), tuple(name for layer in chosen for name in layers[layer]))


def _layers(model: nn.Module) -> tuple[dict[str, list[str]], int]:
    """Return the parameters of each layer, in order, and the index of the last trained layer."""
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
    return layers, max([0, *(i for i, layer in enumerate(layers) if layer in trains)])
