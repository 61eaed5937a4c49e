"""Log images of the inputs, and of segmentation masks."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Integer, Num
from torch import Tensor

from composable._support.checks import check_count, check_flag, check_one_of
from composable.batches.model_call import logits_of
from composable.callbacks._first_batch import UsesFirstBatch
from composable.core.event import Event
from composable.core.intervals import IntervalLike, check_interval, has_completed
from composable.core.logger import Logger
from composable.core.state import State


class ImageVisualizer(UsesFirstBatch):
    """Logs the images on which a model is trained and evaluated, as the algorithms leave them.

    Training images come from the first batch of each interval, and are logged as
    `images/train/inputs`. The images of an evaluation come from its first batch, and are named
    after the evaluator: `images/eval/inputs`. With `mode="segmentation"` the masks are logged too,
    as `images/train/targets` and `images/train/predictions`, in one color for each class; targets
    that are not masks, such as MixUp's, are omitted. If a batch is split into microbatches, the
    images come from the first one.

    An image with values outside [0, 1], as after normalization, is scaled to [0, 1]. Of two
    channels the first is shown, and of more than four the first three.

    Args:
        interval: How often training images are logged: "100ba", "1ep", a function
            `(state, event) -> bool`, or None for never.
        mode: "input" to log the inputs, "segmentation" to log the masks too.
        num_images: Number of images to log each time, at least 1.
        channels_last: Whether the inputs have the shape [batch, height, width, channels] instead of
            [batch, channels, height, width].

    Raises:
        ValueError: An argument has an invalid value, or the inputs are not images.

    Example:
        >>> from composable.callbacks import ImageVisualizer
        >>> ImageVisualizer("1ep", mode="segmentation").num_images
        8
    """

    def __init__(
        self,
        interval: IntervalLike = "100ba",
        *,
        mode: str = "input",
        num_images: int = 8,
        channels_last: bool = False,
    ) -> None:
        self.interval = check_interval("interval", interval)
        check_one_of("mode", mode, ("input", "segmentation"))
        check_count("num_images", num_images, 1)
        check_flag("channels_last", channels_last)
        self.mode, self.num_images, self.channels_last = mode, num_images, channels_last
        self._due = False
        self._images: dict[str, Tensor] = {}
        if mode == "segmentation":  # an unused hook would make the loop build states for it
            self.after_forward = self._log_training_masks  # type: ignore[method-assign]

    # --- training ---

    def batch_start(self, state: State, logger: Logger) -> None:
        """Note whether the images of this batch are due."""
        first = state.timestamp.batch == 0 and self.interval is not None
        due = first or has_completed(self.interval, state, Event.BATCH_START)
        self._due = due and bool(logger.destinations)

    def before_forward(self, state: State, logger: Logger) -> None:
        """Log the inputs if they are due."""
        if self._due:
            self._images = {"inputs": self._inputs(state)}
            if self.mode == "input":
                self._log("train", self._images, logger)

    def _log_training_masks(self, state: State, logger: Logger) -> None:
        if self._due:
            self._log("train", self._images | self._masks(state), logger)

    def _log(self, label: str, kept: Mapping[str, Tensor], logger: Logger) -> None:
        logger.log_images({f"images/{label}/{name}": each for name, each in kept.items()})
        self._due, self._images = False, {}

    # --- evaluation ---

    def _keep(self, state: State) -> dict[str, Tensor]:
        masks = self._masks(state) if self.mode == "segmentation" else {}
        return {"inputs": self._inputs(state), **masks}

    # --- images ---

    def _inputs(self, state: State) -> Float[Tensor, "images channels height width"]:
        inputs = state.inputs
        if not isinstance(inputs, Tensor) or inputs.ndim != 4:
            shape = list(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
            raise ValueError(
                f"ImageVisualizer needs inputs of the shape [batch, channels, height, width], not "
                f"{shape}; pass input_key to the Trainer if another part of the batch is the image."
            )
        images = inputs[: self.num_images].detach()
        images = images.permute(0, 3, 1, 2) if self.channels_last else images
        return in_unit_range(images[:, : _shown_channels(images.shape[1])])

    def _masks(self, state: State) -> dict[str, Tensor]:
        outputs = logits_of(state.outputs)
        outputs = outputs.get("out") if isinstance(outputs, Mapping) else outputs
        found = {"targets": state.targets, "predictions": outputs}
        return {
            name: colored(as_classes(mask[: self.num_images].detach()))
            for name, mask in found.items()
            if isinstance(mask, Tensor) and mask.ndim in (3, 4)
        }


def _shown_channels(channels: int) -> int:
    """Return how many channels are shown: as many as a gray or a color image has."""
    return channels if channels in (1, 3, 4) else 1 if channels == 2 else 3


def in_unit_range(
    images: Num[Tensor, "images channels height width"],
) -> Float[Tensor, "images channels height width"]:
    """Scale each image with values outside [0, 1] to [0, 1]; integers are divided by 255."""
    if not images.is_floating_point():
        return images.float() / 255
    images = images.float()
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    scaled = (images - low) / (high - low).clamp(min=1e-12)
    return torch.where((low >= 0) & (high <= 1), images, scaled)  # without waiting for the device


def as_classes(mask: Num[Tensor, " images *rest"]) -> Integer[Tensor, "images height width"]:
    """Return the classes of a mask: of class indices, or of logits or shares of classes."""
    if mask.ndim == 3:
        return mask.long()
    if mask.shape[1] > 1:
        return mask.argmax(1)
    return (mask[:, 0] > 0).long() if mask.is_floating_point() else mask[:, 0].long()


def colored(
    classes: Integer[Tensor, "images height width"],
) -> Float[Tensor, "images 3 height width"]:
    """Color a mask by the palette of PASCAL VOC; negative classes, which are ignored, are gray."""
    levels = []
    for channel in range(3):  # a channel has every third bit of the class, the lowest on top
        bits = [((classes >> (3 * i + channel)) & 1) << (7 - i) for i in range(3)]
        levels.append(bits[0] + bits[1] + bits[2])
    colors = torch.stack(levels, 1) / 255
    return torch.where(classes[:, None] < 0, 0.5, colors)
