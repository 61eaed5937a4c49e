"""A detection model, which returns its losses in training and boxes in evaluation."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from composable._support.checks import check_module, check_range, kind_of
from composable._support.registry import class_name


class Detector(nn.Module):
    """A detection model of torchvision: a sum of its losses, and metrics of its boxes.

    In training it is called with the images and targets of a batch, and returns a dictionary of
    losses. In evaluation it is called with the images, and returns a dictionary of boxes, labels
    and scores for each; there is no loss then.

    The losses of RetinaNet are means over the images of a batch, so the batch can be split. Losses
    of other models depend on the boxes of the whole batch: pass `loss_mean_over="examples"` to
    split it all the same, as a plain loop with `DistributedDataParallel` does.

    Args:
        module: The model. Batches are pairs of a list of images and a list of targets.
        metrics: The metrics of evaluations, by name, such as
            `torchmetrics.detection.MeanAveragePrecision`.
        weights: The weight of each loss, by its name; 1 by default.

    Raises:
        TypeError: The model is not a module, or a weight is not a number.
        ValueError: A weight is negative or not finite.
    """

    def __init__(
        self, module: nn.Module, metrics: Any = None, *, weights: Mapping[str, float] | None = None
    ) -> None:
        super().__init__()
        check_module("module", module)
        if weights is not None and not isinstance(weights, Mapping):
            raise TypeError(f"weights={weights!r} must be a mapping of names to numbers.")
        for name, weight in (weights or {}).items():
            check_range(f"weights[{name!r}]", weight, 0, ends="[)")
        self.module, self.weights = module, dict(weights or {})
        self._metrics = {} if metrics is None else metrics

    def forward(self, batch: Any) -> Any:
        """Return the losses of a batch in training, and the detections otherwise."""
        images, targets = batch
        return self.module(images, targets) if self.training else self.module(images)

    def loss(self, outputs: Any, batch: Any) -> Tensor | None:
        """Sum the losses; None in evaluation mode.

        Raises:
            TypeError: The model returned no dictionary of losses in training mode.
            ValueError: A weight belongs to no loss.
        """
        if not self.training:
            return None
        if not isinstance(outputs, dict) or not outputs:
            raise TypeError(
                f"{type(self.module).__name__} returned {kind_of(outputs)} in training mode and "
                "must return a dictionary of losses."
            )
        if unknown := sorted(self.weights.keys() - outputs.keys()):
            raise ValueError(f"weights has {unknown}, and the losses are {sorted(outputs)}.")
        terms = [self.weights.get(name, 1.0) * loss for name, loss in outputs.items()]
        total: Tensor = sum(terms[1:], terms[0])
        return total

    @property
    def loss_weight(self) -> Callable[[Any, Any], int]:
        """A function that counts the images of a batch, over which RetinaNet's losses are means.

        Raises:
            AttributeError: The losses of the model are means over something else, such as the
                boxes of a whole batch that are not background.
        """
        if not _averages_images(self.module):
            raise AttributeError("loss_weight")
        return lambda outputs, batch: len(batch[0])

    def validate(self, batch: Any) -> tuple[Any, Any]:
        """Return the detections for a batch, and its targets."""
        return self(batch), batch[1]

    def metrics(self, train: bool) -> Any:
        """Return the metrics."""
        return self._metrics


def _averages_images(module: nn.Module) -> bool:
    """Return whether a model is torchvision's RetinaNet, which averages the losses of images."""
    retinanet = "torchvision.models.detection.retinanet.RetinaNet"
    return retinanet in map(class_name, type(module).__mro__)
