"""Boxes of pixels, of any number of dimensions.

A box is an integer tensor `[dims, 2]`: its start and its stop (exclusive) in each dimension. Boxes
may have batch dimensions, and may extend over the border.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from composable._support.devices import from_numbers, send
from composable._support.sampling import draw_uniform


def draw_boxes(
    sides: Tensor,
    size: Sequence[int],
    *,
    uniform_sampling: bool,
    generator: torch.Generator | None,
) -> Tensor:
    """Place boxes with these sides, float64 `[..., dims]` and whole, at random.

    The centre of a box is any pixel. With `uniform_sampling`, a box is anywhere that it covers at
    least one pixel, so that each pixel is covered equally often.
    """
    share = draw_uniform(sides.shape, generator=generator)
    return place_boxes(share, sides, size, uniform_sampling=uniform_sampling)


def place_boxes(
    share: Tensor, sides: Tensor, size: Sequence[int], *, uniform_sampling: bool
) -> Tensor:
    """Place boxes at a share, in [0, 1), of all their places: the deterministic half."""
    lengths = from_numbers(size, sides)
    if uniform_sampling:
        start = (share * (lengths + sides - 1)).floor() - (sides - 1)
    else:
        start = (share * lengths).floor() - sides.div(2, rounding_mode="floor")
    return torch.stack([start, start + sides], -1).long()


def clip_boxes(boxes: Tensor, size: Sequence[int]) -> Tensor:
    """Clip boxes to the image."""
    clipped = [boxes[..., dim, :].clamp(0, length) for dim, length in enumerate(size)]
    return torch.stack(clipped, -2)


def clip_region(box: Sequence[Sequence[int]], size: Sequence[int]) -> tuple[Any, ...]:
    """Clip one box, given as numbers, and return the slices of the last dimensions."""
    return tuple(
        slice(min(max(start, 0), length), min(max(stop, 0), length))
        for (start, stop), length in zip(box, size, strict=True)
    )


def inside(boxes: Tensor, size: Sequence[int], device: torch.device) -> Tensor:
    """Return the mask of the pixels in a box: `[..., *size]` for boxes `[..., dims, 2]`."""
    boxes = send(boxes, device)
    masks = []
    for dim, length in enumerate(size):
        at = torch.arange(length, device=device)
        along = (at >= boxes[..., dim, :1]) & (at < boxes[..., dim, 1:])
        others = len(size) - dim - 1
        masks.append(along.reshape(*along.shape[:-1], *[1] * dim, length, *[1] * others))
    return reduce(torch.logical_and, masks)


def broadcast(mask: Tensor, tensor: Tensor, dims: int) -> Tensor:
    """Insert dimensions for the channels into a mask `[batch, *size]`; `[*size]` needs none."""
    batch = mask.shape[: mask.ndim - dims]
    channels = [1] * (tensor.ndim - mask.ndim) if batch else []
    return mask.reshape(*batch, *channels, *mask.shape[len(batch) :])
