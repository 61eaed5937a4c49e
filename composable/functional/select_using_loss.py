"""Selective backprop: train on the examples of a batch with high loss.

Jiang et al., "Accelerating Deep Learning by Focusing on the Biggest Losers", 2019,
https://arxiv.org/abs/1910.00762. The paper ranks against recent losses. This is the common variant
that ranks within the batch, which keeps an exact share.
"""

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from composable._support.checks import (
    Check,
    check_count,
    check_order,
    check_tensor,
    checked,
    within,
)
from composable._support.devices import generator_device, send
from composable._support.sampling import draw_exponential

__all__ = ["apply_selection", "draw_selection", "select_using_loss", "should_select"]

_options: dict[str, Check] = {"keep": within(0, 1, ends="(]")}


@checked(**_options)
def select_using_loss(
    losses: Shaped[Tensor, " *batch"],
    *,
    keep: float = 0.5,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " kept"]:
    r"""Sample examples of a batch, with higher probability for higher losses.

    The example whose loss has rank $r$ of $n$ (0 is the lowest) is sampled, without replacement,
    with probability

    $$p_r \propto \left(\frac{r + 1/2}{n}\right)^{1 / k - 1}$$

    Args:
        losses: One loss per example, `[batch]`. NaN ranks above all numbers, so an example with a
            NaN loss is the most likely to be kept, and the error shows in the training step.
        keep: Share $k$ of the batch to keep, in (0, 1].
        generator: Random number generator. Default: torch's global generator.

    Returns:
        `round(keep * n)` distinct indices, at least one unless the batch is empty, in ascending
        order: `inputs[indices]` keeps the order of the batch, and `keep=1` keeps the batch.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `keep` is not in (0, 1], or there is not one loss per example.

    Example:
        >>> losses = torch.tensor([0.1, 9.0, 0.2, 8.0])
        >>> select_using_loss(losses, keep=1.0)
        tensor([0, 1, 2, 3])
        >>> len(select_using_loss(losses, keep=0.5, generator=torch.Generator().manual_seed(0)))
        2
    """
    _check(losses)
    draw = draw_selection.unchecked(len(losses), keep=keep, generator=generator)
    return apply_selection(losses, draw)


@checked(batch_size=check_count, **_options)
def draw_selection(
    batch_size: int, *, keep: float = 0.5, generator: torch.Generator | None = None
) -> Int[Tensor, " kept"]:
    """Draw the ranks of the losses to keep, independently of the losses.

    Args:
        batch_size: Number of examples, 0 or more.
        keep: Share of the examples to keep, in (0, 1].
        generator: Random number generator. Default: torch's global generator.

    Returns:
        Ranks in ascending order, 0 for the lowest loss, on the device of the generator, the CPU by
        default.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `keep` is not in (0, 1], or `batch_size` is negative.

    Example:
        >>> draw_selection(3, keep=1.0)
        tensor([0, 1, 2])
    """
    kept = kept_count(batch_size, keep)
    ranks = torch.arange(batch_size, device=generator_device(generator), dtype=torch.float64)
    log_weight = (1 / keep - 1) * ((ranks + 0.5) / max(batch_size, 1)).log()
    # Exponential arrival times with rates p: the first arrivals are a sample without replacement.
    arrival = draw_exponential((batch_size,), generator=generator).log() - log_weight
    return arrival.topk(kept, largest=False).indices.sort().values


def apply_selection(
    losses: Shaped[Tensor, " *batch"], draw: Int[Tensor, " kept"]
) -> Int[Tensor, " kept"]:
    """Return the examples of the drawn ranks: the deterministic half of `select_using_loss`.

    Args:
        losses: One loss per example, `[batch]`. Among equal losses, the earlier example ranks
            lower.
        draw: The result of `draw_selection`.

    Returns:
        Indices in ascending order, on the device of the losses.

    Raises:
        TypeError: An argument is not a tensor.
        ValueError: There is not one loss per example.

    Example:
        >>> apply_selection(torch.tensor([0.1, 9.0, 0.2, 8.0]), torch.tensor([2, 3]))
        tensor([1, 3])
    """
    _check(losses)
    check_tensor("draw", draw, advice="draw_selection returns one")
    if draw.dtype != torch.int64 or draw.ndim != 1:
        raise ValueError(
            f"draw must be ranks of dtype torch.int64 and of shape [kept], not of {draw.dtype} and "
            f"{tuple(draw.shape)}; draw_selection returns one."
        )
    by_loss = losses.detach().argsort(stable=True)
    try:
        return by_loss[send(draw, losses.device)].sort().values
    except IndexError:
        raise ValueError(
            f"draw has ranks beyond the {len(losses)} losses; draw with batch_size=len(losses)."
        ) from None


@checked(
    elapsed=within(0),
    batch_index=check_count,
    start=within(0, 1),
    end=within(0, 1),
    interrupt=check_count,
)
def should_select(
    elapsed: float,
    batch_index: int,
    *,
    start: float = 0.5,
    end: float = 0.9,
    interrupt: int = 2,
) -> bool:
    """Return whether to select examples in this batch.

    Args:
        elapsed: Elapsed fraction of training, in [0, 1].
        batch_index: Index of the batch, from 0.
        start: Fraction of training at which selection starts.
        end: Fraction of training at which selection ends.
        interrupt: Train on the full batch once in every `interrupt` batches: 2 for every other
            batch, 1 for all batches, 0 for none.

    Returns:
        True if `start <= elapsed < end`, except in every `interrupt`-th batch.

    Raises:
        TypeError: An argument is not a number.
        ValueError: Not `0 <= start <= end <= 1`, or another argument is negative.

    Example:
        >>> [should_select(0.6, batch, interrupt=3) for batch in range(6)]
        [True, True, False, True, True, False]
    """
    check_order("start", start, "end", end)
    standard = interrupt > 0 and (batch_index + 1) % interrupt == 0
    return start <= elapsed < end and not standard


def kept_count(batch_size: int, keep: float) -> int:
    """Return the number of examples to keep: at least one, unless there is none."""
    return min(batch_size, max(1, round(keep * batch_size)))


def _check(losses: Tensor) -> None:
    check_tensor("losses", losses)
    if losses.ndim != 1:
        raise ValueError(
            "losses must have one loss per example, of shape [batch], not "
            f'{tuple(losses.shape)}; use reduction="none", and average over all dimensions but '
            "the first."
        )
