"""The operations of RandAugment and AugMix: their order, their strengths, and how they are applied.

A strength is drawn in the unit of its operation: degrees, bits, a factor, a share of the width.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from composable._support.checks import Check, check_one_of
from composable._support.devices import compute_dtype, generator_device, send
from composable._support.pixels import Images, like_images
from composable._support.sampling import draw_uniform

from . import images as single

# In the order of their numbers in a draw. The operations of all sets come first.
OPERATIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": lambda images, _: single.autocontrast(images),
    "equalize": lambda images, _: single.equalize(images),
    "posterize": single.posterize,
    "rotate": single.rotate,
    "solarize": single.solarize,
    "shear_x": single.shear_x,
    "shear_y": single.shear_y,
    "translate_x": lambda images, share: single.translate_x(images, share * images.shape[3]),
    "translate_y": lambda images, share: single.translate_y(images, share * images.shape[2]),
    "color": single.color,
    "contrast": single.contrast,
    "brightness": single.brightness,
    "sharpness": single.sharpness,
}
SETS = {"all": len(OPERATIONS), "safe": 9, "original": len(OPERATIONS)}
"""The number of operations of each set, counted from the first."""

# The strength at level 0, its change per level, whether it is truncated, and whether its sign is
# random. One row per operation that all sets have.
_RANGES = torch.tensor(
    [
        [0, 0, 0, 0],  # autocontrast
        [0, 0, 0, 0],  # equalize
        [4, -4 / 10, 1, 0],  # posterize: bits
        [0, 30 / 10, 1, 1],  # rotate: degrees
        [256, -256 / 10, 1, 0],  # solarize: a grey level
        [0, 0.3 / 10, 0, 1],  # shear_x: pixels per pixel
        [0, 0.3 / 10, 0, 1],  # shear_y
        [0, 1 / 30, 0, 1],  # translate_x: share of the width
        [0, 1 / 30, 0, 1],  # translate_y: share of the height
    ],
    dtype=torch.float64,
)
check_set: Check = partial(check_one_of, allowed=SETS)
_BRIGHTNESS = list(OPERATIONS).index("brightness")


def draw_operations(
    size: tuple[int, ...],
    *,
    severity: float,
    augmentations: str,
    generator: torch.Generator | None,
) -> tuple[Int[Tensor, "*size"], Float[Tensor, "*size"]]:
    """Draw operations by their numbers, each with a strength in the unit of the operation."""
    device = generator_device(generator)
    operations = torch.randint(SETS[augmentations], size, generator=generator, device=device)
    share, side = draw_uniform((2, *size), generator=generator).to("cpu")
    operations = operations.to("cpu")  # `apply_operations` needs the sizes of its groups there
    lowest = min(0.1, severity)
    level, negative = lowest + share * (severity - lowest), side < 0.5
    start, slope, whole, signed = _RANGES[operations.clamp(max=len(_RANGES) - 1)].unbind(-1)
    change = slope * level
    change = torch.where(whole.bool(), change.trunc(), change)
    strength = start + torch.where(signed.bool() & negative, -change, change)
    factor = _factor(augmentations, severity, operations, level, share, negative)
    return operations, torch.where(operations < len(_RANGES), strength, factor)


def _factor(
    augmentations: str,
    severity: float,
    operations: Tensor,
    level: Tensor,
    share: Tensor,
    negative: Tensor,
) -> Tensor:
    """Return the factors of color, contrast, brightness and sharpness."""
    if augmentations == "original":
        return 0.18 * level + 0.1
    more = 1 + share * max(severity - 1, 0)
    more = torch.where((operations == _BRIGHTNESS) & (more > 1), 0.75 * more, more)
    return torch.where(negative, 1 - 0.09 * severity * share, more)


def apply_operations(
    images: Images,
    operations: Int[Tensor, "steps chains"],
    strengths: Float[Tensor, "steps chains"],
) -> Shaped[Tensor, "chains channels height width"]:
    """Apply one operation after the other; chain i begins with image i modulo the batch.

    Each step sorts the chains by operation, so that each operation is one call. The draw is on the
    CPU, so the sizes of the groups need no synchronization: for another one, masks take the place
    of groups. -1 skips the operation.
    """
    if operations.device.type != "cpu":
        return apply_by_mask(images, operations, strengths)
    device = images.device
    current, place = images, torch.arange(operations.shape[1]) % max(len(images), 1)
    numbers = torch.arange(len(OPERATIONS))
    # Converted once rather than for each operation.
    strengths = strengths.to(compute_dtype(images.dtype))
    for drawn, strength in zip(operations, strengths, strict=True):
        drawn, order = drawn.sort(stable=True)
        ends = torch.searchsorted(drawn, numbers)
        rows = send(place[order], device).tensor_split(ends)
        of_group = send(strength[order], device).tensor_split(ends)
        # One group at a time: allocating memory for all groups at once dominates on small images.
        done = [current.index_select(0, rows[0])]
        for operation, group, strongs in zip(
            OPERATIONS.values(), rows[1:], of_group[1:], strict=True
        ):
            if len(group):
                done.append(operation(current.index_select(0, group), strongs))
        current, place = torch.cat(done), order.argsort()
    return like_images(current.index_select(0, send(place, device)), images)


def apply_by_mask(
    images: Images,
    operations: Int[Tensor, "steps chains"],
    strengths: Float[Tensor, "steps chains"],
) -> Shaped[Tensor, "chains channels height width"]:
    """Compute `apply_operations` by all operations on all images, whose sizes are known."""
    current = images.repeat(operations.shape[1] // max(len(images), 1), 1, 1, 1)
    numbers = operations.to(images.device)[..., None, None, None]
    strengths = strengths.to(images.device, compute_dtype(images.dtype))
    for drawn, strength in zip(numbers, strengths, strict=True):
        after = current
        for number, operation in enumerate(OPERATIONS.values()):
            after = torch.where(drawn == number, operation(current, strength), after)
        current = after
    return like_images(current, images)
