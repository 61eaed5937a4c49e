"""Smear: a gated share of the previous token's embedding."""

from jaxtyping import Float, Integer
from torch import Tensor, nn

from composable._support.checks import check_tensor

from .ngrams import check_documents


def smear_tokens(
    inputs: Float[Tensor, "*batch length width"],
    gate: Float[Tensor, " channels"],
    scale: Float[Tensor, "..."],
    *,
    document_ids: Integer[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch length width"]:
    r"""Add a gated share of the previous token to each token.

    $$x_t + s \, \sigma(w \cdot x_{t, 1 \dots c}) \, x_{t-1}$$

    The first token of a document has no previous token.

    Args:
        inputs: Embeddings `[..., length, width]`.
        gate: Weights $w$ `[channels]` of the first features of a token, at most `width`.
        scale: Scale $s$, a tensor of one element.
        document_ids: The number of the document of each token, as `pack_documents` returns it, in
            a shape that broadcasts to `[..., length]`. By default a row is one document.

    Returns:
        A tensor of the shape and dtype of `inputs`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `inputs` has fewer than two dimensions, `gate` is not one of at most `width`
            weights, or `document_ids` does not broadcast.

    Example:
        >>> import torch
        >>> x = torch.tensor([[1.0], [2.0], [4.0]])
        >>> smear_tokens(x, torch.zeros(1), torch.tensor(1.0)).flatten()
        tensor([1.0000, 2.5000, 5.0000])
    """
    check_tensor("inputs", inputs)
    check_tensor("gate", gate)
    check_tensor("scale", scale)
    if inputs.ndim < 2 or not inputs.is_floating_point():
        raise ValueError(
            f"inputs must be floating-point embeddings [..., length, width], not {inputs.dtype} of "
            f"shape {tuple(inputs.shape)}."
        )
    fits = gate.ndim == 1 and 0 < len(gate) <= inputs.shape[-1]
    if not fits or not gate.is_floating_point():
        raise ValueError(
            f"gate must have 1 to {inputs.shape[-1]} floating-point weights, not {gate.dtype} of "
            f"shape {tuple(gate.shape)}."
        )
    if scale.numel() != 1 or not scale.is_floating_point():
        raise ValueError(
            f"scale must be one floating-point number, not {scale.dtype} of shape "
            f"{tuple(scale.shape)}."
        )
    check_documents(document_ids, inputs[..., 0])
    share = scale.reshape(()) * nn.functional.linear(inputs[..., : len(gate)], gate[None]).sigmoid()
    share = share[..., 1:, :].to(inputs.dtype)
    if document_ids is not None:
        within = document_ids[..., 1:] == document_ids[..., :-1]
        share = share * within.unsqueeze(-1)
    added = share * inputs[..., :-1, :]
    return inputs + nn.functional.pad(added, (0, 0, inputs.shape[-2] - added.shape[-2], 0))
