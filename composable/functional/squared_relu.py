"""Squared ReLU: square the rectified activations of feed-forward blocks.

So et al., "Primer: Searching for Efficient Transformers for Language Modeling", NeurIPS 2021,
https://arxiv.org/abs/2109.08668
"""

from typing import Any

from torch import nn

from composable._support.checks import checked, optional, within
from composable._support.registry import Registry, check_class, class_name

from ._reclass import reclass
from .gated_linear_units import GATED
from .gated_linear_units import REGISTRY as FEED_FORWARD
from .layers.squared_relu import SquaredReLU
from .replace_modules import replace_or_report

ACTIVATIONS: Registry[str] = Registry(
    {
        nn.TransformerEncoderLayer: "activation",
        nn.TransformerDecoderLayer: "activation",
        **GATED,
    }
)
"""The name of the activation, by the class of blocks that `gated_linear_units` doesn't change."""
ADVICE = """Pass the class of the activations, or describe your own block:
    target=nn.GELU
    register_gated_linear_units(MyBlock, linear="fc1", activation="act")"""


@checked(slope=within(0, 1), target=optional(check_class))
def squared_relu(
    model: nn.Module, *, slope: float = 0.0, target: type[nn.Module] | None = None
) -> nn.Module:
    r"""Replace the activations of feed-forward blocks by squared ReLU.

    $$\mathrm{act}(x) = \max(x, s x)^2$$

    with the slope $s$ of negative inputs, which is 0 in the paper. In a gated block, which computes
    $\mathrm{act}(W_1 x) \odot V x$, it replaces the activation of the gate.

    The function knows the feed-forward blocks of BERT, DistilBERT, RoBERTa, XLM-RoBERTa, GPT-2,
    GPT-NeoX, Llama, Mistral, Phi-3, Qwen2 and Qwen3 of Hugging Face, the layers of
    `nn.Transformer`, and what `register_gated_linear_units` lists. Hooks of the activations and the
    keys of the state dict don't change.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        slope: Slope of negative inputs before the square, in [0, 1].
        target: A class of activations to replace everywhere in the model, such as `nn.GELU`,
            instead of the known blocks' activations.

    Returns:
        The new model; `model` itself if there is nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `slope` is out of range, or the model is wrapped for distributed training.

    Warns:
        NoEffectWarning: Nothing was replaced, or a replacement may be bypassed.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        >>> squared_relu(model, target=nn.GELU)[1]
        SquaredReLU(slope=0.0)
    """

    def rule(name: str, module: nn.Module) -> nn.Module:
        if target is not None:
            found = target in (*type(module).__mro__, *map(class_name, type(module).__mro__))
            return _squared(module, slope, module.training) if found else module
        path = _path(module)
        if path is None:
            return module
        at, _, attribute = path.rpartition(".")
        old = getattr(module.get_submodule(at), attribute)
        new = _squared(old, slope, module.training)
        if new is old:
            return module
        block = reclass(module, type(module))
        setattr(block.get_submodule(at), attribute, new)
        if isinstance(block, nn.TransformerEncoderLayer):
            block.activation_relu_or_gelu = 0  # its fast path knows only these two
        return block  # type: ignore[no-any-return]

    known = f"feed-forward blocks of the classes {FEED_FORWARD.names}, {ACTIVATIONS.names}"
    sought = known if target is None else f"layers of the class {target}"
    advice = ADVICE if target is None else ""
    return replace_or_report(model, rule, SquaredReLU, "squared_relu", sought, advice)


def _squared(old: Any, slope: float, mode: bool) -> nn.Module:
    """Return the activation in the place of another one, with its hooks."""
    if isinstance(old, SquaredReLU) and old.slope == slope:
        return old
    new = SquaredReLU(slope).train(mode)
    if isinstance(old, nn.Module):
        vars(new).update({name: value for name, value in vars(old).items() if "_hook" in name})
    return new


def _path(block: nn.Module) -> str | None:
    """Return where a known block has its activation."""
    if (parts := FEED_FORWARD.find(type(block))) is None:
        return ACTIVATIONS.find(type(block))
    gated = getattr(block.get_submodule(parts.linear), "non_gated", None) is not None
    return f"{parts.linear}.activation" if gated else parts.activation
