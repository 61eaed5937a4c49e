"""Descriptions of projections: the layers that write the residual stream or make the values."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from composable._support.checks import check_flag
from composable._support.registry import Registry, class_name

__all__ = ["register_projections"]

CONV1D = "transformers.pytorch_utils.Conv1D"


@dataclass(frozen=True)
class Projections:
    """The names of the projections of a block: see `register_projections`."""

    output: str | None = None
    value: str | None = None
    fused: bool = False


_MODELS = "transformers.models"
_OF_LLAMA = {
    "Attention": Projections("o_proj", "v_proj"),
    "MLP": Projections("down_proj"),
}
_OF_BERT = {
    "Attention": Projections("output.dense", "self.value"),
    "Output": Projections("dense"),
}
_OF_TORCH = Projections("linear2")
_FAMILIES = {
    "Bert": _OF_BERT,
    "Roberta": _OF_BERT,
    "XLMRoberta": _OF_BERT,
    **dict.fromkeys(("Llama", "Mistral", "Qwen2", "Qwen3"), _OF_LLAMA),
    "GPT2": {
        "Attention": Projections("c_proj", "c_attn", fused=True),
        "MLP": Projections("c_proj"),
    },
}
_OF_RESNET = {"BasicBlock": Projections("bn2"), "Bottleneck": Projections("bn3")}
REGISTRY: Registry[Projections] = Registry(
    {
        nn.MultiheadAttention: Projections("out_proj", "in_proj", fused=True),
        nn.TransformerEncoderLayer: _OF_TORCH,
        nn.TransformerDecoderLayer: _OF_TORCH,
        f"{_MODELS}.distilbert.modeling_distilbert.DistilBertSelfAttention": Projections(
            "out_lin", "v_lin"
        ),
        f"{_MODELS}.distilbert.modeling_distilbert.FFN": Projections("lin2"),
        **{f"torchvision.models.resnet.{name}": parts for name, parts in _OF_RESNET.items()},
        **{f"timm.models.resnet.{name}": parts for name, parts in _OF_RESNET.items()},
        **{
            f"{_MODELS}.{module}.modeling_{module}.{family}{name}": parts
            for family, blocks in _FAMILIES.items()
            for module in [family.lower().replace("xlmr", "xlm_r")]
            for name, parts in blocks.items()
        },
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
    """Return whether the weight of a layer is that of `Conv1D` of Hugging Face."""
    return CONV1D in map(class_name, type(linear).__mro__)
