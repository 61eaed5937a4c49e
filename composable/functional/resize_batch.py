"""Progressive resizing: train on small images first.

Howard et al., fast.ai's entry to DAWNBench, 2018,
https://www.fast.ai/posts/2018-04-30-dawnbench-fastai.html
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import floor
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.nn.functional import interpolate

from composable._support.checks import (
    Check,
    check_flag,
    check_one_of,
    check_size,
    check_tensor,
    checked,
    minimum,
    within,
)
from composable._support.devices import from_numbers, numbers
from composable._support.sampling import draw_uniform
from composable._support.spatial import check_spatial, take

from .resized import ResizedBatch, resizing

_scale: dict[str, Check] = {"scale_factor": within(0, 1, ends="(]"), "size_increment": minimum(1)}
_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}


@resizing
@checked(
    mode=partial(check_one_of, allowed=("resize", "crop")),
    resize_targets=check_flag,
    **_scale,
)
def resize_batch(
    inputs: Shaped[Tensor, "batch channels *size"],
    targets: Shaped[Tensor, " *dense"] | None = None,
    *,
    scale_factor: float,
    mode: str = "resize",
    resize_targets: bool = False,
    size_increment: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor | ResizedBatch:
    """Make the images of a batch smaller, by interpolation or by a crop.

    Args:
        inputs: Images `[batch, channels, height, width]`, signals or volumes, of any dtype.
        targets: Targets, `[batch, ...]`, or None.
        scale_factor: The new length of a side as a share of the old one, in (0, 1]. At 1 the
            batch stays as it is.
        mode: `"resize"` interpolates linearly, and takes the nearest pixel where numbers are
            integers. `"crop"` cuts out one region, at a random place, for the whole batch; the
            result is a view.
        resize_targets: Do the same to targets that have a value for each pixel, `[batch, height,
            width]` or `[batch, classes, height, width]`, so that they stay in line.
        size_increment: New lengths are the nearest multiples of this, at least one, and never
            more than the old ones: networks with strides waste less.
        generator: Source of randomness of a crop. Without one, torch's global generator.

    Returns:
        The smaller inputs, with the dtype, device and memory layout of `inputs`; with targets, both
        as a `ResizedBatch`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `scale_factor` is not in (0, 1], `mode` is unknown, the inputs have no
            spatial dimension, or targets to resize don't have a value for each pixel.

    Example:
        >>> images, masks = torch.rand(2, 3, 8, 8), torch.zeros(2, 8, 8, dtype=torch.long)
        >>> small = resize_batch(images, masks, scale_factor=0.5, resize_targets=True)
        >>> small.inputs.shape, small.targets.shape
        (torch.Size([2, 3, 4, 4]), torch.Size([2, 4, 4]))
    """
    check_spatial("inputs", inputs)
    if targets is not None:
        check_tensor("targets", targets)
    size = inputs.shape[2:]
    new = scaled_size.unchecked(size, scale_factor=scale_factor, size_increment=size_increment)
    if resize_targets:
        _check_dense(targets, size)
    if scale_factor == 1:
        return inputs if targets is None else ResizedBatch(inputs, targets)
    make: Callable[[Tensor], Tensor]
    if mode == "crop":
        share = draw_uniform((len(size),), generator=generator)
        make = partial(_cut_out, new_size=new, offset=_offset(share, size, new))
    else:
        make = partial(_shrink, size=new)
    if targets is None:
        return make(inputs)
    return ResizedBatch(make(inputs), make(targets) if resize_targets else targets)


@checked(size=check_size, **_scale)
def scaled_size(
    size: Sequence[int], *, scale_factor: float, size_increment: int = 1
) -> tuple[int, ...]:
    """Return the size to which `resize_batch` resizes.

    Args:
        size: Lengths of the spatial dimensions, such as `inputs.shape[2:]`.
        scale_factor: The new length of a side as a share of the old one, in (0, 1].
        size_increment: New lengths are the nearest multiples of this.

    Returns:
        The new lengths, none longer than the old one.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `scale_factor` is not in (0, 1], or `size_increment` is below 1.

    Example:
        >>> scaled_size((33, 60), scale_factor=0.5, size_increment=4)
        (16, 32)
    """
    if scale_factor == 1:
        return tuple(size)
    nearest = [floor(length * scale_factor / size_increment + 0.5) for length in size]
    return tuple(
        min(length, max(count, 1) * size_increment)
        for length, count in zip(size, nearest, strict=True)
    )


@checked(
    elapsed=within(0),
    initial_scale=within(0, 1, ends="(]"),
    finetune_fraction=within(0, 1),
    delay_fraction=within(0, 1),
)
def progressive_scale(
    elapsed: float,
    *,
    initial_scale: float = 0.5,
    finetune_fraction: float = 0.2,
    delay_fraction: float = 0.5,
) -> float:
    """Return the scale of images at a time of training, as a share of their full size.

    Args:
        elapsed: Share of the training that has passed, 0 or more.
        initial_scale: The scale at the start, in (0, 1].
        finetune_fraction: Share of the training, at its end, with images of full size.
        delay_fraction: Share of the training, at its start, with images of the initial scale.
            In between the scale grows along a line; where nothing is between, it jumps.

    Returns:
        The scale, in `[initial_scale, 1]`.

    Raises:
        TypeError: An argument is not a number.
        ValueError: One of them is out of its range, or both fractions are more than 1 together.

    Example:
        >>> [round(progressive_scale(t / 10), 2) for t in range(4, 10)]
        [0.5, 0.5, 0.67, 0.83, 1.0, 1.0]
    """
    if delay_fraction + finetune_fraction > 1:
        raise ValueError(
            f"delay_fraction={delay_fraction!r} and finetune_fraction={finetune_fraction!r} must "
            "not sum to more than 1."
        )
    growing = 1 - finetune_fraction - delay_fraction
    grown = elapsed - delay_fraction
    if grown < 0:
        return initial_scale
    # A rounding error of elapsed must not delay the end of the growth.
    return 1.0 if grown >= growing - 1e-9 else initial_scale + (1 - initial_scale) * grown / growing


@checked(size=check_size, new_size=check_size)
def draw_crop(
    size: Sequence[int], new_size: Sequence[int], *, generator: torch.Generator | None = None
) -> Int[Tensor, " dims"]:
    """Draw the position of a crop.

    Args:
        size: Lengths of the spatial dimensions, such as `inputs.shape[2:]`.
        new_size: Lengths of the crop, none longer.
        generator: Source of randomness. Without one, torch's global generator.

    Returns:
        The first index of the crop in each dimension, every possible one equally likely, on the
        device of the generator.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The crop does not fit.

    Example:
        >>> draw_crop((8, 8), (4, 8), generator=torch.Generator().manual_seed(0))
        tensor([4, 0])
    """
    if len(size) != len(new_size) or any(a < b for a, b in zip(size, new_size, strict=True)):
        raise ValueError(f"new_size={tuple(new_size)} must fit into size={tuple(size)}.")
    share = draw_uniform((len(size),), generator=generator)
    offset = _offset(share, size, new_size)
    return offset if isinstance(offset, Tensor) else torch.tensor(offset)


def apply_crop(
    tensor: Shaped[Tensor, " *shape"], new_size: Sequence[int], offset: Int[Tensor, " dims"]
) -> Shaped[Tensor, " *cropped"]:
    """Apply a draw: crop a tensor. This half is deterministic.

    Args:
        tensor: Inputs or targets, `[batch, ..., *size]`.
        new_size: The size of the crop.
        offset: The result of `draw_crop` for this size.

    Returns:
        `[batch, ..., *new_size]`, with the dtype, device and memory layout of `tensor`: a view if
        the offset can be read without synchronization, otherwise a copy.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The crop is larger than the tensor.

    Example:
        >>> apply_crop(torch.arange(5).reshape(1, 5), (3,), torch.tensor([1]))
        tensor([[1, 2, 3]])
    """
    check_tensor("tensor", tensor)
    check_size("new_size", new_size)
    check_tensor("offset", offset, advice="draw_crop returns one")
    if offset.shape != (len(new_size),):
        raise ValueError(
            f"offset must have one entry for each of the {len(new_size)} dimensions of new_size, "
            f"not the shape {tuple(offset.shape)}; draw_crop returns one."
        )
    old = tensor.shape[1:][-len(new_size) :]
    if len(old) != len(new_size) or any(new > was for was, new in zip(old, new_size, strict=True)):
        raise ValueError(
            f"new_size={tuple(new_size)} must fit into the last dimensions of tensor, of shape "
            f"{tuple(tensor.shape)}."
        )
    starts = numbers(offset)
    return _cut_out(tensor, new_size, offset if starts is None else starts)


def _offset(share: Tensor, size: Sequence[int], new_size: Sequence[int]) -> Tensor | list[int]:
    """Turn shares of all offsets into an offset: numbers if readable without synchronization."""
    places = [old - new + 1 for old, new in zip(size, new_size, strict=True)]
    shares = numbers(share)
    if shares is None:
        return (share * from_numbers(places, share)).long()
    return [int(part * count) for part, count in zip(shares, places, strict=True)]


def _cut_out(tensor: Tensor, new_size: Sequence[int], offset: Tensor | list[int]) -> Tensor:
    """Crop a tensor: a view if the offset is known on the host, otherwise a copy."""
    if isinstance(offset, Tensor):
        pixels = [torch.arange(length, device=offset.device) for length in new_size]
        return take(tensor, [at + index for at, index in zip(offset, pixels, strict=True)])
    places = zip(offset, new_size, strict=True)
    region: tuple[Any, ...] = (..., *(slice(at, at + length) for at, length in places))
    return tensor[region]


def _shrink(tensor: Tensor, size: Sequence[int]) -> Tensor:
    old = tensor.shape[tensor.ndim - len(size) :]
    if not tensor.is_floating_point():
        return take(tensor, [_nearest(a, b, tensor.device) for a, b in zip(old, size, strict=True)])
    if tensor.ndim == len(size) + 1:  # maps have no channels
        return _shrink(tensor.unsqueeze(1), size).squeeze(1)
    if len(size) not in _MODES:
        raise ValueError(
            f"inputs must have 1, 2 or 3 spatial dimensions to be interpolated, not {len(size)}; "
            'use mode="crop".'
        )
    return interpolate(tensor, size=tuple(size), mode=_MODES[len(size)])


def _nearest(old: int, new: int, device: torch.device) -> Tensor:
    """Return the pixel that contains the centre of each new pixel, as interpolation does."""
    return ((2 * torch.arange(new, device=device) + 1) * old).div(2 * new, rounding_mode="floor")


def _check_dense(targets: Tensor | None, size: Sequence[int]) -> None:
    # [1:], because the batch comes first, even where it is as large as the images.
    if targets is None or tuple(targets.shape[1:][-len(size) :]) != tuple(size):
        found = None if targets is None else tuple(targets.shape)
        raise ValueError(
            "targets must have one value per pixel, of shape [batch, ..., "
            f"{', '.join(map(str, size))}], to be resized, not {found}; use resize_targets=False."
        )
