"""Linear cross-entropy: the loss of hidden states and a head, without the logits of all tokens.

Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", ICLR 2025,
https://arxiv.org/abs/2411.09009
"""

from functools import reduce
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import linear

from composable._support.checks import (
    check_count,
    check_integer,
    check_one_of,
    check_range,
    check_tensor,
    is_integer,
)
from composable._support.devices import autocast_dtype, compute_dtype
from composable._support.targets import IGNORE_INDEX

from .softcap_logits import bounded

REDUCTIONS = ("mean", "sum", "none")


def linear_cross_entropy(  # noqa: PLR0913
    inputs: Float[Tensor, "*batch features"],
    weight: Float[Tensor, "classes features"],
    targets: Int[Tensor, " *batch"],
    *,
    bias: Float[Tensor, " classes"] | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
    softcap: float | None = None,
    chunk_size: int = 1024,
) -> Float[Tensor, "..."]:
    r"""Compute the cross-entropy of a linear layer, `chunk_size` rows at a time.

    $$\mathrm{cross\_entropy}(x W^\top + b, \; y)$$

    equal to `F.cross_entropy(F.linear(inputs, weight, bias), targets)` to rounding, gradients
    included. The logits of a chunk are dropped after use, and computed again for the gradients, so
    that all logits are never in memory at once. With `softcap` they are capped as by
    `softcap_logits`.

    Args:
        inputs: Hidden states `[..., features]`.
        weight: Weight of the head, one row a class.
        targets: Class indices `[...]`.
        bias: Bias of the head.
        label_smoothing: Share of the probability that is spread over all classes, in [0, 1].
        ignore_index: Class index of rows without a label. They add nothing to the loss and the
            gradients, even if they are NaN, and are not counted in the mean.
        reduction: "mean" over the rows with a label, "sum", or "none" for the loss of each row.
        softcap: Bound of the logits, above 0, or None for no bound.
        chunk_size: Number of rows whose logits are in memory at a time, at least 1.

    Returns:
        The loss, computed in float32 at least, in the widest dtype of `inputs`, `weight` and
        `bias`, to which the others are converted; under autocast in float32, with the logits in the
        dtype of autocast. The mean over no labels is NaN, and its gradients are 0.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number or `reduction` is out of range, or the shapes or dtypes don't match.
        RuntimeError: A target is neither a class nor `ignore_index`. PyTorch raises it, on a GPU at
            the next synchronization.

    Example:
        >>> hidden, head = torch.zeros(2, 3, 8), torch.randn(4, 8)
        >>> loss = linear_cross_entropy(hidden, head, torch.tensor([[0, 1, -100], [2, 3, 0]]))
        >>> bool(loss.isclose(torch.tensor(4.0).log()))
        True
    """
    given = {"inputs": inputs, "weight": weight} | ({} if bias is None else {"bias": bias})
    for name, tensor in {**given, "targets": targets}.items():
        check_tensor(name, tensor)
    check_range("label_smoothing", label_smoothing, 0, 1)
    check_integer("ignore_index", ignore_index)
    check_one_of("reduction", reduction, REDUCTIONS)
    if softcap is not None:
        check_range("softcap", softcap, 0, ends="()")
    check_count("chunk_size", chunk_size, 1)
    _check_shapes(given, targets)
    dtype = common = reduce(torch.promote_types, [one.dtype for one in given.values()])
    low = autocast_dtype(inputs.device.type)
    if low is not None and common != torch.float64:
        common, dtype = low, torch.float32
    inputs, weight = inputs.to(common), weight.to(common)
    bias = None if bias is None else bias.to(common)
    rows, classes = inputs.flatten(0, -2), targets.flatten().long()
    losses: Tensor = _Losses.apply(  # type: ignore[no-untyped-call]
        rows, weight, bias, classes, float(label_smoothing), ignore_index, chunk_size, softcap
    )
    if reduction == "none":
        return losses.reshape(targets.shape).to(dtype)
    if reduction == "sum":
        return losses.sum().to(dtype)
    return (losses.sum() / (classes != ignore_index).sum()).to(dtype)


class _Losses(torch.autograd.Function):
    """The loss of each row, and its derivative from logits that are computed again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        ignored: int,
        chunk_size: int,
        cap: float | None,
    ) -> Tensor:
        losses = []
        for x, y in zip(*_chunks(chunk_size, rows, targets), strict=True):
            logits = _logits(x, weight, bias, cap)
            at = torch.where(y == ignored, 0, y).unsqueeze(-1)
            hit = (1 - smoothing) * logits.gather(-1, at).squeeze(-1)
            loss = logits.logsumexp(-1) - hit
            if smoothing:
                loss = loss - smoothing * logits.mean(-1)
            losses.append(loss.masked_fill(y == ignored, 0))
        return torch.cat(losses)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.save_for_forward(*inputs[:4])
        ctx.options = inputs[4:]

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, bias, targets = ctx.saved_tensors
        smoothing, ignored, chunk_size, cap = ctx.options
        parts: list[Tensor] = []
        of_weight: Tensor | None = None
        of_bias: Tensor | None = None
        for x, y, grad in zip(*_chunks(chunk_size, rows, targets, grads), strict=True):
            none = y == ignored  # 0 times NaN or inf is NaN, so neither factor is read
            x, grad = x.masked_fill(none.unsqueeze(-1), 0), grad.masked_fill(none, 0)
            logits = _logits(x, weight, bias, cap)
            of_logits = _of_logits(logits, y, smoothing, ignored, cap)
            of_logits = of_logits * grad.unsqueeze(-1)
            if bias is not None:
                of_bias = _add(of_bias, of_logits.sum(0))
            of_logits = of_logits.to(x.dtype)
            if ctx.needs_input_grad[0]:
                parts.append(of_logits @ weight)
            if ctx.needs_input_grad[1]:
                of_weight = _add(of_weight, (of_logits.mT @ x).to(grads.dtype))
        of_rows = torch.cat(parts) if parts else None
        # The sums over chunks are in float32 at least, and rounded once.
        of_weight = None if of_weight is None else of_weight.to(weight.dtype)
        of_bias = None if of_bias is None else of_bias.to(bias.dtype)
        return of_rows, of_weight, of_bias, None, None, None, None, None

    @staticmethod
    def jvp(
        ctx: Any, of_rows: Tensor | None, of_weight: Tensor | None, of_bias: Tensor | None, *_: None
    ) -> Tensor:
        rows, weight, bias, targets = ctx.saved_tensors
        smoothing, ignored, chunk_size, cap = ctx.options
        dx = torch.zeros_like(rows) if of_rows is None else of_rows
        tangents = []
        for x, y, dx_chunk in zip(*_chunks(chunk_size, rows, targets, dx), strict=True):
            change = linear(dx_chunk, weight, of_bias)
            if of_weight is not None:
                change = change + linear(x, of_weight)
            logits = _logits(x, weight, bias, cap)
            slope = _of_logits(logits, y, smoothing, ignored, cap)
            tangents.append((slope * change).sum(-1).masked_fill(y == ignored, 0))
        return torch.cat(tangents)


def _chunks(size: int, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    return [torch.split(tensor, size) for tensor in tensors]


def _logits(rows: Tensor, weight: Tensor, bias: Tensor | None, cap: float | None) -> Tensor:
    """Return the logits of a chunk, in float32 at least."""
    logits = linear(rows, weight, bias).to(compute_dtype(rows.dtype))
    return logits if cap is None else bounded(logits, cap)


def _of_logits(
    logits: Tensor, targets: Tensor, smoothing: float, ignored: int, cap: float | None
) -> Tensor:
    """Return the derivative of the loss of each row by its logits before the bound."""
    none = targets == ignored
    at = torch.where(none, 0, targets).unsqueeze(-1)
    hit = torch.full_like(at, smoothing - 1, dtype=logits.dtype)
    slope = logits.softmax(-1).scatter_add(-1, at, hit)
    if smoothing:
        slope = slope - smoothing / logits.shape[-1]
    if cap is not None:
        slope = slope * (1 - (logits / cap).square())
    return slope.masked_fill(none.unsqueeze(-1), 0)


def _add(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total.add_(part)


def _check_shapes(given: dict[str, Tensor], targets: Tensor) -> None:
    """Raise a ValueError for shapes or dtypes that don't match."""
    for name, tensor in given.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must have a floating-point dtype, not {tensor.dtype}.")
    if not is_integer(targets):
        raise ValueError(
            f"targets must be class indices of an integer dtype, not {targets.dtype}; for class "
            "probabilities, use torch.nn.functional.cross_entropy."
        )
    inputs, weight, *bias = given.values()
    fits = weight.ndim == 2 and inputs.ndim > 1 and inputs.shape[-1] == weight.shape[1]
    fits = fits and targets.shape == inputs.shape[:-1]
    if not fits or any(one.shape != weight.shape[:1] for one in bias):
        named = {**given, "targets": targets}.items()
        shapes = ", ".join(f"{name} {tuple(one.shape)}" for name, one in named)
        raise ValueError(
            "inputs must be [..., features], weight [classes, features], bias [classes], and "
            f"targets [...], not {shapes}."
        )
