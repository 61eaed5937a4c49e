"""Which blocks are residual and where their residual is, and a block that may drop it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ._random import numbers

__all__ = ["KNOWN", "Dropping", "ResidualBlock", "StochasticBlock", "start_dropping"]


def _inputs(block: nn.Module, inputs: Tensor) -> Tensor:
    return inputs


@dataclass(frozen=True)
class ResidualBlock:
    """Describes a class of residual blocks to `stochastic_depth`.

    Args:
        kind: The class, or its full name, so that it need not be imported.
        shortcut: `shortcut(block, inputs)`: what the block computes without its residual. By
            default the inputs themselves.
        residual: `residual(block)`: the submodule whose output is the residual, which is added to
            the shortcut. None where the shortcut costs nothing: then the residual is what the
            block's output has beyond the shortcut.

    Example:
        >>> class Block(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.conv = nn.Conv1d(3, 3, 1)
        ...
        ...     def forward(self, x):
        ...         return torch.relu(x + self.conv(x))
        >>> description = ResidualBlock(
        ...     Block,
        ...     shortcut=lambda block, x: torch.relu(x),
        ...     residual=lambda block: block.conv,
        ... )
        >>> from composable.functional import stochastic_depth
        >>> model = stochastic_depth(Block(), target=description, drop_rate=1.0)
        >>> model(torch.tensor([[[-1.0], [0.0], [2.0]]])).squeeze()
        tensor([0., 0., 2.])
    """

    kind: type[nn.Module] | str
    shortcut: Callable[[Any, Tensor], Any] = _inputs
    residual: Callable[[Any], nn.Module] | None = None

    @property
    def name(self) -> str:
        """The full name of the class."""
        return self.kind if isinstance(self.kind, str) else _full_name(self.kind)

    def covers(self, kind: type[nn.Module]) -> bool:
        """Whether a class is this one, or a subclass."""
        return self.name in map(_full_name, kind.__mro__)


@dataclass(frozen=True)
class Dropping:
    """How a block drops its residual: what its class does not hold, under one name."""

    block: ResidualBlock
    per_example: bool
    full_rate: float
    scale: float = 1.0

    @property
    def rate(self) -> float:
        """How likely the residual is dropped."""
        return self.full_rate * self.scale

    def chosen_first(self, module: nn.Module) -> bool:
        """Whether the choice comes before anything is computed: not in a graph or `torch.func`."""
        traced = torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level()
        return module.training and not self.per_example and not traced

    def draw(self, like: Tensor) -> Tensor:
        """Draw what is kept: of each example, or of the batch."""
        size = (like.shape[0] if self.per_example else 1,) + (1,) * (like.ndim - 1)
        return torch.rand(size, device=like.device) >= self.rate


class StochasticBlock(nn.Module):
    """A residual block that drops its residual at random: in front of the block's own class."""

    stochastic_depth: Dropping

    def forward(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Compute the block, or its shortcut alone."""
        how, whole = self.stochastic_depth, self.stochastic_depth.block.residual is None
        first = how.chosen_first(self)
        if first and numbers(torch.rand((), device="cpu")) < how.rate:
            return how.block.shortcut(self, inputs)
        outputs = super().forward(inputs, *args, **kwargs)
        if not whole:
            return outputs
        shortcut = how.block.shortcut(self, inputs)
        _check_alike(type(self).__mro__[2], outputs, shortcut)
        if first or not how.rate:
            return outputs
        shortcut = shortcut.to(outputs.dtype)  # autocast may have made them differ
        if not self.training and outputs.is_nested:  # of sequences with padding, in encoders
            return shortcut + (outputs - shortcut) * (1 - how.rate)
        if not self.training:
            return torch.lerp(shortcut, outputs, 1 - how.rate)
        return torch.where(how.draw(outputs), outputs, shortcut)

    def extra_repr(self) -> str:
        how, own = self.stochastic_depth, super().extra_repr()
        drawn = "sample" if how.per_example else "block"
        return f"{own}{', ' * bool(own)}drop_rate={how.rate:.4g}, method={drawn!r}"

    def _gate_residual(self, _: nn.Module, args: Any, residual: Tensor) -> Tensor:
        """Drop the residual, or scale it: a hook of the submodule that computes it."""
        how = self.stochastic_depth
        if how.chosen_first(self) or not how.rate:
            return residual
        if not self.training:
            return residual * (1 - how.rate)
        # A product: on a CPU torch.where takes several times as long, forward and backward.
        return residual * how.draw(residual).to(residual.dtype)


def start_dropping(block: StochasticBlock, how: Dropping) -> StochasticBlock:
    """Set up a block that was taken over."""
    block.stochastic_depth = how
    if how.block.residual is not None:
        how.block.residual(block).register_forward_hook(block._gate_residual)
    return block


def _check_alike(kind: type, outputs: Any, shortcut: Any) -> None:
    if not (isinstance(outputs, Tensor) and isinstance(shortcut, Tensor)):
        raise TypeError(
            f"{kind.__name__} returned {type(outputs).__name__}, and its shortcut is "
            f"{type(shortcut).__name__}; stochastic depth needs blocks of a tensor to a tensor. "
            "Describe its residual with target=ResidualBlock(...)."
        )
    if outputs.is_nested and shortcut.is_nested:  # they have no shape, and refuse other sums
        return
    if outputs.shape != shortcut.shape:
        raise ValueError(
            f"{kind.__name__} made shape {tuple(outputs.shape)} of its shortcut's "
            f"{tuple(shortcut.shape)}, so it is no x + f(x). Describe its shortcut with "
            "target=ResidualBlock(...)."
        )


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _first_of(block: nn.Module, *, names: tuple[str, ...]) -> nn.Module:
    """Find the first of these submodules that a block has."""
    return next(block.get_submodule(name) for name in names if getattr(block, name, None))


def _activated(block: Any, inputs: Tensor, *, activation: str) -> Tensor:
    """Compute what a block of a residual net does without its residual."""
    # The activation may work in place, and the inputs are not ours.
    summed = inputs.clone() if block.downsample is None else block.downsample(inputs)
    outputs: Tensor = getattr(block, activation)(summed)
    return outputs


def _of_residual_net(name: str, activation: str, *residual: str) -> ResidualBlock:
    return ResidualBlock(
        name,
        shortcut=partial(_activated, activation=activation),
        residual=partial(_first_of, names=residual),
    )


KNOWN = (
    _of_residual_net("torchvision.models.resnet.BasicBlock", "relu", "bn2"),
    _of_residual_net("torchvision.models.resnet.Bottleneck", "relu", "bn3"),
    _of_residual_net("timm.models.resnet.BasicBlock", "act2", "drop_path", "se", "bn2"),
    _of_residual_net("timm.models.resnet.Bottleneck", "act3", "drop_path", "se", "bn3"),
    ResidualBlock("transformers.models.bert.modeling_bert.BertLayer"),
    ResidualBlock("transformers.models.roberta.modeling_roberta.RobertaLayer"),
    ResidualBlock("transformers.models.gpt2.modeling_gpt2.GPT2Block"),
)
