"""Descriptions of residual blocks, and a residual block that drops its residual at random."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from composable._support.checks import kind_of
from composable._support.devices import read_draw
from composable._support.registry import class_name, named


def _inputs(block: nn.Module, inputs: Tensor) -> Tensor:
    return inputs


def _always(block: nn.Module) -> bool:
    return True


@dataclass(frozen=True)
class ResidualBlock:
    """The description of a class of residual blocks for `stochastic_depth`.

    Args:
        kind: The class, or its full name, so that it need not be imported.
        shortcut: A function `shortcut(block, inputs)` that computes the block without its residual.
            By default it returns the inputs.
        applies: A function `applies(block)` that returns whether a block of the class has a
            shortcut. By default all blocks have one.
        residual: A function `residual(block)` that returns the submodule that computes the
            residual, which the block adds to the shortcut. None for a shortcut without cost: then
            the residual is the difference between the outputs of the block and the shortcut.
        returns_more: Whether the block returns a tuple, of its outputs and what later blocks need.
            It is then computed even if its residual is dropped.

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
    applies: Callable[[Any], bool] = _always
    returns_more: bool = False

    @property
    def name(self) -> str:
        """The full name of the class."""
        return self.kind if isinstance(self.kind, str) else class_name(self.kind)

    def covers(self, kind: type[nn.Module]) -> bool:
        """Return whether a class is this class or a subclass."""
        return self.name in map(class_name, kind.__mro__)


@dataclass(frozen=True)
class Dropping:
    """The settings of a block that drops its residual."""

    block: ResidualBlock
    per_example: bool
    full_rate: float
    scale: float = 1.0

    @property
    def rate(self) -> float:
        """The probability to drop the residual."""
        return self.full_rate * self.scale

    def drawn_first(self, module: nn.Module) -> bool:
        """Return whether to draw before the forward pass; compiled graphs and vmap can't branch."""
        traced = torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level()
        skips = not (self.per_example or self.block.returns_more)
        return module.training and skips and not traced

    def draw(self, like: Tensor) -> Tensor:
        """Draw whether to keep the residual, per example or per batch."""
        size = (like.shape[0] if self.per_example else 1,) + (1,) * (like.ndim - 1)
        return torch.rand(size, device=like.device) >= self.rate


class StochasticBlock(nn.Module):
    """A residual block that drops its residual at random; a base before the class of the block."""

    dropping: Dropping  # torchvision's Swin has a layer of the name stochastic_depth

    def forward(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Compute the block, or only its shortcut."""
        how, block = self.dropping, self.dropping.block
        first = how.drawn_first(self)
        # A weight of 0 means not read.
        never = how.rate == 1 and not self.training and not block.returns_more
        if never or (first and read_draw(torch.rand((), device="cpu")) < how.rate):
            return block.shortcut(self, inputs)
        outputs = super().forward(inputs, *args, **kwargs)
        if block.residual is not None:
            return outputs
        if block.returns_more and isinstance(outputs, tuple):
            return self._mixed(first, outputs[0], block.shortcut(self, inputs)), *outputs[1:]
        return self._mixed(first, outputs, block.shortcut(self, inputs))

    def _mixed(self, first: bool, outputs: Any, shortcut: Any) -> Any:
        """Return the outputs, the shortcut, or their mean; the outputs if it was drawn first."""
        how = self.dropping
        _check_same_shape(type(self).__mro__[2], outputs, shortcut)
        if first or not how.rate:
            return outputs
        shortcut = shortcut.to(outputs.dtype)  # autocast can make them differ
        if not self.training:
            return torch.lerp(shortcut, outputs, 1 - how.rate)
        return torch.where(how.draw(outputs), outputs, shortcut)

    def extra_repr(self) -> str:
        how, own = self.dropping, super().extra_repr()
        drawn = "sample" if how.per_example else "block"
        return f"{own}{', ' * bool(own)}drop_rate={how.rate:.4g}, method={drawn!r}"

    def _gate_residual(self, _: nn.Module, args: Any, residual: Tensor) -> Tensor:
        """Drop or scale the residual, as a forward hook of the submodule that computes it."""
        how = self.dropping
        if how.drawn_first(self) or not how.rate:
            return residual
        if not self.training:
            return residual * (1 - how.rate)
        # A product: on a CPU, torch.where is several times slower, forward and backward.
        return residual * how.draw(residual).to(residual.dtype)


def start_dropping(block: StochasticBlock, how: Dropping) -> StochasticBlock:
    """Set the attributes and the hook of a block whose class was changed."""
    block.dropping = how
    if how.block.residual is not None:
        residual: Any = how.block.residual(block)
        residual.register_forward_hook(block._gate_residual)
        residual.changed_outputs = True
    return block


def _check_same_shape(kind: type, outputs: Any, shortcut: Any) -> None:
    if not (isinstance(outputs, Tensor) and isinstance(shortcut, Tensor)):
        raise TypeError(
            f"{kind.__name__} must return a tensor and have a tensor as its shortcut, not "
            f"{kind_of(outputs)} and {kind_of(shortcut)}; describe its residual with "
            "target=ResidualBlock(...)."
        )
    if outputs.shape != shortcut.shape:
        raise ValueError(
            f"{kind.__name__} must return outputs of the shape of its shortcut "
            f"{tuple(shortcut.shape)}, not {tuple(outputs.shape)}; describe its shortcut with "
            "target=ResidualBlock(...)."
        )


def _first_of(block: nn.Module, *, names: tuple[str, ...]) -> nn.Module:
    """Return the first of these submodules that a block has."""
    return next(block.get_submodule(name) for name in names if getattr(block, name, None))


def _activated(block: Any, inputs: Tensor, *, activation: str) -> Tensor:
    """Compute a block of a residual network without its residual."""
    # The activation may be in place, and must not change the inputs.
    summed = inputs.clone() if block.downsample is None else block.downsample(inputs)
    outputs: Tensor = getattr(block, activation)(summed)
    return outputs


def _of_residual_net(name: str, activation: str, *residual: str) -> ResidualBlock:
    return ResidualBlock(
        name,
        shortcut=partial(_activated, activation=activation),
        residual=partial(_first_of, names=residual),
    )


def _projected(block: Any, inputs: Tensor) -> Tensor:
    """Compute the shortcut of a block of ConvNeXt."""
    outputs: Tensor = block.shortcut(inputs)
    return outputs


_drop_path = attrgetter("drop_path")  # the layer of a block of timm that its residual goes through


def _of_efficientnet(name: str) -> ResidualBlock:
    path = f"timm.models._efficientnet_blocks.{name}"
    return ResidualBlock(path, residual=_drop_path, applies=attrgetter("has_skip"))


_OF_HUGGING_FACE = named(
    None,
    *("bert.BertLayer", "distilbert.TransformerBlock", "roberta.RobertaLayer"),
    *("xlm_roberta.XLMRobertaLayer", "gpt2.GPT2Block", "gpt_neox.GPTNeoXLayer"),
    *("llama.LlamaDecoderLayer", "mistral.MistralDecoderLayer"),
    *("qwen2.Qwen2DecoderLayer", "qwen3.Qwen3DecoderLayer", "gemma.GemmaDecoderLayer"),
    *("phi.PhiDecoderLayer", "bart.BartEncoderLayer", "bart.BartDecoderLayer", "vit.ViTLayer"),
    *("whisper.WhisperEncoderLayer", "whisper.WhisperDecoderLayer", "clip.CLIPEncoderLayer"),
)
# The first block of T5 returns the biases of all, and the layers of Swin their attention.
_RETURNING_MORE = named(None, "t5.T5Block", "swin.SwinLayer")
KNOWN = (
    _of_residual_net("torchvision.models.resnet.BasicBlock", "relu", "bn2"),
    _of_residual_net("torchvision.models.resnet.Bottleneck", "relu", "bn3"),
    _of_residual_net("timm.models.resnet.BasicBlock", "act2", "drop_path", "se", "bn2"),
    _of_residual_net("timm.models.resnet.Bottleneck", "act3", "drop_path", "se", "bn3"),
    ResidualBlock("torchvision.models.vision_transformer.EncoderBlock"),
    ResidualBlock("torchvision.models.swin_transformer.SwinTransformerBlock"),
    ResidualBlock("timm.models.vision_transformer.Block"),
    ResidualBlock("timm.models.swin_transformer.SwinTransformerBlock"),
    ResidualBlock("timm.models.mlp_mixer.MixerBlock"),
    ResidualBlock("timm.models.convnext.ConvNeXtBlock", shortcut=_projected, residual=_drop_path),
    _of_efficientnet("ConvBnAct"),
    _of_efficientnet("DepthwiseSeparableConv"),
    _of_efficientnet("EdgeResidual"),
    _of_efficientnet("InvertedResidual"),
    _of_efficientnet("UniversalInvertedResidual"),
    *map(ResidualBlock, _OF_HUGGING_FACE),
    *(ResidualBlock(name, returns_more=True) for name in _RETURNING_MORE),
)
