"""Value residual: add the values of the first layer to the values of all later layers.

Zhou et al., "Value Residual Learning", ACL 2025, https://arxiv.org/abs/2410.17897
"""

from typing import Any

import torch
from torch import Tensor, nn

from composable._support.checks import checked, within

from ._reclass import reclass
from ._trace import Trace, follow_calls
from ._values import find_values, join_values, report_no_values, split_values
from .replace_modules import replace_named

__all__ = ["value_residual"]


@checked(share=within(0, 1))
def value_residual(model: nn.Module, *, share: float = 0.5) -> nn.Module:
    r"""Add the values of the first layer of attention to the values of all later ones.

    With the values $v_1$ of the first layer of a stack, the values of layer $l$ become

    $$a_l v_l + b_l v_1$$

    with learned scales, which start at $a_l = 1 - s$ and $b_l = s$ for the `share` $s$. In a call
    that skips layers, the first one that is called takes the place of the first. In the state
    dict, `<values>.value_residual.scales` is added for each layer but the first; all other
    keys stay the same. The values of a token depend on no other token, so caches work.

    The layers are the called layers of `register_projections`: of GPT-2, Llama, Mistral, Qwen2,
    Qwen3, BERT, DistilBERT, RoBERTa and XLM-RoBERTa of Hugging Face, and your own;
    `nn.MultiheadAttention` reads its weights without a call. Layers of one stack have the same
    names up to numbers, such as `h.0.attn.c_attn` and `h.1.attn.c_attn`.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        share: Initial share $s$ of the first values, in [0, 1]. With 0, the new model computes what
            the old one did until it is trained.

    Returns:
        The new model; `model` itself if it has a value residual already, or no two such layers.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `share` is out of range, layers of one stack differ in width, or the model is
            wrapped for distributed training.

    Warns:
        NoEffectWarning: Nothing was changed.

    Example:
        >>> from composable.functional import register_projections
        >>> class Attention(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.v = nn.Linear(4, 4)
        ...
        ...     def forward(self, x):
        ...         return x + self.v(x).cumsum(1)
        >>> register_projections(Attention, value="v")
        >>> new = value_residual(nn.Sequential(Attention(), Attention()))
        >>> new[1].v.value_residual.scales.tolist()
        [0.5, 0.5]
    """
    stacks: dict[str, list[Any]] = {}
    for values in find_values(model):
        stacks.setdefault(values.stack, []).append(values)
    layers = {}
    for stack in stacks.values():
        if len({values.width for values in stack}) > 1:
            widths = {values.name: values.width for values in stack}
            raise ValueError(f"The values of one stack must have one width, not {widths}.")
        trace = Trace()
        for i, values in enumerate(stack if len(stack) > 1 else ()):
            layers[values.name] = (trace, i, values.width)
    if any(hasattr(model.get_submodule(name), "value_residual") for name in layers):
        return model
    if not layers:
        report_no_values("value_residual", "two layers of values or more, in attention")

    def with_residual(name: str, module: nn.Module) -> nn.Module:
        new = reclass(module, type(module))
        weight: Any = module.weight
        new.value_residual = ValueResidual(*layers[name], share=share, like=weight)
        new.value_residual.train(module.training)
        new.register_forward_hook(_mix)
        return new  # type: ignore[no-any-return]

    new = replace_named(model, layers, with_residual)
    follow_calls(new, {name: trace for name, (trace, _, _) in layers.items()})
    return new


class ValueResidual(nn.Module):
    """The scales of a layer, and the values of the first layer."""

    def __init__(self, trace: Trace, index: int, width: int, *, share: float, like: Tensor) -> None:
        super().__init__()
        self.trace, self.index, self.width = trace, index, width
        if index:
            scales = torch.tensor([1 - share, share], dtype=like.dtype)
            self.scales = nn.Parameter(scales.to(like.device))

    def forward(self, values: Tensor) -> Tensor:
        """Keep the values of the first layer of a call; add them to a later layer's."""
        kept = self.trace.kept
        first = 0 if kept is None else min([*kept] or [self.index])
        if first >= self.index:
            self.trace.keep(self.index, values)
            return values
        earlier = self.trace.get(first, values, "value_residual")
        own, share = self.scales.unbind()
        return own * values + share * earlier


def _mix(layer: Any, _: Any, outputs: Tensor) -> Tensor:
    others, values = split_values(outputs, layer.value_residual.width)
    return join_values(others, layer.value_residual(values))
