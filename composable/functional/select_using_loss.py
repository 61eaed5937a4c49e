"""Selective backprop: train on the examples of a batch that the model finds hard.

Jiang et al., "Accelerating Deep Learning by Focusing on the Biggest Losers", 2019,
https://arxiv.org/abs/1910.00762. The paper ranks against recent losses; ranking within the
batch, as here, is the variant that became common, because it keeps an exact share.
"""

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from ._checks import check_count, check_generator, check_range, check_tensor
from ._random import draw_exponential, home

__all__ = ["apply_selection", "draw_selection", "select_using_loss", "should_select"]


def select_using_loss(
    losses: Shaped[Tensor, " *batch"],
    *,
    keep: float = 0.5,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " kept"]:
    r"""Choose examples of a batch, those with a high loss more often.

    The example whose loss has rank $r$ of $n$ (0 the lowest) is drawn, without replacement,
    with

    $$p_r \propto \left(\frac{r + 1/2}{n}\right)^{1 / k - 1}$$

    Args:
        losses: One loss per example, `[batch]`. NaN ranks above all numbers, so such an example
            is drawn most often: the training step then shows what is wrong, as it would without
            selection.
        keep: The share $k$ of the batch to choose, in (0, 1].
        generator: Source of randomness. Without one, torch's global generator.

    Returns:
        `round(keep * n)` different indices, and at least one of a batch that is not empty, in
        ascending order: `inputs[indices]` keeps the order of the batch, and `keep=1` changes
        nothing.

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
    draw = draw_selection(len(losses), keep=keep, generator=generator)
    return apply_selection(losses, draw)


def draw_selection(
    batch_size: int, *, keep: float = 0.5, generator: torch.Generator | None = None
) -> Int[Tensor, " kept"]:
    """Draw which ranks of loss are kept, whatever the losses are.

    Args:
        batch_size: Number of examples, 0 or more.
        keep: The share to choose, in (0, 1].
        generator: Source of randomness. Without one, torch's global generator.

    Returns:
        Ranks in ascending order, 0 that of the lowest loss; on the CPU, or where the generator
        lies.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `keep` is not in (0, 1], or `batch_size` is negative.

    Example:
        >>> draw_selection(3, keep=1.0)
        tensor([0, 1, 2])
    """
    check_count("batch_size", batch_size)
    check_range("keep", keep, 0, 1, ends="(]", advice="0.5 trains on half of the batch.")
    check_generator(generator)
    kept = min(batch_size, max(1, round(keep * batch_size)))
    ranks = torch.arange(batch_size, device=home(generator), dtype=torch.float64)
    log_weight = (1 / keep - 1) * ((ranks + 0.5) / max(batch_size, 1)).log()
    # A race: whoever waits an exponential time of rate p comes in as if drawn without
    # replacement.
    arrival = draw_exponential((batch_size,), generator=generator).log() - log_weight
    return arrival.topk(kept, largest=False).indices.sort().values


def apply_selection(
    losses: Shaped[Tensor, " *batch"], draw: Int[Tensor, " kept"]
) -> Int[Tensor, " kept"]:
    """Find the examples that hold the ranks that were drawn: the deterministic half.

    Args:
        losses: One loss per example, `[batch]`. Of equal losses the earlier example ranks
            lower.
        draw: What `draw_selection` gave.

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
    check_tensor("draw", draw, advice="draw_selection gives it.")
    by_loss = losses.detach().argsort(stable=True)
    return by_loss[draw.to(losses.device, non_blocking=True)].sort().values


def should_select(
    elapsed: float,
    batch_index: int,
    *,
    start: float = 0.5,
    end: float = 0.9,
    interrupt: int = 2,
) -> bool:
    """Say whether a batch is one to select from.

    Args:
        elapsed: Share of the training that has passed, in [0, 1].
        batch_index: Number of the batch, from 0.
        start: Share from which on batches are selected from.
        end: Share from which on they no longer are.
        interrupt: Every so many batches one is trained on in full: with 2 every other one, with
            1 each of them, with 0 none.

    Returns:
        True in `start <= elapsed < end`, but for every `interrupt`-th batch.

    Raises:
        TypeError: An argument is not a number.
        ValueError: Not `0 <= start <= end <= 1`, or one of the others is negative.

    Example:
        >>> [should_select(0.6, batch, interrupt=3) for batch in range(6)]
        [True, True, False, True, True, False]
    """
    check_range("elapsed", elapsed, 0)
    check_count("batch_index", batch_index)
    check_range("start", start, 0, 1)
    check_range("end", end, start, 1, advice="Selection ends at or after its start.")
    check_count("interrupt", interrupt, advice="0 means never.")
    standard = interrupt > 0 and (batch_index + 1) % interrupt == 0
    return start <= elapsed < end and not standard


def _check(losses: Tensor) -> None:
    check_tensor("losses", losses)
    if losses.ndim != 1:
        raise ValueError(
            f"losses has shape {tuple(losses.shape)}, but must hold one loss per example, "
            "[batch]. "
            'Build the loss with reduction="none", and average over all dimensions but the '
            "first."
        )
