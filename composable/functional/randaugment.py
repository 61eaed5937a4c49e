"""RandAugment: a few operations on each image, drawn from a set.

Cubuk, Zoph, Shlens and Le, "RandAugment: Practical Automated Data Augmentation with a Reduced
Search Space", 2019, https://arxiv.org/abs/1909.13719. Here the severity is an upper bound, and
every operation has a separate level below it; in the paper all have the same one. The operations
and their ranges are AugMix's.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from composable._support.checks import Check, check_count, check_draw, checked, within
from composable._support.pixels import Images, check_images, check_pixels

from . import _compiled
from ._opaque import opaque
from ._operations import apply_by_mask, apply_operations, check_set, draw_operations

_options: dict[str, Check] = {
    "depth": check_count,
    "severity": within(0, 10),
    "augmentations": check_set,
}


class RandAugmentDraw(NamedTuple):
    """The draw of `randaugment`: operations and their strengths for each image.

    Attributes:
        operations: Their numbers, counted from 0: autocontrast, equalize, posterize, rotate,
            solarize, shear_x, shear_y, translate_x, translate_y, color, contrast, brightness,
            sharpness; -1 for none.
        strengths: In the unit of the operation: bits for posterize, degrees for rotate, a grey
            level for solarize, pixels per pixel for a shear, a share of the width or height for a
            translation, and a factor for the last four. The first two have none.
    """

    operations: Int[Tensor, "depth batch"]
    strengths: Float[Tensor, "depth batch"]


@checked(**_options)
def randaugment(
    images: Images,
    *,
    depth: int = 2,
    severity: float = 9,
    augmentations: str = "all",
    generator: torch.Generator | None = None,
) -> Images:
    r"""Apply a few random operations to each image.

    Each of the `depth` operations of an image is drawn from the set, with a level that is uniform
    in [0.1, severity]. The effect of level $l$ at severity $s$:

    - autocontrast, equalize: the same at every level;
    - posterize: keeps $4 - \lfloor 0.4 l \rfloor$ bits;
    - rotate: $\pm \lfloor 3 l \rfloor$ degrees;
    - solarize: inverts from $256 - \lfloor 25.6 l \rfloor$ on;
    - shear_x, shear_y: $\pm 0.03 l$;
    - translate_x, translate_y: $\pm l / 30$ of the width or height;
    - color, contrast, sharpness: a factor, uniform either in $[1 - 0.09 s, 1]$ or in $[1, s]$;
    - brightness: likewise, but three quarters of what would be above 1;
    - these four in the set "original": the factor $0.1 + 0.18 l$.

    With the extra `composable[fast]`, compiled loops augment uint8 images on the CPU, with results
    that are equal to the bit. `COMPOSABLE_COMPILED=0` in the environment turns them off.

    Args:
        images: uint8, or floats in [0, 1]; most operations clip values outside of this range.
            Sets with color and contrast need 1 or 3 channels.
        depth: Number of operations per image, 0 or more.
        severity: Upper bound of the levels, in [0, 10]. 0 is the identity.
        augmentations: The set. "all" has all operations, "safe" leaves color, contrast, brightness
            and sharpness out, and "original" has them in other ranges.
        generator: Source of randomness. Without one, torch's global generator. With one on a GPU,
            the host waits for the draw.

    Returns:
        New images, with the shape, dtype, device and memory layout of `images`.

    Raises:
        TypeError: An argument is of the wrong type, or the images are of another dtype.
        ValueError: An argument is out of its range, or the images are not
            `[batch, channels, height, width]`.

    Warns:
        ImageRangeWarning: The images are on the CPU, and the first one is clearly not in [0, 1].

    Example:
        >>> images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
        >>> augmented = randaugment(images, generator=torch.Generator().manual_seed(0))
        >>> augmented.shape, augmented.dtype
        (torch.Size([8, 3, 32, 32]), torch.uint8)
    """
    check_images(images)
    check_pixels(images, "augment before normalizing them")
    draw = draw_randaugment.unchecked(
        len(images),
        depth=depth,
        severity=severity,
        augmentations=augmentations,
        generator=generator,
    )
    return apply_randaugment(images, draw)


@checked(batch_size=check_count, **_options)
def draw_randaugment(
    batch_size: int,
    *,
    depth: int = 2,
    severity: float = 9,
    augmentations: str = "all",
    generator: torch.Generator | None = None,
) -> RandAugmentDraw:
    """Draw the operations of one batch.

    Args:
        batch_size: Number of images, 0 or more.
        depth: Number of operations per image, 0 or more.
        severity: Upper bound of the levels, in [0, 10].
        augmentations: The set: "all", "safe" or "original"; see `randaugment`.
        generator: Source of randomness. Without one, torch's global generator. With one on a GPU,
            the host waits for the draw.

    Returns:
        Operations and strengths, on the CPU. A severity of 0 draws none.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of its range.

    Example:
        >>> draw = draw_randaugment(8, generator=torch.Generator().manual_seed(0))
        >>> draw.operations.shape, draw.strengths.shape
        (torch.Size([2, 8]), torch.Size([2, 8]))
    """
    return RandAugmentDraw(
        *draw_operations(
            (depth if severity else 0, batch_size),
            severity=severity,
            augmentations=augmentations,
            generator=generator,
        )
    )


def apply_randaugment(images: Images, draw: RandAugmentDraw) -> Images:
    """Apply a draw to images. This half is deterministic.

    Args:
        images: uint8, or floats in [0, 1].
        draw: The result of `draw_randaugment`.

    Returns:
        New images; see `randaugment`.

    Raises:
        TypeError: An argument is of the wrong type, or the images are of another dtype.
        ValueError: The images are not `[batch, channels, height, width]`, or the draw is for
            another number of them.

    Example:
        >>> draw = RandAugmentDraw(torch.tensor([[11]]), torch.tensor([[0.5]]))  # brightness
        >>> apply_randaugment(torch.tensor([[[[0.25, 0.5, 1.0]]]]), draw)
        tensor([[[[0.1250, 0.2500, 0.5000]]]])
    """
    check_images(images)
    check_draw(draw, RandAugmentDraw, "draw_randaugment")
    if draw.operations.shape[1:] != images.shape[:1]:
        raise ValueError(
            f"draw is for {tuple(draw.operations.shape)[1:]} images, but images has {len(images)}; "
            "draw with batch_size=len(images)."
        )
    return _apply(images, *draw)


def _augment(images: Tensor, operations: Tensor, strengths: Tensor) -> Tensor:
    if _compiled.serves(images, operations, strengths):
        return _compiled.compiled_augment(images, operations, strengths)
    return apply_operations(images, operations, strengths)


_apply = opaque("randaugment", _augment, apply_by_mask, "operations", "strengths")
