"""ColOut: drop random rows and columns of the images.

There is no paper. It was proposed with MosaicML's Composer,
https://docs.mosaicml.com/projects/composer/en/stable/method_cards/colout.html
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from composable._support.checks import (
    Check,
    check_count,
    check_draw,
    check_flag,
    check_one_batch,
    check_size,
    check_tensor,
    checked,
    optional,
    within,
)
from composable._support.devices import generator_device
from composable._support.sampling import draw_uniform
from composable._support.spatial import check_spatial, is_dense, take

from .resized import ResizedBatch, resizing

_options: dict[str, Check] = {"p_row": within(0, 1, ends="[)"), "p_col": within(0, 1, ends="[)")}


class ColOutDraw(NamedTuple):
    """The draw of `colout`: the rows and columns to keep, in ascending order.

    Attributes:
        rows: Indices of rows, or None for signals, which have columns only.
        columns: Indices of columns.

    Draws for each example have `batch` as their first dimension.
    """

    rows: Int[Tensor, "... rows"] | None
    columns: Int[Tensor, "... columns"]


@resizing
@checked(per_sample=check_flag, **_options)
def colout(
    inputs: Shaped[Tensor, "batch channels *size"],
    targets: Shaped[Tensor, " *dense"] | None = None,
    *,
    p_row: float = 0.15,
    p_col: float = 0.15,
    per_sample: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor | ResizedBatch:
    """Drop a random subset of the rows and columns of the images of a batch.

    The remaining rows and columns keep their order. As many are dropped from every image, so that
    their sizes stay equal.

    Args:
        inputs: Images `[batch, channels, height, width]`, of any dtype. The rows and columns of a
            volume are its last two dimensions; a signal has columns only.
        targets: Targets, `[batch, ...]`, or None. From dense targets, `[batch, height, width]` or
            `[batch, classes, height, width]`, the same rows and columns are dropped.
        p_row: Share of the rows to drop, in [0, 1). At least one row is kept.
        p_col: Share of the columns to drop, in [0, 1). At least one column is kept.
        per_sample: Draw the rows and columns of each image rather than once for the batch.
        generator: Random number generator. Default: torch's global generator.

    Returns:
        The smaller inputs, with the dtype, device and memory format of `inputs`; with targets, both
        as a `ResizedBatch`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A share is not in [0, 1), the inputs have no spatial dimension, or the batch
            sizes differ.

    Example:
        >>> images = torch.rand(2, 3, 20, 40)
        >>> colout(images, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3, 17, 34])
    """
    check_spatial("inputs", inputs)
    batch_size = len(inputs) if per_sample else None
    draw = draw_colout.unchecked(
        inputs.shape[2:], p_row=p_row, p_col=p_col, batch_size=batch_size, generator=generator
    )
    small = apply_colout(inputs, targets, draw)
    return small.inputs if targets is None else small


@checked(size=check_size, batch_size=optional(check_count), **_options)
def draw_colout(
    size: Sequence[int],
    *,
    p_row: float = 0.15,
    p_col: float = 0.15,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
) -> ColOutDraw:
    """Draw the rows and columns to keep.

    Args:
        size: Sizes of the spatial dimensions, such as `inputs.shape[2:]`.
        p_row: Share of the rows to drop, in [0, 1).
        p_col: Share of the columns to drop, in [0, 1).
        batch_size: Number of examples, to draw for each. Default: one draw for the whole batch.
        generator: Random number generator. Default: torch's global generator.

    Returns:
        `round((1 - p) * length)` indices, at least one, in ascending order, on the device of the
        generator.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A share is not in [0, 1), or `batch_size` is negative.

    Example:
        >>> draw_colout((4, 8), p_col=0.5, generator=torch.Generator().manual_seed(0)).columns
        tensor([0, 1, 2, 5])
    """
    rows = _draw(size[-2], p_row, batch_size, generator) if len(size) > 1 else None
    return ColOutDraw(rows, _draw(size[-1], p_col, batch_size, generator))


def apply_colout(
    inputs: Shaped[Tensor, " *shape"],
    targets: Shaped[Tensor, " *dense"] | None,
    draw: ColOutDraw,
) -> ResizedBatch:
    """Select the rows and columns of a draw: the deterministic half of `colout`.

    Args:
        inputs: Tensor of any dtype, `[batch, ..., height, width]`.
        targets: Targets, `[batch, ...]`, or None.
        draw: The result of `draw_colout` for this size.

    Returns:
        The smaller batch; see `colout`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Inputs, targets and draw have different batch sizes, or the inputs have no
            rows.

    Example:
        >>> draw = ColOutDraw(torch.tensor([1]), torch.tensor([0, 2]))
        >>> apply_colout(torch.arange(6).reshape(1, 1, 2, 3), None, draw).inputs
        tensor([[[[3, 5]]]])
    """
    check_tensor("inputs", inputs)
    check_draw(draw, ColOutDraw, "draw_colout")
    kept = [index for index in draw if index is not None]
    if inputs.ndim <= len(kept):
        raise ValueError(
            f"draw has rows and columns, but inputs has shape {tuple(inputs.shape)}; draw with "
            "size=inputs.shape[2:]."
        )
    if draw.columns.ndim > 1 and len(draw.columns) != len(inputs):
        raise ValueError(
            f"draw is for {len(draw.columns)} examples, but inputs has {len(inputs)}; draw with "
            "batch_size=len(inputs)."
        )
    if targets is not None:
        check_one_batch(inputs, targets)
        # Inputs may have no channels, like dense targets.
        if is_dense(targets, inputs.shape[min(2, inputs.ndim - len(kept)) :]):
            targets = take(targets, kept)
    return ResizedBatch(take(inputs, kept), targets)


def _draw(
    length: int, p: float, batch_size: int | None, generator: torch.Generator | None
) -> Tensor:
    kept = min(length, max(1, round((1 - p) * length)))
    if batch_size is None:
        order = torch.randperm(length, generator=generator, device=generator_device(generator))
    else:
        order = draw_uniform((batch_size, length), generator=generator).argsort(1)
    return order[..., :kept].sort().values
