"""Alternating flip: horizontal flips that are random once, and alternate afterwards.

Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024, https://arxiv.org/abs/2404.00498
"""

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from composable._support.checks import check_count, check_tensor, checked, is_integer
from composable._support.devices import send
from composable._support.hashing import hash_integers


def alternating_flip(
    images: Shaped[Tensor, "batch channels height width"],
    indices: Int[Tensor, " batch"],
    *,
    epoch: int,
    seed: int = 0,
) -> Shaped[Tensor, "batch channels height width"]:
    r"""Flip images from left to right: at random in the first epoch, and then every other epoch.

    Example $i$ is flipped in epoch $e$ if

    $$h(i) + e \equiv 1 \pmod 2$$

    where $h$ is a hash with the seed. So each example is flipped in one of any two consecutive
    epochs, where independent flips repeat the same view in half of all cases.

    Args:
        images: Images `[batch, channels, height, width]`, of any dtype.
        indices: The index of each example in its dataset, as integers `[batch]`.
        epoch: The number of the epoch, 0 or more.
        seed: The seed of the flips in the first epoch, from 0 to 2**63 - 1.

    Returns:
        A tensor with the shape, dtype and device of `images`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `epoch` or `seed` is out of range, or there is not one index for each image.

    Example:
        >>> image, index = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([5])
        >>> [alternating_flip(image, index, epoch=epoch).flatten().tolist() for epoch in range(3)]
        [[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]
    """
    check_tensor("images", images)
    return apply_alternating_flip(images, draw_alternating_flip(indices, epoch=epoch, seed=seed))


@checked(indices=check_tensor, epoch=check_count, seed=check_count)
def draw_alternating_flip(
    indices: Int[Tensor, " batch"], *, epoch: int, seed: int = 0
) -> Bool[Tensor, " batch"]:
    """Determine which examples are flipped in an epoch, by their indices alone.

    Args:
        indices: The index of each example in its dataset, as integers `[batch]`.
        epoch: The number of the epoch, 0 or more.
        seed: The seed of the flips in the first epoch, from 0 to 2**63 - 1.

    Returns:
        Whether each example is flipped, on the device of `indices`; the same on every device.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `epoch` or `seed` is out of range.

    Example:
        >>> draw_alternating_flip(torch.arange(6), epoch=0)
        tensor([False,  True,  True,  True,  True, False])
        >>> draw_alternating_flip(torch.arange(6), epoch=1)
        tensor([ True, False, False, False, False,  True])
    """
    if not is_integer(indices):
        raise TypeError(f"indices must have an integer dtype, not {indices.dtype}.")
    return (hash_integers(indices.long(), seed) + epoch) % 2 == 1


def apply_alternating_flip(
    images: Shaped[Tensor, "batch *rest width"], draw: Bool[Tensor, " batch"]
) -> Shaped[Tensor, "batch *rest width"]:
    """Flip the images that were drawn, or dense targets. This half is deterministic.

    Args:
        images: Images or dense targets `[batch, ..., width]`, of any dtype.
        draw: The result of `draw_alternating_flip`.

    Returns:
        A tensor with the shape, dtype and device of `images`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: There is not one entry of the draw for each image.

    Example:
        >>> apply_alternating_flip(torch.tensor([[1, 2], [3, 4]]), torch.tensor([True, False]))
        tensor([[2, 1],
                [3, 4]])
    """
    check_tensor("images", images)
    check_tensor("draw", draw)
    if draw.dtype is not torch.bool:
        raise TypeError(
            f"draw must have dtype torch.bool, not {draw.dtype}; draw_alternating_flip returns one."
        )
    if images.ndim < 2 or images.shape[:1] != draw.shape:
        raise ValueError(
            "images must be [batch, ..., width], and indices and draw [batch], not "
            f"{tuple(images.shape)} and {tuple(draw.shape)}."
        )
    flipped = send(draw, images.device)
    return torch.where(flipped.reshape(-1, *[1] * (images.ndim - 1)), images.flip(-1), images)
