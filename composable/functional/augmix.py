"""AugMix: mix each image with a few of its own augmentations.

Hendrycks, Mu, Cubuk, Zoph, Gilmer and Lakshminarayanan, "AugMix: A Simple Data Processing Method to
Improve Robustness and Uncertainty", ICLR 2020, https://arxiv.org/abs/1912.02781
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from composable._support.checks import Check, check_count, check_draw, checked, minimum, within
from composable._support.devices import generator_device, send
from composable._support.pixels import Images, check_images, check_pixels, like_images, values_of
from composable._support.sampling import draw_dirichlet

from . import _compiled
from ._opaque import opaque
from ._operations import apply_by_mask, apply_operations, check_set, draw_operations
from .mixed import draw_beta

__all__ = ["AugMixDraw", "apply_augmix", "augmix", "draw_augmix"]


def check_depth(name: str, value: int) -> None:
    """Raise an error for a depth that is neither -1 nor a number of operations."""
    check_count(name, value, -1, advice="-1 draws 1, 2 or 3 operations for each chain")
    if value == 0:
        raise ValueError(f"{name}=0 must be at least 1, or -1 to draw 1, 2 or 3 for each chain.")


_options: dict[str, Check] = {
    "severity": within(0, 10),
    "depth": check_depth,
    "width": minimum(1),
    "alpha": within(0, ends="()"),
    "augmentations": check_set,
}


class AugMixDraw(NamedTuple):
    """The draw of `augmix`.

    Attributes:
        operations: Numbers of the operations of each chain, as in `RandAugmentDraw`; -1 after the
            end of a chain.
        strengths: Their strengths, likewise.
        chain_weights: The share of each chain in the mix of an image's chains; they sum to 1.
        weight: The share of all chains together; the rest is the image itself.
    """

    operations: Int[Tensor, "depth width batch"]
    strengths: Float[Tensor, "depth width batch"]
    chain_weights: Float[Tensor, "width batch"]
    weight: Float[Tensor, " batch"]


@checked(**_options)
def augmix(
    images: Images,
    *,
    severity: float = 3,
    depth: int = -1,
    width: int = 3,
    alpha: float = 1.0,
    augmentations: str = "all",
    generator: torch.Generator | None = None,
) -> Images:
    r"""Mix each image with several of its own augmentations.

    $$x' = (1 - m) x + m \sum_{i=1}^{\text{width}} w_i \, c_i(x), \quad
    w \sim \mathrm{Dirichlet}(\alpha, \dots, \alpha), \quad m \sim \mathrm{Beta}(\alpha, \alpha)$$

    where each chain $c_i$ is a sequence of operations, drawn as in `randaugment`. With the extra
    `composable[fast]`, compiled loops serve uint8 images on the CPU, as in `randaugment`.

    Args:
        images: uint8, or floats in [0, 1]; most operations clip values outside of this range.
            Sets with color and contrast need 1 or 3 channels.
        severity: Upper bound of the levels of the operations, in [0, 10]. At 0 nothing is changed.
        depth: Number of operations in a chain, 1 or more; -1 draws 1, 2 or 3 for each chain.
        width: Number of chains, 1 or more.
        alpha: Parameter of both distributions, above 0.
        augmentations: The set of operations: "all", "safe" or "original"; see `randaugment`.
        generator: Source of randomness. Without one, torch's global generator. With one on a GPU,
            the host waits for the draw.

    Returns:
        New images, with the shape, dtype, device and memory layout of `images`; uint8 is rounded to
        the nearest grey level.

    Raises:
        TypeError: An argument is of the wrong type, or the images are of another dtype.
        ValueError: An argument is out of its range, or the images are not
            `[batch, channels, height, width]`.

    Warns:
        ImageRangeWarning: The images are on the CPU, and the first one is clearly not in [0, 1].

    Example:
        >>> images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
        >>> mixed = augmix(images, generator=torch.Generator().manual_seed(0))
        >>> mixed.shape, mixed.dtype
        (torch.Size([8, 3, 32, 32]), torch.uint8)
    """
    check_images(images)
    check_pixels(images, "augment before normalizing them")
    draw = draw_augmix.unchecked(
        len(images),
        severity=severity,
        depth=depth,
        width=width,
        alpha=alpha,
        augmentations=augmentations,
        generator=generator,
    )
    return apply_augmix(images, draw)


@checked(batch_size=check_count, **_options)
def draw_augmix(
    batch_size: int,
    *,
    severity: float = 3,
    depth: int = -1,
    width: int = 3,
    alpha: float = 1.0,
    augmentations: str = "all",
    generator: torch.Generator | None = None,
) -> AugMixDraw:
    """Draw the chains and the weights of one batch.

    Args:
        batch_size: Number of images, 0 or more.
        severity: Upper bound of the levels of the operations, in [0, 10].
        depth: Number of operations in a chain, 1 or more; -1 draws 1, 2 or 3 for each chain.
        width: Number of chains, 1 or more.
        alpha: Parameter of both distributions, above 0.
        augmentations: The set of operations: "all", "safe" or "original"; see `randaugment`.
        generator: Source of randomness. Without one, torch's global generator. With one on a GPU,
            the host waits for the draw.

    Returns:
        Operations, strengths and weights, on the CPU. A severity of 0 draws no operations.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of its range.

    Example:
        >>> draw = draw_augmix(8, generator=torch.Generator().manual_seed(0))
        >>> draw.operations.shape, draw.chain_weights.shape, draw.weight.shape
        (torch.Size([3, 3, 8]), torch.Size([3, 8]), torch.Size([8]))
    """
    steps = 0 if not severity else 3 if depth == -1 else depth
    operations, strengths = draw_operations(
        (steps, width, batch_size),
        severity=severity,
        augmentations=augmentations,
        generator=generator,
    )
    if depth == -1:
        size = (width, batch_size)
        device = generator_device(generator)
        last = torch.randint(3, size, generator=generator, device=device)
        over = torch.arange(steps)[:, None, None] > last.to("cpu")
        operations = operations.masked_fill(over, -1)
    chain_weights = draw_dirichlet(alpha, (width, batch_size), generator=generator).to("cpu")
    weight = draw_beta(alpha, (batch_size,), generator=generator).to("cpu")
    return AugMixDraw(operations, strengths, chain_weights, weight)


def apply_augmix(images: Images, draw: AugMixDraw) -> Images:
    """Apply a draw to images: augment and mix. This half is deterministic.

    Args:
        images: uint8, or floats in [0, 1].
        draw: The result of `draw_augmix`.

    Returns:
        New images; see `augmix`.

    Raises:
        TypeError: An argument is of the wrong type, or the images are of another dtype.
        ValueError: The images are not `[batch, channels, height, width]`, or the draw is for
            another number of them.

    Example:
        >>> draw = AugMixDraw(
        ...     operations=torch.tensor([[[11]]]),  # brightness
        ...     strengths=torch.tensor([[[0.5]]]),
        ...     chain_weights=torch.tensor([[1.0]]),
        ...     weight=torch.tensor([0.5]),
        ... )
        >>> apply_augmix(torch.tensor([[[[0.2, 0.4, 0.8]]]]), draw)
        tensor([[[[0.1500, 0.3000, 0.6000]]]])
    """
    check_images(images)
    check_draw(draw, AugMixDraw, "draw_augmix")
    if draw.weight.shape != images.shape[:1]:
        raise ValueError(
            f"draw is for {len(draw.weight)} images, but images has {len(images)}; draw with "
            "batch_size=len(images)."
        )
    if not len(draw.operations):
        return images.clone()
    weights = draw.weight * draw.chain_weights
    return _apply(images, draw.operations, draw.strengths, weights)


def _augment_and_mix(
    images: Tensor, operations: Tensor, strengths: Tensor, weights: Tensor
) -> Tensor:
    if _compiled.serves(images, operations, strengths, weights):
        return _compiled.compiled_augment_and_mix(images, operations, strengths, weights)
    return _mix(apply_operations, images, operations, strengths, weights)


def _mix(
    apply: Callable[[Tensor, Tensor, Tensor], Tensor],
    images: Tensor,
    operations: Tensor,
    strengths: Tensor,
    weights: Tensor,
) -> Tensor:
    """Mix images with chains of operations on them: `[steps, width, batch]`."""
    augmented = apply(images, operations.flatten(1), strengths.flatten(1))
    chains = augmented.reshape(len(weights), *images.shape)
    values = values_of(images)
    shares = send(weights, values.device, values.dtype)
    mixed = values * (1 - shares.sum(0))[:, None, None, None]
    for chain, share in zip(chains, shares, strict=True):
        mixed = mixed.addcmul_(values_of(chain), share[:, None, None, None])
    return like_images(mixed + 0.5 if images.dtype == torch.uint8 else mixed, images)


_apply = opaque(
    "augmix",
    _augment_and_mix,
    partial(_mix, apply_by_mask),
    "operations",
    "strengths",
    "chain_weights",
)
