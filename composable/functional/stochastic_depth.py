"""Stochastic depth: drop residual blocks at random in training.

Huang, Sun, Liu, Sedra and Weinberger, "Deep Networks with Stochastic Depth", ECCV 2016,
https://arxiv.org/abs/1603.09382
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from torch import Tensor, nn

from composable._support.checks import check_module, check_one_of, check_range
from composable._support.surgery import check_unwrapped, copy_on_write, report_nothing

from ._reclass import reclass
from .layers.residual import KNOWN, Dropping, ResidualBlock, StochasticBlock, start_dropping
from .replace_modules import replace_modules

__all__ = ["scale_drop_rates", "stochastic_depth"]

Target: TypeAlias = type[nn.Module] | ResidualBlock | Iterable[type[nn.Module] | ResidualBlock]
METHODS = ("block", "sample")
DISTRIBUTIONS = ("linear", "uniform")
ADVICE = """Pass your own, which computes x + f(x) or is described by its shortcut:
    target=MyBlock
    target=ResidualBlock(MyBlock, shortcut=lambda block, x: block.downsample(x))"""


def stochastic_depth(
    model: nn.Module,
    *,
    target: Target | None = None,
    method: str = "block",
    drop_rate: float = 0.2,
    drop_distribution: str = "linear",
) -> nn.Module:
    r"""Drop the residuals of residual blocks at random.

    A block computes $y = g(s(x) + f(x))$, with a shortcut $s$ and often an activation $g$. With
    the drop rate $p_l$ of block $l$ of $L$, which is `drop_rate` (uniform) or
    $\mathrm{drop\_rate} \cdot l / L$ (linear):

    $$y = g(s(x) + b f(x)), \quad b \sim \mathrm{Bernoulli}(1 - p_l) \text{ in training},
    \quad b = 1 - p_l \text{ in evaluation}$$

    So the residual has the same mean in evaluation as in training. With "block", one $b$ is drawn
    for the whole batch, on the CPU, and a dropped residual is not computed (except in a compiled
    model, which can't branch, and in T5 and Swin of Hugging Face). With "sample", one $b$ is drawn
    for each example. Both use torch's global generators, like dropout.

    Keys of the state dict don't change, and blocks that have a drop rate are skipped. The
    parameters of a dropped block get no gradient in that step.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        target: The blocks: a class, a `ResidualBlock` that describes a class, or several of these.
            By default all known blocks: `BasicBlock` and `Bottleneck` of the residual networks, the
            vision transformers and Swin of torchvision and timm; timm's ConvNeXt, EfficientNet and
            MLP-Mixer; and BART, BERT, CLIP, DistilBERT, Gemma, GPT-2, GPT-NeoX, Llama, Mistral,
            Phi, Qwen2, Qwen3, RoBERTa, Swin, T5, ViT, Whisper and XLM-RoBERTa of Hugging Face. Any
            other class must compute $y = x + f(x)$, or be described.
        method: "block" or "sample".
        drop_rate: Drop rate of the last block ("linear") or of all blocks ("uniform"), in [0, 1].
            0 doesn't change the model.
        drop_distribution: "linear" (in the order of registration) or "uniform".

    Returns:
        The new model; `model` itself if there is nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An option does not exist, `drop_rate` is out of range, or the model is wrapped
            for distributed training.

    Warns:
        NoEffectWarning: Nothing was replaced, or a replacement may be bypassed.

    Example:
        >>> class Block(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.residual = nn.Linear(2, 2)
        ...
        ...     def forward(self, x):
        ...         return x + self.residual(x)
        >>> model = stochastic_depth(nn.Sequential(Block(), Block()), target=Block, drop_rate=0.5)
        >>> [(type(block).__name__, block.dropping.rate) for block in model]
        [('StochasticBlock', 0.25), ('StochasticBlock', 0.5)]
    """
    check_module("model", model)
    descriptions = describe_blocks(target)
    check_one_of("method", method, METHODS)
    check_range("drop_rate", drop_rate, 0, 1)
    check_one_of("drop_distribution", drop_distribution, DISTRIBUTIONS)
    check_unwrapped(model)
    blocks = [name for name, module in model.named_modules() if _find(module, descriptions)]
    if not blocks:
        if not any(isinstance(module, StochasticBlock) for module in model.modules()):
            sought = f"blocks of the classes {', '.join(block.name for block in descriptions)}"
            report_nothing("stochastic_depth", sought, ADVICE if target is None else "")
        return model
    if drop_rate == 0:
        return model
    shares = {name: (i + 1) / len(blocks) for i, name in enumerate(blocks)}

    def rule(name: str, module: nn.Module) -> nn.Module:
        if name not in shares or (description := _find(module, descriptions)) is None:
            return module
        rate = drop_rate * (shares[name] if drop_distribution == "linear" else 1)
        new = reclass(module, StochasticBlock, prefix="Stochastic")
        return start_dropping(new, Dropping(description, method == "sample", rate))

    return replace_modules(model, rule).model


def scale_drop_rates(model: nn.Module, scale: float, *, target: Target | None = None) -> nn.Module:
    """Scale the drop rates of a model of `stochastic_depth`, such as for a warm-up.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        scale: Factor of the original drop rates, in [0, 1]. It replaces an earlier scale.
        target: The blocks, as for `stochastic_depth`. None for all blocks with a drop rate.

    Returns:
        The new model; `model` itself if its rates have this scale already.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `scale` is out of range, or the model is wrapped for distributed training.

    Example:
        >>> block = stochastic_depth(nn.Identity(), target=nn.Identity, drop_rate=0.5)
        >>> scale_drop_rates(block, 0.4).dropping.rate
        0.2
    """
    check_module("model", model)
    check_range("scale", scale, 0, 1)
    names = None if target is None else {one.name for one in describe_blocks(target)}
    if all(block.dropping.scale == scale for block in _stochastic(model, names)):
        return model
    new = copy_on_write(model)
    for block in _stochastic(new, names):
        block.dropping = replace(block.dropping, scale=scale)
    return new


def _stochastic(model: nn.Module, names: set[str] | None) -> Iterator[StochasticBlock]:
    for module in model.modules():
        if isinstance(module, StochasticBlock) and (
            names is None or module.dropping.block.name in names
        ):
            yield module


def describe_blocks(target: Any) -> list[ResidualBlock]:
    """Return the descriptions of the given blocks, or of all known blocks for None."""
    if target is None:
        return list(KNOWN)
    several = isinstance(target, Iterable) and not isinstance(target, (type, str, Tensor))
    return [_description(one) for one in (target if several else [target])]


def _description(target: Any) -> ResidualBlock:
    if isinstance(target, ResidualBlock):
        return target
    if isinstance(target, type) and issubclass(target, nn.Module):
        return next((known for known in KNOWN if known.covers(target)), ResidualBlock(target))
    raise TypeError(
        f"target={target!r} must be a class of modules, a ResidualBlock, several of these, or None "
        "for all known blocks."
    )


def _find(module: nn.Module, descriptions: list[ResidualBlock]) -> ResidualBlock | None:
    if isinstance(module, StochasticBlock):
        return None
    found = next((block for block in descriptions if block.covers(type(module))), None)
    return found if found is not None and found.applies(module) else None
