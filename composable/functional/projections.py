"""Descriptions of projections: the layers that write the residual stream or make the values."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from composable._support.checks import check_flag
from composable._support.registry import Registry, class_name, named

__all__ = ["register_projections"]

CONV1D = "transformers.pytorch_utils.Conv1D"


@dataclass(frozen=True)
class Projections:
    """The names of the projections of a block: see `register_projections`."""

    output: str | None = None
    value: str | None = None
    fused: bool = False


_BERTS = ("bert.Bert", "roberta.Roberta", "xlm_roberta.XLMRoberta")
_LLAMAS = ("llama.Llama", "mistral.Mistral", "qwen2.Qwen2", "qwen3.Qwen3")
_OF_RESNET = {"BasicBlock": Projections("bn2"), "Bottleneck": Projections("bn3")}
REGISTRY: Registry[Projections] = Registry(
    {
        nn.MultiheadAttention: Projections("out_proj", "in_proj", fused=True),
        nn.TransformerEncoderLayer: Projections("linear2"),
        nn.TransformerDecoderLayer: Projections("linear2"),
        **named(Projections("out_lin", "v_lin"), "distilbert.DistilBertSelfAttention"),
        **named(Projections("lin2"), "distilbert.FFN"),
        **{f"torchvision.models.resnet.{name}": parts for name, parts in _OF_RESNET.items()},
        **{f"timm.models.resnet.{name}": parts for name, parts in _OF_RESNET.items()},
        **named(Projections("output.dense", "self.value"), *(f"{m}Attention" for m in _BERTS)),
        **named(Projections("dense"), *(f"{model}Output" for model in _BERTS)),
        **named(Projections("o_proj", "v_proj"), *(f"{model}Attention" for model in _LLAMAS)),
        **named(Projections("down_proj"), *(f"{model}MLP" for model in _LLAMAS)),
        **named(Projections("c_proj", "c_attn", fused=True), "gpt2.GPT2Attention"),
        **named(Projections("c_proj"), "gpt2.GPT2MLP"),
    }
)
ADVICE = """Describe your own block by the names of its projections:
    from composable.functional import register_projections
    register_projections(MyAttention, output="out", value="v")"""


def register_projections(
    kind: type[nn.Module] | str,
    *,
    output: str | None = None,
    value: str | None = None,
    fused: bool = False,
) -> None:
    """Register the projections of a class of attention, feed-forward or convolutional blocks.

    `initialize_projections`, `value_residual` and `value_embeddings` read the descriptions. They
    know GPT-2, Llama, Mistral, Qwen2, Qwen3, BERT, DistilBERT, RoBERTa and XLM-RoBERTa of Hugging
    Face, `nn.MultiheadAttention`, the layers of `nn.Transformer`, and the last norms of the blocks
    of the residual networks of torchvision and timm.

    Args:
        kind: The class, or its full name, so that it need not be imported. The entry applies to
            subclasses too. A second entry for a class replaces the first.
        output: Name of the layer whose outputs are added to the residual stream, as in
            `get_submodule`: a linear layer, a convolution, or a norm.
        value: Of attention: name of the linear layer that makes the values. Without it, the block
            is a feed-forward or convolutional block.
        fused: Whether that layer makes the queries, the keys and the values, in this order; the
            values are the last third of its outputs.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Neither `output` nor `value` is given.

    Example:
        >>> register_projections("package.of_mine.Attention", output="out", value="qkv", fused=True)
    """
    for name, given in [("output", output), ("value", value)]:
        if not (given is None or (isinstance(given, str) and given)):
            raise TypeError(f"{name}={given!r} must be the name of a part of the block, or None.")
    check_flag("fused", fused)
    if output is None and value is None:
        raise ValueError("output=None and value=None describe no projection; pass one of them.")
    REGISTRY.add(kind, Projections(output, value, fused))


def find_projections(model: nn.Module) -> Iterator[tuple[str, Any, Projections]]:
    """Iterate over the known blocks of a model, with their names and their projections."""
    for name, module in model.named_modules():
        if (parts := REGISTRY.find(type(module))) is not None:
            yield name, module, parts


def is_transposed(linear: nn.Module) -> bool:
    """Return whether a layer has a weight as in Hugging Face's `Conv1D`."""
    return CONV1D in map(class_name, type(linear).__mro__)
