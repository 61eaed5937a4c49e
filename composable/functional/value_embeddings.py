"""Value embeddings: add a gated embedding of the token to the values of attention.

Records of modded-nanogpt since 2024, https://github.com/KellerJordan/modded-nanogpt; after the
value residual of Zhou et al., "Value Residual Learning", ACL 2025, https://arxiv.org/abs/2410.17897
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from composable._support.checks import check_module_name, checked, minimum

from ._reclass import reclass
from ._token_embedding import find_token_embedding
from ._trace import Trace, follow_calls
from ._values import Values, find_values, join_values, report_no_values, split_values
from .replace_modules import replace_named

__all__ = ["value_embeddings"]


def _check_layers(name: str, value: Any) -> None:
    """Raise an error unless the value is a list of numbers of layers, or None."""
    if value is None:
        return
    if not isinstance(value, (list, tuple)) or any(type(one) is not int for one in value):
        raise TypeError(f"{name}={value!r} must be a list of numbers of layers, or None for all.")
    if not value:
        raise ValueError(f"{name}={value!r} must have one number or more; pass None for all.")


@checked(layers=_check_layers, channels=minimum(1), target=check_module_name)
def value_embeddings(
    model: nn.Module,
    *,
    layers: Sequence[int] | None = None,
    channels: int = 12,
    target: str | None = None,
) -> nn.Module:
    r"""Add a gated embedding of its token to the values of each layer of attention.

    The values $v_t$ that a layer makes of its inputs $x_t$, for the token with the number $n_t$,
    become

    $$v_t + 2 \sigma(w \cdot x_{t, 1 \dots c}) \, E_{n_t}$$

    with a table $E$ and a gate $w$. Both start at zero, so the new model computes what the old one
    did until it is trained. In the state dict, `<values>.value_embedding.table` and `.gate` are
    added; all other keys stay the same. They depend on no other token, so caches work.

    The layers are found as by `value_residual`, and the token embedding as by `ngram_embeddings`.
    Embeddings that are passed (`inputs_embeds`) have no tokens and raise an error.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        layers: Numbers of the layers, from 0, or from -1 for the last. By default all.
        channels: Number $c$ of features that the gate reads, from 1 to the width of the inputs.
        target: The name of the token embedding in `model.named_modules()`, if it is not found.

    Returns:
        The new model; `model` itself if it has these embeddings already, or nothing was found.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, the layers have other value embeddings already,
            several embeddings may be the tokens', `target` is not the name of one, or the model is
            wrapped for distributed training.

    Warns:
        NoEffectWarning: The model has no token embedding, or no layer that makes values.

    Example:
        >>> from composable.functional import register_projections
        >>> class Attention(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.v = nn.Linear(16, 16)
        ...
        ...     def forward(self, x):
        ...         return x + self.v(x).cumsum(1)
        >>> register_projections(Attention, value="v")
        >>> model = nn.Sequential(nn.Embedding(256, 16), Attention())
        >>> value_embeddings(model)[1].v.value_embedding.table.shape
        torch.Size([256, 16])
    """
    name = find_token_embedding(model, target, "value_embeddings")
    if name is None:
        return model
    every = find_values(model)
    if not every:
        report_no_values("value_embeddings", "layers of values, in attention")
        return model
    chosen = _choose(every, layers)
    if inputs := [values.inputs for values in chosen if channels > values.inputs]:
        raise ValueError(f"channels={channels} must be at most {inputs[0]}, the width of layers.")
    if _is_converted(model, every, chosen, channels):
        return model
    rows, trace = len(model.get_submodule(name).weight), Trace()  # type: ignore[arg-type]
    places = {values.name: values.width for values in chosen}

    def with_embedding(at: str, module: nn.Module) -> nn.Module:
        new = reclass(module, type(module))
        if at == name:
            new.tokens_of_values = trace
            new.register_forward_pre_hook(partial(_keep_tokens, rows), with_kwargs=True)
            return new  # type: ignore[no-any-return]
        weight: Any = module.weight
        new.value_embedding = ValueEmbedding(
            trace, weight.new_zeros(rows, places[at]), weight.new_zeros(channels)
        ).train(module.training)
        new.register_forward_hook(_add)
        return new  # type: ignore[no-any-return]

    new = replace_named(model, {name, *places}, with_embedding)
    follow_calls(new, dict.fromkeys([name, *places], trace))
    return new


class ValueEmbedding(nn.Module):
    """The table and the gate of a layer, and the tokens of a call."""

    def __init__(self, trace: Trace, table: Tensor, gate: Tensor) -> None:
        super().__init__()
        self.trace = trace
        self.table = nn.Parameter(table.detach())
        self.gate = nn.Parameter(gate.detach())

    def forward(self, inputs: Tensor, values: Tensor) -> Tensor:
        """Return the values, with the embeddings of the tokens."""
        tokens = self.trace.get("tokens", inputs[..., 0], "value_embeddings")
        read = inputs[..., : len(self.gate)]
        gate = 2 * nn.functional.linear(read, self.gate[None]).sigmoid()
        return values + (gate * nn.functional.embedding(tokens, self.table)).to(values.dtype)


def _keep_tokens(rows: int, embedding: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    if embedding.num_embeddings > rows:
        raise ValueError(
            f"the value embeddings have {rows} rows, but the token embedding was resized to "
            f"{embedding.num_embeddings}: call resize_token_embeddings before value_embeddings."
        )
    embedding.tokens_of_values.keep("tokens", args[0] if args else kwargs["input"])


def _add(layer: Any, args: tuple[Any, ...], outputs: Tensor) -> Tensor:
    others, values = split_values(outputs, layer.value_embedding.table.shape[1])
    return join_values(others, layer.value_embedding(args[0], values))


def _choose(every: list[Values], layers: Any) -> list[Values]:
    """Return the layers of these numbers, in their order in the model."""
    if layers is None:
        return every
    count = len(every)
    if any(not -count <= layer < count for layer in layers):
        raise ValueError(
            f"layers={layers!r} must be numbers from {-count} to {count - 1}, since the model has "
            f"{count} layers of values."
        )
    return [every[i] for i in sorted({layer % count for layer in layers})]


def _is_converted(
    model: nn.Module, every: list[Values], chosen: list[Values], channels: int
) -> bool:
    """Return whether layers have these value embeddings.

    Raises:
        ValueError: They have others.
    """
    found = {}
    for values in every:
        embedding = getattr(model.get_submodule(values.name), "value_embedding", None)
        if isinstance(embedding, ValueEmbedding):
            found[values.name] = len(embedding.gate)
    if found and found != {values.name: channels for values in chosen}:
        raise ValueError(
            f"layers and channels={channels} must be those with which the model is converted "
            f"already, {found}; convert the original model instead."
        )
    return bool(found)
