"""FixRes: evaluate at a higher resolution than in training.

Touvron, Vedaldi, Douze and Jégou, "Fixing the train-test resolution discrepancy", NeurIPS 2019,
https://arxiv.org/abs/1906.06423
"""

from collections.abc import Sequence
from math import floor

from jaxtyping import Shaped
from torch import Tensor
from torch.nn.functional import interpolate

from composable._support.checks import check_range, checked, minimum, within
from composable._support.devices import compute_dtype
from composable._support.spatial import check_spatial

_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}


@checked(scale_factor=within(0, ends="()"), size_increment=minimum(1))
def fixres(
    inputs: Shaped[Tensor, "batch channels *size"],
    *,
    scale_factor: float = 1.25,
    size_increment: int = 1,
) -> Shaped[Tensor, "batch channels *large"]:
    """Resize the images of an evaluation to a multiple of the resolution of training.

    Args:
        inputs: Images `[batch, channels, height, width]`, signals or volumes, of any dtype.
        scale_factor: The new length of a side as a multiple of the old one, above 0. At 1 the
            images stay as they are. `fixres_scale` computes it.
        size_increment: New lengths are the nearest multiples of this, at least one.

    Returns:
        The interpolated images, with the dtype, device and memory layout of `inputs`. Integers are
        rounded.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `scale_factor` is not above 0, `size_increment` is below 1, or the inputs have
            no spatial dimension.

    Example:
        >>> fixres(torch.rand(2, 3, 8, 8), scale_factor=1.25).shape
        torch.Size([2, 3, 10, 10])
    """
    check_spatial("inputs", inputs)
    if scale_factor == 1:
        return inputs
    new = [
        max(floor(length * scale_factor / size_increment + 0.5), 1) * size_increment
        for length in inputs.shape[2:]
    ]
    exact = interpolate(
        inputs.to(compute_dtype(inputs.dtype)),
        size=new,
        mode=_MODES[len(new)],
        antialias=scale_factor < 1 and len(new) == 2,
    )
    return (exact if inputs.is_floating_point() else exact.round()).to(inputs.dtype)


@checked(test_crop=within(0, 1, ends="(]"), train_zoom=within(0, ends="()"))
def fixres_scale(
    *, area: Sequence[float] = (0.08, 1.0), test_crop: float = 0.875, train_zoom: float = 1.0
) -> float:
    r"""Compute the test resolution at which objects appear as large as in training.

    A random resized crop of training shows a region whose area is uniform in $[a, b]$ of the image,
    and so enlarges objects; a central crop of a test shows the share $c$ of each side. Objects
    appear equally large if the resolution of the test is

    $$\frac{c}{\mathbb{E}[\sigma]}, \qquad
    \mathbb{E}[\sigma] = \frac{2}{3} \cdot \frac{b^{3/2} - a^{3/2}}{b - a}$$

    times the training resolution.

    Args:
        area: The smallest and the largest area $a, b$ of a random resized crop, as shares of the
            image, in (0, 1]: `scale` of torchvision's `RandomResizedCrop`.
        test_crop: The share $c$ of each side that the central crop of a test shows, in (0, 1].
        train_zoom: A further enlargement of objects in training, above 0.

    Returns:
        The scale factor for `fixres`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, or the smallest area is above the largest.

    Example:
        >>> round(fixres_scale(), 3)
        1.235
        >>> fixres_scale(area=(1.0, 1.0), test_crop=1.0)
        1.0
    """
    if not isinstance(area, (tuple, list)) or len(area) != 2:
        raise TypeError(f"area={area!r} must be two numbers, such as (0.08, 1.0).")
    for i, one in enumerate(area):
        check_range(f"area[{i}]", one, 0, 1, ends="(]")
    low, high = area
    if low > high:
        raise ValueError(f"area={area!r} must be the smallest area first, such as (0.08, 1.0).")
    side = high**0.5 if low == high else 2 / 3 * (high**1.5 - low**1.5) / (high - low)
    return float(train_zoom * test_crop / side)
