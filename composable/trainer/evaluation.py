"""Evaluation and prediction."""

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, TypeAlias
from weakref import WeakSet

import attrs
import torch
from torch import Tensor

from composable._support.tree import map_tensors, tensors_of
from composable.batches.joined import join_parts
from composable.batches.model_call import metric_outputs
from composable.core.evaluation_mode import evaluation_mode
from composable.core.event import Event
from composable.core.key import Key
from composable.core.logger import to_numbers
from composable.core.state import State
from composable.core.stateful import Count, SavedFields, saved
from composable.data.fetching import loader_length
from composable.data.prefetch import on_device
from composable.distributed.starting import in_phase
from composable.engines.engine import Engine
from composable.engines.forward import ForwardPass
from composable.engines.modules import bind_loss
from composable.engines.shares import other_form
from composable.losses.confirmation import LossOf
from composable.losses.loss import ModelLoss, OutputLoss, TargetLoss
from composable.losses.part_weights import SplitLossError, Weight
from composable.losses.watch import LossWatch
from composable.losses.weights import LossWeights
from composable.metrics import Averages, Evaluator
from composable.plan.dispatch import Dispatcher
from composable.trainer.evaluated_weights import at_averaged_weights
from composable.trainer.guards import warn_if_nonfinite
from composable.utils.reproducibility import seed_step

Take: TypeAlias = Callable[[list[tuple[int, Any]], Any], Any]
"""A use of the numbered outputs of a prediction, of at most one at a time."""

_LIMIT = 2**30
"""How many bytes of outputs and targets are kept for a loss of all batches."""


@attrs.define(eq=False)
class EvaluationLoop(SavedFields):
    """Evaluates models and predicts with them.

    The weights are the averages of schedule-free optimizers, and what algorithms make of them at
    `EVAL_START`, until the end of an evaluation; its memory and metrics are kept.

    Args:
        dispatcher: Fires the events.
        engine: Computes outputs and losses; each of its processes computes some of the batches.
        evaluators: The evaluators of the run.
        weights: The weights of batches in the loss of all of them.
    """

    dispatcher: Dispatcher
    engine: Engine
    evaluators: tuple[Evaluator, ...]
    weights: LossWeights
    last_run: dict[str, int] = saved(dict[str, Count], factory=dict)
    """The batch after which each evaluator of the run was last run."""
    _trusted: WeakSet[Evaluator] = attrs.field(init=False, factory=WeakSet)
    """The evaluators whose metrics are known to be means over examples."""

    def is_current(self, evaluator: Evaluator, state: State) -> bool:
        """Return whether an evaluator was run after the last batch."""
        return self.last_run.get(evaluator.label) == state.timestamp.batch

    def run(self, state: State, due: list[Evaluator]) -> State:
        """Run evaluators during training."""
        if not due:
            return state
        fire, inner = self.dispatcher.fire, self.dispatcher.fire(Event.EVAL_BEFORE_ALL, state)
        for evaluator in due:
            inner = self.evaluate(inner, evaluator)
            self.last_run[evaluator.label] = state.timestamp.batch
        inner = fire(Event.EVAL_AFTER_ALL, inner)
        return state.evolve(memory=inner.memory, metrics=inner.metrics)

    @in_phase("an evaluation")
    def evaluate(self, state: State, evaluator: Evaluator) -> State:
        """Evaluate a model, and return the state with the results.

        Raises:
            ValueError: The dataloader is empty.
            SplitLossError: The loss of several batches is not the weighted mean of their losses,
                nor can it be computed from the outputs for all of them.
        """
        with at_averaged_weights(state) as averaged:
            new = self._evaluate(averaged, evaluator)
        return state.evolve(memory=new.memory, metrics=new.metrics)

    def _evaluate(self, state: State, evaluator: Evaluator) -> State:
        fire, label = self.dispatcher.fire, evaluator.label
        begun = bind_loss(fire(Event.EVAL_START, state))
        if begun.model is not state.model:
            self.dispatcher.plan.report_undeclared_model()
        with evaluation_mode(begun.model, begun.loss_module):
            averages = self._averages(evaluator, begun)
            processes = averages.processes = self.engine.evaluating(averages)
            state, losses, counted = self._add_batches(begun, evaluator, averages)
            # The state of an object that saw nothing has no shape, and a loss may need all outputs:
            # then each computes all batches.
            alone = averages.has_objects and not any(counted)
            if processes.several and processes.any(alone or bool(losses.kept)):
                averages = self._averages(evaluator, begun)
                state, losses, counted = self._add_batches(begun, evaluator, averages)
            losses.finish(state)
        if not counted and averages.processes.is_main:
            raise ValueError(
                f"the dataloader of Evaluator {label!r} returned no batch; check the dataset, and "
                "that the loader can be iterated more than once."
            )
        (results,) = to_numbers([averages.compute()])
        if not averages.undecided:
            self._trusted.add(evaluator)
        warn_if_nonfinite(label, results, state.model)
        metrics = MappingProxyType({**state.metrics, label: results})
        state = fire(Event.EVAL_END, state.evolve(metrics=metrics))
        names = {f"metrics/{label}/{name}": value for name, value in results.items()}
        self.dispatcher.logger.log_metrics(names, state.timestamp)
        return state

    def _averages(self, evaluator: Evaluator, state: State) -> Averages:
        length = evaluator.batches or loader_length(evaluator.dataloader)
        averages = Averages(evaluator.metrics or {}, state.device, length)
        averages.trusted = evaluator in self._trusted
        return averages

    def _add_batches(
        self, state: State, evaluator: Evaluator, averages: Averages
    ) -> tuple[State, "EvaluatedLoss", list[bool]]:
        """Add the batches to the averages; return their loss, and whether each counts."""
        fire, forward = self.dispatcher.fire, self.engine.forward
        key, counted = state.key.fold("eval", evaluator.label), []
        losses = EvaluatedLoss(self.weights, forward.loss, averages)
        processes, spec = averages.processes, state.batch_spec
        numbered = self.engine.evaluation_batches(evaluator, key, processes, spec)
        for step, batch, counts in on_device(numbered, state.device):
            state = state.evolve(batch=batch, outputs=None)
            state = fire(Event.EVAL_BATCH_START, state)
            state = fire(Event.EVAL_BEFORE_FORWARD, state)
            seed_step(key, step)
            with losses.around_outputs(state):
                outputs, targets = _validate(state, forward)
            state = fire(Event.EVAL_AFTER_FORWARD, state.evolve(outputs=outputs))
            counted.append(counts)
            if counts:
                losses.add(state)
                _update(averages, state, targets, step)
            state = fire(Event.EVAL_BATCH_END, state)
        return state, losses, counted

    def predict(
        self, state: State, dataloader: Iterable[Any], take: Take, start: int = 0
    ) -> Generator[Any, None, State]:
        """Call the model on every batch, and return the state.

        Between two rounds, in each of which every process has one batch, the model has its mode.

        Args:
            state: The state.
            dataloader: The batches.
            take: Is called by all processes with the output of a round, and its number; or with
                none, and an earlier output or None. What it returns is yielded.
            start: The number of the first batch for which the model is called.
        """
        processes, key = self.engine.processes, state.key.fold("predict")
        with in_phase("a prediction"), at_averaged_weights(state) as averaged:
            new, output = self.dispatcher.fire(Event.PREDICT_START, averaged), None
            numbered = on_device(self.engine.prediction_batches(dataloader, key), state.device)
            while processes.any((one := next(numbered, None)) is not None):
                step, batch, counts = one or (-1, None, False)
                if step >= start:
                    new, output = self._predict(new, key, step, batch)
                yield take([(step, output)] if counts and step >= start else [], output)
            new = self.dispatcher.fire(Event.PREDICT_END, new)
        return state.evolve(memory=new.memory)

    def _predict(self, state: State, key: Key, step: int, batch: Any) -> tuple[State, Any]:
        """Return the state after a batch, and the outputs on the CPU."""
        fire = self.dispatcher.fire
        with evaluation_mode(state.model):
            state = fire(Event.PREDICT_BATCH_START, state.evolve(batch=batch, outputs=None))
            state = fire(Event.PREDICT_BEFORE_FORWARD, state)
            seed_step(key, step)
            state = state.evolve(outputs=self.engine.forward.outputs(state))
            state = fire(Event.PREDICT_AFTER_FORWARD, state)
            output = map_tensors(torch.Tensor.cpu, state.outputs)
            return fire(Event.PREDICT_BATCH_END, state), output


def _validate(state: State, forward: ForwardPass) -> tuple[Any, Callable[[State], Any]]:
    """Return the outputs for the batch, and a function that returns the targets of the metrics.

    A model that computes its own loss may define `validate(batch) -> (outputs, targets)`.
    """
    validate = getattr(state.model, "validate", None)
    if not isinstance(state.loss_fn, ModelLoss) or not callable(validate):
        return forward.outputs(state), lambda state: state.targets
    with state.precision.autocast(state.device):
        outputs, targets = validate(state.precision.cast(state.batch))
    return outputs, lambda _: targets


def _update(averages: Averages, state: State, targets: Callable[[State], Any], number: int) -> None:
    if averages.names:
        own_loss = isinstance(state.loss_fn, OutputLoss)
        outputs = metric_outputs(state.outputs, own_loss=own_loss)
        averages.update(outputs, targets(state), state.batch_spec.count(state.batch), number)


# --- the loss ---


class EvaluatedLoss:
    """The loss of all batches of an evaluation.

    Where the weights of the batches are known it is their weighted mean, or their sum. Else the
    loss function is called once, on the outputs for all batches, which are kept on the CPU until
    then.

    Args:
        weights: The weights of the batches.
        loss_of: Computes the loss of a state and outputs.
        averages: The averages of the evaluation, to which the loss is added.
    """

    def __init__(self, weights: LossWeights, loss_of: LossOf, averages: Averages) -> None:
        self.weights, self.loss_of, self.averages = weights, loss_of, averages
        # Of several processes, each may have a part of a single batch.
        self.batches = None if averages.processes.several else averages.batches
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
        weight = self.weights.weigh(
            state, state.outputs, loss, self.watch, self.loss_of, state.batch
        )
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
        rest = state.targets if isinstance(state.loss_fn, TargetLoss) else state.batch
        pair = state.outputs, rest
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
        loss_fn: Any = state.loss_fn
        if isinstance(loss_fn, TargetLoss):
            loss_fn = loss_fn.function
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


def _has_rows(state: State) -> bool:
    """Return whether a loss is computed from outputs with a row for each example."""
    if isinstance(state.loss_fn, ModelLoss):
        listed = state.batch_spec.layout_of(state.batch) != "tensors"
        return not listed and all(tensor.ndim for tensor in tensors_of(state.outputs))
    return isinstance(state.loss_fn, TargetLoss)
