"""The loss of an evaluation: the loss of all of its batches.

Where the weights of the batches are known it is their weighted mean, or their sum. Else the loss
function is called once, on the outputs for all batches, which are kept on the CPU until then.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from composable._support.tree import map_tensors, tensors_of
from composable.batches.joined import join_parts
from composable.core.state import State
from composable.data.fetching import loader_length
from composable.engines.shares import other_form
from composable.losses.confirmation import LossOf
from composable.losses.loss import ModelLoss, TargetLoss
from composable.losses.part_weights import SplitLossError, Weight
from composable.losses.watch import LossWatch
from composable.losses.weights import LossWeights
from composable.metrics import Averages

__all__ = ["EvaluatedLoss"]

_LIMIT = 2**30


class EvaluatedLoss:
    """The loss of the batches of an evaluation.

    Args:
        weights: The weights of the batches.
        loss_of: Computes the loss of a state and outputs.
        averages: The averages of the evaluation, to which the loss is added.
        loader: The loader of the evaluation.
    """

    def __init__(
        self,
        weights: LossWeights,
        loss_of: LossOf,
        averages: Averages,
        loader: Any,
    ) -> None:
        self.weights, self.loss_of, self.averages = weights, loss_of, averages
        # Of several processes, each may have a part of a single batch.
        self.batches = loader_length(loader) if not averages.processes.several else None
        self.watch: LossWatch | None = None
        self.form: tuple[Any, ...] | None = None
        """What the losses of the batches so far have in common."""
        self.kept: list[Any] = []
        """The outputs and targets of batches with unknown weights, on the CPU, or the outputs and
        the batch for a loss of the model; None for the only batch if its outputs have no rows."""
        self.sizes: list[int] = []
        """The numbers of examples of these batches."""
        self.first: Tensor | None = None
        """The loss of the first of them."""
        self.reason: SplitLossError | None = None
        """Why their weights are unknown."""

    def around_outputs(self, state: State) -> AbstractContextManager[Any]:
        """Return a context for calling the model on a batch."""
        self.watch = None
        if state.loss_fn is None or self.batches == 1:
            return nullcontext()
        if self.reason is None:
            try:
                self.weights.find_own_loss(state)
            except SplitLossError as error:
                self.reason = error
        self.watch = self.weights.watch(state, state.batch)
        if self.watch is None or not self.weights.watches_forward(state):
            return nullcontext()
        return self.watch.around_forward()

    def add(self, state: State) -> None:
        """Add the loss of a batch, given the state with the batch and the outputs.

        Raises:
            SplitLossError: Its weight is unknown, and the outputs can't be kept.
        """
        if state.loss_fn is None:
            return
        with self.weights.around_loss(state, self.watch):
            loss: Tensor | None = self.loss_of(state, state.outputs)
        if loss is None:  # a model may have no loss in evaluation mode
            return
        if self.batches == 1:
            self.averages.add("loss", loss, 1)
            return
        try:
            self.averages.add_terms("loss", self._weigh(state, loss))
        except SplitLossError as error:
            if self.form is not None:  # too late: earlier batches have been added
                raise
            self.reason = error
            self._keep(state, loss)

    def _weigh(self, state: State, loss: Tensor) -> list[tuple[Tensor, Any, Any]]:
        """Return the terms of the loss of a batch, and the factor and the weight of each."""
        if self.reason is not None:
            raise self.reason
        weight = self.weights.weigh(state, state.outputs, loss, self.watch, self.loss_of)
        if self.form is not None and self.form != weight.form:
            raise other_form("the batches of an evaluation")
        self.form = weight.form
        if isinstance(weight, Weight):
            return [(weight.of_weight(loss), weight.factor, weight.value)]
        return [(value, one.factor, one.value) for value, one in weight.values]

    def _keep(self, state: State, loss: Tensor) -> None:
        """Keep the outputs and targets of a batch, unless it is the only one and these can't be."""
        has_rows, only = _has_rows(state), self.first is None and self.batches is None
        if self.reason is not None and not (has_rows or only):
            raise self.reason
        self.first = loss if self.first is None else self.first
        if not has_rows:
            self.kept.append(None)
            return
        self.sizes.append(state.batch_spec.count(state.batch))
        pair = state.outputs, state.targets if _takes_targets(state) else state.batch
        size = sum(tensor.nbytes for one in (*self.kept, pair) for tensor in tensors_of(one))
        if self.batches is not None and not self.kept:
            size *= self.batches
        if size > _LIMIT:
            raise SplitLossError(
                f"the loss of an evaluation is computed from the outputs for all batches, which "
                f"take {size / 2**30:.3g} GiB, more than 1 GiB: {self.reason}"
            ) from self.reason
        self.kept.append(map_tensors(lambda tensor: tensor.detach().cpu(), pair))

    def finish(self, state: State) -> None:
        """Add the loss of the outputs for all batches, if these were kept.

        Raises:
            SplitLossError: The outputs for several batches can't be joined.
        """
        if len(self.kept) == 1:
            self.averages.add("loss", self.first, 1)  # type: ignore[arg-type]
        if len(self.kept) < 2:
            return
        outputs, rest = self._joined(state)
        loss_fn: Any = state.loss_fn.function if _takes_targets(state) else state.loss_fn  # type: ignore[union-attr]
        with state.precision.autocast(state.device):
            self.averages.add("loss", loss_fn(outputs, rest), 1)

    def _joined(self, state: State) -> Any:
        try:
            whole = join_parts(self.kept, self.sizes, "(outputs, targets)")
        except (TypeError, ValueError) as error:
            raise SplitLossError(
                f"the loss of an evaluation is computed from the outputs for all batches, which "
                f"can't be joined ({error}): {self.reason}"
            ) from self.reason
        return map_tensors(lambda tensor: tensor.to(state.device), whole)


def _takes_targets(state: State) -> bool:
    """Return whether the loss is a function of outputs and targets, and not of the batch."""
    return isinstance(state.loss_fn, TargetLoss)


def _has_rows(state: State) -> bool:
    """Return whether a loss is computed from outputs with a row for each example."""
    if isinstance(state.loss_fn, ModelLoss):
        listed = state.batch_spec.layout_of(state.batch) != "tensors"
        return not listed and all(tensor.ndim for tensor in tensors_of(state.outputs))
    return _takes_targets(state)
