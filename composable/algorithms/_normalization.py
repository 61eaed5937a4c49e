"""Augmentation of batches, and of images that the data loader has normalized."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import attrs
from torch import Tensor

from composable._support.checks import kind_of, with_fields
from composable._support.devices import from_numbers
from composable._support.pixels import check_pixels
from composable.algorithms._dense_targets import check_no_dense_targets
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State


@attrs.frozen(repr=False)
class Augmentation(Algorithm):
    """Augment each batch of the loader."""

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.AUGMENT
    reads = frozenset({"batch", "key", "timestamp"})
    writes = frozenset({"batch"})


def _per_channel(instance: Any, *_: Any) -> None:
    """Validate `mean` and `std`: one number per channel each, or None for both."""
    given = {"mean": instance.mean, "std": instance.std}
    if (instance.mean is None) != (instance.std is None):
        raise ValueError(
            f"mean={instance.mean!r} and std={instance.std!r} must be given together; pass both "
            "values of the normalization, or neither."
        )
    for name, value in given.items():
        if value is not None and not (isinstance(value, tuple) and value and _are_numbers(value)):
            raise TypeError(f"{name}={value!r} must be a sequence of numbers, one per channel.")
    if instance.std is not None and not all(v > 0 for v in instance.std):
        raise ValueError(f"std={instance.std!r} must be greater than 0.")


def _are_numbers(values: tuple[Any, ...]) -> bool:
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def _as_tuple(value: Any) -> Any:
    """Convert a list to a tuple, since algorithms are immutable; return any other value."""
    return tuple(value) if isinstance(value, list) else value


def _check(images: Any, state: State, advice: str) -> None:
    """Check the range of the first image; on a GPU in the first batch only, since it waits."""
    if isinstance(images, Tensor):
        check_pixels(images, advice, wait=not state.timestamp.batch)


@attrs.frozen(repr=False)
class PixelAugmentation(Augmentation):
    """Augment the images of a batch; a subclass has the `augmentation`, and its options as fields.

    Args:
        mean: Mean of each channel in the normalization of the data loader, if it normalizes.
        std: Standard deviation of each channel in that normalization.
    """

    mean: tuple[float, ...] | None = attrs.field(default=None, converter=_as_tuple, kw_only=True)
    std: tuple[float, ...] | None = attrs.field(
        default=None, converter=_as_tuple, validator=_per_channel, kw_only=True
    )

    augmentation: ClassVar[Callable[..., Tensor]]
    """A function of images, with arguments by the names of the fields."""

    def apply(self, event: Event, state: State) -> State:
        """Augment the images of the batch."""
        augmentation = with_fields(self, type(self).augmentation)
        augment = partial(augmentation, generator=state.generator(self.name))
        return state.with_batch(inputs=self._on_pixels(augment, state))

    def _on_pixels(self, augment: Callable[[Tensor], Tensor], state: State) -> Tensor:
        """Undo the normalization of the images, augment them, and normalize them again."""
        check_no_dense_targets(
            state,
            f"{self.name} moves pixels, and can't move",
            "transform images and targets together in the data set",
        )
        images, mean, std = state.inputs, self.mean, self.std
        if mean is None or std is None:
            _check(images, state, "if the data loader normalizes them, pass its mean and std")
            return augment(images)
        if not isinstance(images, Tensor) or not images.is_floating_point():
            raise TypeError(
                "images must be normalized, with a floating-point dtype, not "
                f"{images.dtype if isinstance(images, Tensor) else kind_of(images)}; pass neither "
                "mean nor std for other images."
            )
        center, scale = (from_numbers(values, images).reshape(-1, 1, 1) for values in (mean, std))
        pixels = images * scale + center
        _check(pixels, state, f"mean={mean} and std={std} must match the data loader's")
        return (augment(pixels) - center) / scale
