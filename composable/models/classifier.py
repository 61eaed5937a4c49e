"""A module with a loss of outputs and targets, and metrics."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from composable._support.checks import check_module
from composable.batches.model_call import call_with_input
from composable.batches.spec import BatchSpec
from composable.metrics import accuracy


class Classifier(nn.Module):
    """A module of inputs, with a loss and metrics of its outputs and the targets of a batch.

    Args:
        module: It is called with the input of a batch, and returns logits.
        loss_fn: `loss_fn(outputs, targets)`.
        metrics: The metrics of evaluations, by name: see `composable.metrics`. Default: the
            accuracy.
        input_key: The input of a batch, as for the `Trainer`.
        target_key: The target of a batch.

    Raises:
        TypeError: An argument is of the wrong type.

    Example:
        >>> from composable import Trainer
        >>> from composable.models import Classifier
        >>> model = Classifier(nn.Linear(4, 3))
        >>> data = [(torch.randn(8, 4), torch.randint(3, (8,)))]
        >>> sorted(Trainer(model, progress_bar=False).eval(data)["eval"])
        ['accuracy', 'loss']
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        loss_fn: Callable[[Any, Any], Tensor] = cross_entropy,
        metrics: Any = None,
        input_key: Any = 0,
        target_key: Any = 1,
    ) -> None:
        super().__init__()
        check_module("module", module)
        if isinstance(loss_fn, type) or not callable(loss_fn):
            raise TypeError(f"loss_fn={loss_fn!r} must be a function (outputs, targets) -> loss.")
        self.module, self.loss_fn = module, loss_fn
        self.batch_spec = BatchSpec(input_key, target_key)
        self._metrics = {"accuracy": accuracy} if metrics is None else metrics

    def forward(self, batch: Any) -> Any:
        """Call the module with the input of a batch."""
        return call_with_input(self.module, batch, self.batch_spec)

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Compute the loss of the outputs for a batch."""
        return self.loss_fn(outputs, self.batch_spec.targets(batch))

    @property
    def loss_weight(self) -> Callable[[Any, Any], Any]:
        """The `loss_weight` of `loss_fn`.

        Raises:
            AttributeError: It has none.
        """
        return self.loss_fn.loss_weight  # type: ignore[attr-defined, no-any-return]

    def validate(self, batch: Any) -> tuple[Any, Any]:
        """Return the outputs for a batch, and its targets."""
        return self(batch), self.batch_spec.targets(batch)

    def metrics(self, train: bool) -> Any:
        """Return the metrics."""
        return self._metrics
