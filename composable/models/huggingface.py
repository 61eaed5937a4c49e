"""A model of Transformers with metrics."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from composable._other_trainers import explain_arguments
from composable._support.checks import check_module
from composable.batches.model_call import batch_spec_of, keyword_call_of
from composable.losses.loss import OutputLoss


class HuggingFaceModel(nn.Module):
    """A model of Transformers with the metrics of its logits and labels.

    The `Trainer` takes a model of Transformers as it is: this adapter adds metrics only. They get
    the logits and the labels, or the outputs of a model without logits as they are.

    Args:
        model: A model that is called with the entries of a batch as keyword arguments, and returns
            its loss.
        metrics: The metrics of evaluations, by name: see `composable.metrics`.
        target_key: The target of a batch. Default: "labels", or the positions of answers.

    Raises:
        TypeError: The model is not a module.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> from composable.metrics import accuracy
        >>> from composable.models import HuggingFaceModel
        >>> config = BertConfig(
        ...     vocab_size=9,
        ...     hidden_size=4,
        ...     num_hidden_layers=1,
        ...     num_attention_heads=1,
        ...     intermediate_size=4,
        ... )
        >>> model = HuggingFaceModel(BertForSequenceClassification(config), {"accuracy": accuracy})
        >>> batch = {"input_ids": torch.ones(2, 3).long(), "labels": torch.tensor([0, 1])}
        >>> outputs, labels = model.validate(batch)
        >>> outputs.logits.shape, labels
        (torch.Size([2, 2]), tensor([0, 1]))
    """

    def __init__(self, model: nn.Module, metrics: Any = None, *, target_key: Any = None) -> None:
        super().__init__()
        check_module("model", model)
        self.model = model
        self.batch_spec = batch_spec_of(model, target_key=target_key)
        self._metrics = {} if metrics is None else metrics
        self._call = keyword_call_of(model)
        self._loss = OutputLoss(type(model).__name__)

    def forward(self, batch: Mapping[str, Any]) -> Any:
        """Call the model with the entries of a batch."""
        return self._call(self.model, batch, self.batch_spec)

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Return the loss that the model computed.

        Raises:
            ValueError: There is none.
        """
        return self._loss(outputs, batch)

    def validate(self, batch: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the outputs for a batch, and its labels."""
        return self(batch), self.batch_spec.targets(batch)

    def metrics(self, train: bool) -> Any:
        """Return the metrics."""
        return self._metrics


explain_arguments(HuggingFaceModel)
