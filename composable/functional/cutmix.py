"""CutMix: paste a box of another image into each image.

Yun, Han, Oh, Chun, Choe and Yoo, "CutMix: Regularization Strategy to Train Strong Classifiers
with Localizable Features", ICCV 2019, https://arxiv.org/abs/1905.04899
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from composable._support.checks import (
    Check,
    check_count,
    check_draw,
    check_flag,
    check_one_batch,
    check_partners,
    check_size,
    check_tensor,
    checked,
    within,
)
from composable._support.devices import compute_dtype, from_numbers, generator_device, numbers, send
from composable._support.spatial import check_spatial, is_dense

from ._boxes import broadcast, clip_boxes, clip_region, draw_boxes, inside
from .mixed import MixedBatch, draw_beta, may_write_out, select_rows

_SEVERAL = "mix several with one draw: see draw_cutmix and apply_cutmix"
_options: dict[str, Check] = {
    "alpha": within(0, ends="()"),
    "uniform_sampling": check_flag,
    "per_sample": check_flag,
}


class CutMixDraw(NamedTuple):
    """The draw of `cutmix`: a partner for each example, and the box that is pasted from it.

    Attributes:
        permutation: The partners, `[batch]`.
        box: Its start and stop in each dimension, `[dims, 2]`, or one such box for each example. It
            may extend over the border.
    """

    permutation: Tensor
    box: Tensor


@checked(**_options)
def cutmix(
    inputs: Shaped[Tensor, "batch channels *size"],
    targets: Shaped[Tensor, " *dense"],
    *,
    alpha: float = 1.0,
    uniform_sampling: bool = False,
    per_sample: bool = False,
    generator: torch.Generator | None = None,
) -> MixedBatch:
    r"""Paste a box of another example into every example of a batch.

    $$x'_i = (1 - M) \odot x_i + M \odot x_{p(i)}, \quad w = 1 - \overline{M}, \quad
    \lambda \sim \mathrm{Beta}(\alpha, \alpha)$$

    with a random permutation $p$ and the mask $M$ of a box that takes up $1 - \lambda$ of the
    image, rounded to whole pixels. Its centre is any pixel, so a part of it may extend over the
    border; the weight $w$ is the share of pixels that an example keeps after clipping.

    Args:
        inputs: Images `[batch, channels, height, width]`, signals or volumes, of any dtype.
        targets: Class indices, class probabilities or numbers to regress, `[batch, ...]`. Maps
            with a target for each pixel, `[batch, height, width]` or `[batch, classes, height,
            width]`, are pasted in the same way as the images.
        alpha: Strength, above 0. At 1 every size of box is equally likely; near 0 boxes are
            almost nothing or almost everything.
        uniform_sampling: Make every pixel equally likely to be replaced. As in the paper, those
            in the middle are replaced more often.
        per_sample: Draw one box per example rather than one per batch.
        generator: Source of randomness. Without one, torch's global generator.

    Returns:
        The mixed inputs, with the shape, dtype, device and memory layout of `inputs`; both
        targets; and the weight of the first. Its `loss` and `soft_targets` make use of them. Of
        maps both targets are the pasted map, since each pixel has one target.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `alpha` is not above 0, the inputs have no spatial dimension, or the batch
            sizes differ.

    Example:
        >>> images, labels = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> mixed = cutmix(images, labels, generator=torch.Generator().manual_seed(0))
        >>> outputs = mixed.inputs.mean((2, 3)) @ torch.ones(3, 4)
        >>> mixed.loss(torch.nn.functional.cross_entropy, outputs).shape
        torch.Size([])
    """
    check_one_batch(inputs, targets, check=check_spatial, advice=_SEVERAL)
    draw = draw_cutmix.unchecked(
        inputs.shape[0],
        inputs.shape[2:],
        alpha=alpha,
        uniform_sampling=uniform_sampling,
        per_sample=per_sample,
        generator=generator,
    )
    return apply_cutmix.unchecked(inputs, targets, draw)


@checked(batch_size=check_count, size=check_size, **_options)
def draw_cutmix(
    batch_size: int,
    size: Sequence[int],
    *,
    alpha: float = 1.0,
    uniform_sampling: bool = False,
    per_sample: bool = False,
    generator: torch.Generator | None = None,
) -> CutMixDraw:
    """Draw the partners and the box of one batch.

    Args:
        batch_size: Number of examples, 0 or more.
        size: Lengths of the spatial dimensions, such as `inputs.shape[2:]`.
        alpha: Strength, above 0; see `cutmix`.
        uniform_sampling: Make every pixel equally likely to be in the box.
        per_sample: Draw one box per example rather than one per batch.
        generator: Source of randomness. Without one, torch's global generator.

    Returns:
        A permutation, and a box (or `batch_size` of them), on the device of the generator.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `alpha` is not above 0, or a size is negative.

    Example:
        >>> draw_cutmix(4, (8, 8), generator=torch.Generator().manual_seed(0)).box
        tensor([[-1,  4],
                [ 1,  6]])
    """
    device = generator_device(generator)
    permutation = torch.randperm(batch_size, generator=generator, device=device)
    share = draw_beta(alpha, (batch_size,) if per_sample else (), generator=generator)
    root = (1 - share).pow(1 / len(size)).unsqueeze(-1)
    sides = (root * from_numbers(size, root)).round()
    box = draw_boxes(sides, size, uniform_sampling=uniform_sampling, generator=generator)
    return CutMixDraw(permutation, box)


def _check_draw(inputs: Tensor, targets: Tensor, draw: CutMixDraw) -> None:
    check_one_batch(inputs, targets, advice=_SEVERAL)
    check_draw(draw, CutMixDraw, "draw_cutmix")
    check_tensor("draw.box", draw.box)
    check_partners(draw.permutation, inputs)
    if inputs.ndim <= draw.box.shape[-2]:
        raise ValueError(
            f"draw has a box of {draw.box.shape[-2]} dimensions, but inputs has shape "
            f"{tuple(inputs.shape)}; draw with size=inputs.shape[2:]."
        )


@checked(_check_draw)
def apply_cutmix(
    inputs: Shaped[Tensor, " *shape"], targets: Shaped[Tensor, " *dense"], draw: CutMixDraw
) -> MixedBatch:
    """Apply a draw: paste the box of each partner. This half is deterministic.

    Args:
        inputs: Of any dtype, `[batch, ..., *size]`.
        targets: Targets, `[batch, ...]`.
        draw: The result of `draw_cutmix` for this size.

    Returns:
        The mixed batch; see `cutmix`. Outside of the box its inputs equal `inputs` exactly.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Inputs, targets and draw do not belong to one batch size, or the inputs have
            fewer dimensions than the box.

    Example:
        >>> draw = CutMixDraw(torch.tensor([1, 0]), torch.tensor([[1, 3]]))
        >>> mixed = apply_cutmix(torch.tensor([[0, 0, 0, 0], [1, 2, 3, 4]]), torch.eye(2), draw)
        >>> mixed.inputs, mixed.weight
        (tensor([[0, 2, 3, 0],
                [1, 0, 0, 4]]), tensor(0.5000))
    """
    dims = draw.box.shape[-2]
    size = inputs.shape[inputs.ndim - dims :]
    partner = send(draw.permutation, inputs.device)
    # The weight of the losses is not rounded to the dtype of the inputs, which may be 16-bit.
    dtype = compute_dtype(inputs.dtype)
    corners = numbers(draw.box) if draw.box.ndim == 2 else None
    paste: Callable[[Tensor], Tensor]
    if corners is not None:
        region = clip_region(corners, size)
        covered = prod(side.stop - side.start for side in region)
        weight = torch.full((), 1 - covered / max(prod(size), 1), device=inputs.device, dtype=dtype)
        paste = partial(_paste_region, partner=partner, region=region)
    else:
        box = clip_boxes(draw.box, size)
        share = (box[..., 1] - box[..., 0]).prod(-1).double() / max(prod(size), 1)
        weight = send(1 - share, inputs.device, dtype)
        paste = partial(_paste_boxes, partner=partner, boxes=box)
    mixed = paste(inputs)
    if is_dense(targets, size):
        pasted = paste(targets)
        return MixedBatch(mixed, pasted, pasted, weight)
    return MixedBatch(mixed, targets, select_rows(targets, partner), weight)


def _paste_region(tensor: Tensor, partner: Tensor, region: tuple[Any, ...]) -> Tensor:
    """Paste one box: of the partners, only the box is read."""
    within: tuple[Any, ...] = (..., *region)
    pasted = tensor.clone()
    if may_write_out(tensor):
        torch.index_select(tensor[within], 0, partner, out=pasted[within])
    else:
        pasted[within] = tensor[within].index_select(0, partner)
    return pasted


def _paste_boxes(tensor: Tensor, partner: Tensor, boxes: Tensor) -> Tensor:
    """Paste boxes by a mask, without reading where they are."""
    dims = boxes.shape[-2]
    mask = inside(boxes, tensor.shape[tensor.ndim - dims :], tensor.device)
    return torch.where(broadcast(mask, tensor, dims), select_rows(tensor, partner), tensor)
