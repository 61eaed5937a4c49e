"""ColOut: leave out some rows and columns of the images.

There is no paper. It was proposed with MosaicML's Composer,
https://docs.mosaicml.com/projects/composer/en/stable/method_cards/colout.html
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from ._checks import check_generator, check_one_batch, check_range, check_size, check_tensor
from ._random import home
from ._spatial import check_spatial, is_dense, take
from .resized import Resized

__all__ = ["ColoutDraw", "apply_colout", "colout", "draw_colout"]


class ColoutDraw(NamedTuple):
    """What `colout` draws: the rows and columns that are kept, in ascending order.

    Attributes:
        rows: Indices, or None for signals, which have columns only.
        columns: Indices.
    """

    rows: Int[Tensor, " rows"] | None
    columns: Int[Tensor, " columns"]


def colout(
    inputs: Shaped[Tensor, "batch channels *size"],
    targets: Shaped[Tensor, " *dense"] | None = None,
    *,
    p_row: float = 0.15,
    p_col: float = 0.15,
    generator: torch.Generator | None = None,
) -> Resized:
    """Leave a random subset of rows and columns out of the images of a batch.

    The order of those that remain stays, and all images of the batch lose the same ones.

    Args:
        inputs: Images `[batch, channels, height, width]`, of any dtype. Of volumes the last two
            dimensions are the rows and columns; a signal has columns only.
        targets: Targets, `[batch, ...]`, or None. Maps with a target for each pixel, `[batch,
            height, width]` or `[batch, classes, height, width]`, lose the same rows and columns.
        p_row: Share of the rows to leave out, in [0, 1). At least one stays.
        p_col: Share of the columns to leave out, in [0, 1).
        generator: Source of randomness. Without one, torch's global generator.

    Returns:
        The smaller inputs, with the dtype, device and memory layout of `inputs`, and their
        targets.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A share is not in [0, 1), the inputs have no spatial dimension, or the batch
            sizes differ.

    Example:
        >>> images = torch.rand(2, 3, 20, 40)
        >>> colout(images, generator=torch.Generator().manual_seed(0)).inputs.shape
        torch.Size([2, 3, 17, 34])
    """
    check_spatial("inputs", inputs)
    draw = draw_colout(inputs.shape[2:], p_row=p_row, p_col=p_col, generator=generator)
    return apply_colout(inputs, targets, draw)


def draw_colout(
    size: Sequence[int],
    *,
    p_row: float = 0.15,
    p_col: float = 0.15,
    generator: torch.Generator | None = None,
) -> ColoutDraw:
    """Draw the rows and columns that are kept.

    Args:
        size: Lengths of the spatial dimensions, such as `inputs.shape[2:]`.
        p_row: Share of the rows to leave out, in [0, 1).
        p_col: Share of the columns to leave out, in [0, 1).
        generator: Source of randomness. Without one, torch's global generator.

    Returns:
        Indices in ascending order, `round((1 - p) * length)` of them and one at least. They lie
        on the CPU, or where the generator does: a seed means the same draw on every device.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A share is not in [0, 1).

    Example:
        >>> draw_colout((4, 8), p_col=0.5, generator=torch.Generator().manual_seed(0)).columns
        tensor([0, 1, 2, 5])
    """
    check_size("size", size)
    check_range("p_row", p_row, 0, 1, ends="[)")
    check_range("p_col", p_col, 0, 1, ends="[)")
    check_generator(generator)
    rows = _draw(size[-2], p_row, generator) if len(size) > 1 else None
    return ColoutDraw(rows, _draw(size[-1], p_col, generator))


def apply_colout(
    inputs: Shaped[Tensor, " *shape"],
    targets: Shaped[Tensor, " *dense"] | None,
    draw: ColoutDraw,
) -> Resized:
    """Keep the rows and columns that were drawn: the deterministic half.

    Args:
        inputs: Of any dtype, `[batch, ..., height, width]`.
        targets: Targets, `[batch, ...]`, or None.
        draw: What `draw_colout` gave for this size.

    Returns:
        The smaller batch; see `colout`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Inputs and targets do not belong to one batch size, or the inputs have no
            rows.

    Example:
        >>> draw = ColoutDraw(torch.tensor([1]), torch.tensor([0, 2]))
        >>> apply_colout(torch.arange(6).reshape(1, 1, 2, 3), None, draw).inputs
        tensor([[[[3, 5]]]])
    """
    check_tensor("inputs", inputs)
    if not isinstance(draw, ColoutDraw):
        raise TypeError(f"draw is {draw!r}, but must be a ColoutDraw, such as draw_colout gives.")
    kept = [index for index in draw if index is not None]
    if inputs.ndim <= len(kept):
        raise ValueError(
            f"draw has rows and columns, but inputs has shape {tuple(inputs.shape)}. "
            "Draw with size=inputs.shape[2:]."
        )
    if targets is not None:
        check_tensor("targets", targets)
        check_one_batch(inputs, targets)
        # Inputs without channels are maps themselves.
        if is_dense(targets, inputs.shape[min(2, inputs.ndim - len(kept)) :]):
            targets = take(targets, kept)
    return Resized(take(inputs, kept), targets)


def _draw(length: int, p: float, generator: torch.Generator | None) -> Tensor:
    kept = min(length, max(1, round((1 - p) * length)))
    order = torch.randperm(length, generator=generator, device=home(generator))
    return order[:kept].sort().values
