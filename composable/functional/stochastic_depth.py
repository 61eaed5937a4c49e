"""Stochastic depth: leave out residual blocks at random in training, use all in evaluation.

Huang, Sun, Liu, Sedra and Weinberger, "Deep Networks with Stochastic Depth", ECCV 2016,
https://arxiv.org/abs/1603.09382
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from torch import nn

from ._checks import check_module, check_one_of, check_range
from ._residual_blocks import KNOWN, Dropping, ResidualBlock, StochasticBlock, start_dropping
from ._surgery import check_unwrapped, copy_on_write, replace_modules, report_nothing
from ._take_over import take_over

__all__ = ["Target", "scale_drop_rates", "stochastic_depth"]

Target: TypeAlias = type[nn.Module] | ResidualBlock | Iterable[type[nn.Module] | ResidualBlock]
METHODS = ("block", "sample")
DISTRIBUTIONS = ("linear", "uniform")


def stochastic_depth(
    model: nn.Module,
    *,
    target: Target | None = None,
    method: str = "block",
    drop_rate: float = 0.2,
    drop_distribution: str = "linear",
) -> nn.Module:
    r"""Let residual blocks drop their residual at random.

    A block computes $y = g(s(x) + f(x))$, with a shortcut $s$ and often an activation $g$. With
    the drop rate $p_l$ of block $l$ of $L$, which is `drop_rate` (uniform) or
    $\mathrm{drop\_rate} \cdot l / L$ (linear):

    $$y = g(s(x) + b f(x)), \quad b \sim \mathrm{Bernoulli}(1 - p_l) \text{ in training},
    \quad b = 1 - p_l \text{ in evaluation}$$

    So the residual has in evaluation the mean that it had in training. With "block", one $b$ is
    drawn for the whole batch, on the CPU, and what is dropped is not computed (in a compiled
    model, which can't choose, it is computed and dropped). With "sample", every example has its
    own. They come from torch's global generators, as dropout does.

    The keys of the state dict, dtypes, modes, hooks and classes stay. Blocks that have a drop rate
    are left alone, so twice is once. Parameters of a dropped block get no gradient in that step.

    Args:
        model: Any module; it is left as it was. The result shares its parameters.
        target: The blocks: a class, a `ResidualBlock` that describes one, or several of them; by
            default all that are known. Known are `BasicBlock` and `Bottleneck` of torchvision's
            and timm's residual nets, and Hugging Face's `BertLayer`, `RobertaLayer` and
            `GPT2Block`. Another class is taken for $y = x + f(x)$ as a whole; where that is not so,
            describe it.
        method: "block" or "sample".
        drop_rate: The rate of the last block, or of all, in [0, 1]. With 0 the model stays.
        drop_distribution: "linear" or "uniform", in the order in which modules were registered.

    Returns:
        The new model; `model` itself where there was nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An option does not exist, `drop_rate` is out of range, or the model is wrapped
            for distributed training.

    Warns:
        NoEffectWarning: Nothing was found, or a replacement may be bypassed.

    Example:
        >>> class Block(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.residual = nn.Linear(2, 2)
        ...
        ...     def forward(self, x):
        ...         return x + self.residual(x)
        >>> model = stochastic_depth(nn.Sequential(Block(), Block()), target=Block, drop_rate=0.5)
        >>> [(type(block).__name__, block.stochastic_depth.rate) for block in model]
        [('StochasticBlock', 0.25), ('StochasticBlock', 0.5)]
    """
    check_module("model", model)
    descriptions = described(target)
    check_one_of("method", method, METHODS)
    check_range("drop_rate", drop_rate, 0, 1)
    check_one_of("drop_distribution", drop_distribution, DISTRIBUTIONS)
    check_unwrapped(model)
    blocks = [name for name, module in model.named_modules() if _find(module, descriptions)]
    if not blocks:
        if not any(isinstance(module, StochasticBlock) for module in model.modules()):
            report_nothing("stochastic_depth", _sought(descriptions))
        return model
    if drop_rate == 0:
        return model
    shares = {name: (i + 1) / len(blocks) for i, name in enumerate(blocks)}

    def rule(name: str, module: nn.Module) -> nn.Module:
        if name not in shares or (description := _find(module, descriptions)) is None:
            return module
        rate = drop_rate * (shares[name] if drop_distribution == "linear" else 1)
        new = take_over(module, StochasticBlock, prefix="Stochastic")
        return start_dropping(new, Dropping(description, method == "sample", rate))

    return replace_modules(model, rule)[0]


def scale_drop_rates(model: nn.Module, scale: float, *, target: Target | None = None) -> nn.Module:
    """Scale the drop rates of a model that `stochastic_depth` made, to let them grow.

    Args:
        model: It is left as it was. The result shares its parameters.
        scale: What the rates are multiplied by, in [0, 1]: always the rates that the blocks were
            made with, so the last scale counts.
        target: The blocks, as `stochastic_depth` was told; all that have a drop rate where None.

    Returns:
        The new model; `model` itself where its rates are at this scale already.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `scale` is out of range, or the model is wrapped for distributed training.

    Example:
        >>> block = stochastic_depth(nn.Identity(), target=nn.Identity, drop_rate=0.5)
        >>> scale_drop_rates(block, 0.4).stochastic_depth.rate
        0.2
    """
    check_module("model", model)
    check_range("scale", scale, 0, 1)
    names = None if target is None else {one.name for one in described(target)}
    if all(block.stochastic_depth.scale == scale for block in _stochastic(model, names)):
        return model
    new = copy_on_write(model)
    for block in _stochastic(new, names):
        block.stochastic_depth = replace(block.stochastic_depth, scale=scale)
    return new


def _stochastic(model: nn.Module, names: set[str] | None) -> Iterator[StochasticBlock]:
    for module in model.modules():
        if isinstance(module, StochasticBlock) and (
            names is None or module.stochastic_depth.block.name in names
        ):
            yield module


def described(target: Any) -> list[ResidualBlock]:
    """The descriptions of blocks: one for each class that is asked for, or all known ones."""
    if target is None:
        return list(KNOWN)
    several = isinstance(target, Iterable) and not isinstance(target, (type, str))
    return [_description(one) for one in (target if several else [target])]


def _description(target: Any) -> ResidualBlock:
    if isinstance(target, ResidualBlock):
        return target
    if isinstance(target, type) and issubclass(target, nn.Module):
        return next((known for known in KNOWN if known.covers(target)), ResidualBlock(target))
    raise TypeError(
        f"target is {target!r}, but must be a class of modules, a ResidualBlock that describes "
        "one, several of these, or None for all that are known."
    )


def _find(module: nn.Module, descriptions: list[ResidualBlock]) -> ResidualBlock | None:
    if isinstance(module, StochasticBlock):
        return None
    return next((one for one in descriptions if one.covers(type(module))), None)


def _sought(descriptions: list[ResidualBlock]) -> str:
    return f"blocks of the classes {', '.join(one.name for one in descriptions)}"
