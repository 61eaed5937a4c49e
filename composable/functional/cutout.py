"""CutOut: blank square holes of the images.

DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout", 2017,
https://arxiv.org/abs/1708.04552
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from composable._support.checks import (
    Check,
    check_count,
    check_flag,
    check_range,
    check_size,
    check_tensor,
    checked,
)
from composable._support.devices import generator_device, numbers
from composable._support.spatial import check_spatial

from ._boxes import broadcast, clip_region, draw_boxes, inside

__all__ = ["apply_cutout", "cutout", "draw_cutout"]

_SHARE = "below 1 it is a share of the shorter side"


def check_hole_length(name: str, length: float) -> None:
    """Raise an error unless the length is a share of a side, or a whole number of pixels."""
    check_range(name, length, 0, ends="[)", advice=_SHARE)
    if length > 1 and length != int(length):
        raise ValueError(f"{name}={length!r} must be a whole number of pixels; {_SHARE}.")


_options: dict[str, Check] = {
    "num_holes": check_count,
    "length": check_hole_length,
    "uniform_sampling": check_flag,
    "per_sample": check_flag,
}


@checked(**_options)
def cutout(
    inputs: Shaped[Tensor, "batch channels *size"],
    *,
    num_holes: int = 1,
    length: float = 0.5,
    uniform_sampling: bool = False,
    per_sample: bool = True,
    generator: torch.Generator | None = None,
) -> Shaped[Tensor, "batch channels *size"]:
    """Set square holes at random places to zero.

    The centre of a hole is any pixel, so a part of it may extend over the border, as in the paper.

    Args:
        inputs: Images `[batch, channels, height, width]`, signals or volumes, of any dtype.
            Zero should be the mean: normalize first.
        num_holes: The number of holes, 0 or more. They may overlap.
        length: The side of a hole: below 1 a share of the shorter side of the images, rounded
            to whole pixels and at least one, and from 1 on a whole number of pixels. 0 for no
            hole.
        uniform_sampling: Make every pixel equally likely to be in a hole. As in the paper,
            those in the middle are so more often.
        per_sample: Draw holes for each example rather than once for the batch.
        generator: Source of randomness. Without one, torch's global generator.

    Returns:
        A tensor with the shape, dtype, device and memory layout of `inputs`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `num_holes` or `length` is negative, `length` is above 1 and not whole, or
            the inputs have no spatial dimension.

    Example:
        >>> images = torch.ones(2, 1, 3, 5)
        >>> cut = cutout(images, length=2, generator=torch.Generator().manual_seed(1))
        >>> cut[0, 0]
        tensor([[0., 0., 1., 1., 1.],
                [1., 1., 1., 1., 1.],
                [1., 1., 1., 1., 1.]])
    """
    check_spatial("inputs", inputs)
    draw = draw_cutout.unchecked(
        len(inputs),
        inputs.shape[2:],
        num_holes=num_holes,
        length=length,
        uniform_sampling=uniform_sampling,
        per_sample=per_sample,
        generator=generator,
    )
    return apply_cutout(inputs, draw)


@checked(batch_size=check_count, size=check_size, **_options)
def draw_cutout(
    batch_size: int,
    size: Sequence[int],
    *,
    num_holes: int = 1,
    length: float = 0.5,
    uniform_sampling: bool = False,
    per_sample: bool = True,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "*batch holes dims 2"]:
    """Draw the holes of one batch.

    Args:
        batch_size: Number of examples, 0 or more.
        size: Lengths of the spatial dimensions, such as `inputs.shape[2:]`.
        num_holes: The number of holes, 0 or more.
        length: The side of a hole; see `cutout`.
        uniform_sampling: Make every pixel equally likely to be in a hole.
        per_sample: Draw holes for each example rather than once for the batch.
        generator: Source of randomness. Without one, torch's global generator.

    Returns:
        The start and stop of each hole in each dimension, `[batch, holes, dims, 2]`, or without the
        first dimension if the batch shares them, on the device of the generator. A hole may extend
        over the border.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `num_holes`, `length` or a size is negative, or `length` is above 1 and not
            whole.

    Example:
        >>> draw_cutout(3, (8, 8), generator=torch.Generator().manual_seed(0)).shape
        torch.Size([3, 1, 2, 2])
    """
    side = length if length >= 1 or not length else max(1, round(length * min(size)))
    shape = (*[batch_size] * per_sample, num_holes, len(size))
    sides = torch.full(shape, float(side), dtype=torch.float64, device=generator_device(generator))
    return draw_boxes(sides, size, uniform_sampling=uniform_sampling, generator=generator)


def apply_cutout(
    inputs: Shaped[Tensor, " *shape"], draw: Int[Tensor, "*batch holes dims 2"]
) -> Shaped[Tensor, " *shape"]:
    """Apply a draw: set its holes to zero. This half is deterministic.

    Args:
        inputs: Of any dtype, `[batch, ..., *size]`.
        draw: The result of `draw_cutout` for this size.

    Returns:
        A tensor with the shape, dtype, device and memory layout of `inputs`.

    Raises:
        TypeError: An argument is not a tensor.
        ValueError: Inputs and draw do not belong to one batch size, or the inputs have fewer
            dimensions than the holes.

    Example:
        >>> apply_cutout(torch.ones(1, 5), torch.tensor([[[-1, 1]], [[3, 4]]]))
        tensor([[0., 1., 1., 0., 1.]])
    """
    _check(inputs, draw)
    dims = draw.shape[-2]
    size = inputs.shape[inputs.ndim - dims :]
    if draw.ndim == 3 and (holes_of_all := numbers(draw)) is not None:
        cut = inputs.clone()
        for hole in holes_of_all:
            region: tuple[Any, ...] = (..., *clip_region(hole, size))
            cut[region] = 0
        return cut
    holes = inside(draw, size, inputs.device)
    # any() of one hole would copy the mask of all examples.
    mask = holes.squeeze(-dims - 1) if draw.shape[-3] == 1 else holes.any(-dims - 1)
    # Not by a product, which would leave NaN in a hole where there was NaN or infinity.
    return torch.where(broadcast(mask, inputs, dims), inputs.new_zeros(()), inputs)


def _check(inputs: Tensor, draw: Tensor) -> None:
    check_tensor("inputs", inputs)
    check_tensor("draw", draw, advice="draw_cutout returns one")
    if draw.ndim not in (3, 4) or inputs.ndim <= draw.shape[-2]:
        raise ValueError(
            f"draw has shape {tuple(draw.shape)}, which does not match inputs of shape "
            f"{tuple(inputs.shape)}; draw with size=inputs.shape[2:]."
        )
    if draw.ndim == 4 and len(draw) != len(inputs):
        raise ValueError(
            f"draw has holes for {len(draw)} examples, but inputs has {len(inputs)}; draw "
            "with batch_size=len(inputs)."
        )
