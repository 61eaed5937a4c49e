"""Soft-capped logits: logits that can't exceed a bound, with gradients everywhere.

Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size", 2024,
https://arxiv.org/abs/2408.00118; Bello et al., "Neural Combinatorial Optimization with
Reinforcement Learning", 2016, https://arxiv.org/abs/1611.09940
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from composable._support.checks import check_module_name, check_tensor, checked, within
from composable._support.embeddings import output_embeddings
from composable._support.surgery import report_nothing

from ._reclass import reclass
from .replace_modules import replace_named

__all__ = ["softcap_head", "softcap_logits"]


@checked(logits=check_tensor, cap=within(0, ends="()"))
def softcap_logits(logits: Float[Tensor, " *shape"], *, cap: float = 30.0) -> Tensor:
    r"""Bound logits smoothly.

    $$c \tanh(x / c)$$

    Small logits stay nearly what they are, and all are within $(-c, c)$.

    Args:
        logits: Logits of any shape.
        cap: The bound $c$, above 0.

    Returns:
        A tensor of the shape, dtype and device of `logits`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `cap` is out of range.

    Example:
        >>> softcap_logits(torch.tensor([0.0, 1.0, 1000.0]), cap=10.0)
        tensor([ 0.0000,  0.9967, 10.0000])
    """
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating-point, not {logits.dtype}.")
    return bounded(logits, cap)


def bounded(logits: Tensor, cap: float) -> Tensor:
    """Bound logits, without checks."""
    return cap * (logits / cap).tanh()


@checked(cap=within(0, ends="()"), target=check_module_name)
def softcap_head(model: nn.Module, *, cap: float = 30.0, target: str | None = None) -> nn.Module:
    """Let the head of a model return soft-capped logits: see `softcap_logits`.

    The head is the module that `get_output_embeddings()` returns, as models of Hugging Face have
    it, or the last `nn.Linear` in the order of registration. A model that computes its loss itself
    uses the capped logits. No parameter is added, so the names in the state dict stay the same, and
    tied weights stay tied.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        cap: The bound of the logits, above 0.
        target: The name of the head in `model.named_modules()`, if it is not found.

    Returns:
        The new model; `model` itself if its head has this bound already, or none is found.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `cap` is out of range, `target` is not the name of a module, the logits have a
            bound already, or the model is compiled or wrapped for distributed training.

    Warns:
        NoEffectWarning: The model has no head.

    Example:
        >>> model = nn.Sequential(nn.Embedding(256, 16), nn.Linear(16, 256))
        >>> softcap_head(model, cap=15.0)[1]
        SoftcappedLinear(in_features=16, out_features=256, bias=True, cap=15.0)
    """
    name = _head(model, target)
    if name is None:
        report_nothing("softcap_head", "what get_output_embeddings() returns, or an nn.Linear")
        return model
    head = model.get_submodule(name)
    if isinstance(head, Softcapped):
        if head.cap != cap:
            raise ValueError(
                f"cap={cap!r} must be {head.cap!r}, the bound that {name or 'model'} has already; "
                "convert the original model instead."
            )
        return model

    def softcapped(_: str, module: nn.Module) -> nn.Module:
        new: Softcapped = reclass(module, Softcapped, prefix="Softcapped")
        new.cap = cap
        return new

    return replace_named(model, [name], softcapped)


class Softcapped(nn.Module):
    """A head with soft-capped logits; a base before the class of the head."""

    cap: float

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the capped logits."""
        return bounded(super().forward(*args, **kwargs), self.cap)

    def extra_repr(self) -> str:
        """Return the options of the head, and the bound."""
        return ", ".join(filter(None, (super().extra_repr(), f"cap={self.cap}")))


def _head(model: nn.Module, target: str | None) -> str | None:
    """Return the name of the head, or None if there is none."""
    named = dict(model.named_modules())
    if target is not None:
        if target not in named:
            raise ValueError(
                f"target={target!r} must be the name of a module in model.named_modules()."
            )
        return target
    names: dict[int, str] = {id(module): name for name, module in named.items()}
    for name, module in named.items():
        capped = getattr(getattr(module, "config", None), "final_logit_softcapping", None)
        if capped is not None:
            raise ValueError(
                f"{name or 'model'} has soft-capped logits already, with the bound {capped}; set "
                "config.final_logit_softcapping instead."
            )
    for module in named.values():
        found = output_embeddings(module)
        if id(found) in names:
            return names[id(found)]
    layers = [name for name, module in named.items() if isinstance(module, nn.Linear)]
    return layers[-1] if layers else None
