"""A loss of a model with auxiliary outputs."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from composable._support.checks import check_range, kind_of


class AuxiliaryLoss(nn.Module):
    """A loss of the main output of a model and, in training, of its auxiliary outputs.

    For models of torchvision: Inception and GoogLeNet return a named tuple in training and one
    tensor in evaluation, and segmentation models return a dictionary of "out" and "aux". The first
    output is the main one.

    Args:
        loss_fn: `loss_fn(output, targets)`, of each output.
        weight: The weight of the loss of each auxiliary output: 0.4 for Inception, 0.3 for
            GoogLeNet and 0.5 for segmentation in the training scripts of torchvision.

    Raises:
        TypeError: `loss_fn` is not a function.
        ValueError: `weight` is negative or not finite.

    Example:
        >>> from torch.nn.functional import cross_entropy
        >>> from composable.models import AuxiliaryLoss
        >>> loss_fn, targets = AuxiliaryLoss(cross_entropy, 0.5), torch.tensor([0, 1])
        >>> outputs = {"out": torch.zeros(2, 2), "aux": torch.zeros(2, 2)}
        >>> loss_fn(outputs, targets) / cross_entropy(outputs["out"], targets)
        tensor(1.5000)
        >>> loss_fn.eval()(outputs, targets) == loss_fn(outputs["out"], targets)
        tensor(True)
    """

    def __init__(self, loss_fn: Callable[[Any, Any], Tensor], weight: float = 0.4) -> None:
        super().__init__()
        if isinstance(loss_fn, type) or not callable(loss_fn):
            raise TypeError(f"loss_fn={loss_fn!r} must be a function (output, targets) -> loss.")
        check_range("weight", weight, 0, ends="[)")
        self.loss_fn, self.weight = loss_fn, weight

    @property
    def loss_weight(self) -> Callable[[Any, Any], Any]:
        """The `loss_weight` of `loss_fn`, for the main output.

        Raises:
            AttributeError: It has none.
        """
        weight = self.loss_fn.loss_weight  # type: ignore[attr-defined]
        return lambda outputs, batch: weight(_parts(outputs)[0], batch)

    def forward(self, outputs: Any, targets: Any) -> Tensor:
        """Compute the loss.

        Raises:
            TypeError: The outputs are neither a tensor, a tuple nor a mapping.
        """
        main, *others = _parts(outputs)
        loss = self.loss_fn(main, targets)
        for output in others if self.training else ():
            if self.weight and output is not None:  # GoogLeNet may be built without them
                loss = loss + self.weight * self.loss_fn(output, targets)
        return loss


def _parts(outputs: Any) -> list[Any]:
    """Return the main output and the auxiliary ones."""
    if isinstance(outputs, Tensor):
        return [outputs]
    if not isinstance(outputs, (Mapping, tuple)):
        raise TypeError(f"outputs must be a tensor, a tuple or a mapping, not {kind_of(outputs)}.")
    return list(outputs.values() if isinstance(outputs, Mapping) else outputs)
