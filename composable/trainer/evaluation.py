"""Evaluation and prediction."""

from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any

import attrs
import torch

from composable._support.tree import map_tensors
from composable._support.warn import warn_user
from composable.batches.model_call import metric_outputs
from composable.core.evaluation_mode import evaluation_mode
from composable.core.event import Event
from composable.core.logger import to_numbers
from composable.core.state import State
from composable.core.stateful import Count, SavedFields, saved
from composable.data.prefetch import on_device
from composable.distributed.outputs import gather_outputs
from composable.engines.engine import Engine
from composable.engines.forward import ForwardPass
from composable.engines.modules import bind_loss
from composable.losses.loss import ModelLoss, OutputLoss
from composable.losses.weights import LossWeights
from composable.metrics import Averages, Evaluator
from composable.plan.dispatch import Dispatcher
from composable.plan.plan import Plan
from composable.trainer.evaluated_loss import EvaluatedLoss
from composable.trainer.evaluated_weights import at_averaged_weights
from composable.trainer.guards import warn_if_nonfinite
from composable.utils.reproducibility import seed_step

__all__ = ["EvaluationLoop"]


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

    def evaluate(self, state: State, evaluator: Evaluator) -> State:
        """Evaluate a model, and return the state with the results.

        Raises:
            ValueError: The dataloader is empty.
            SplitLossError: The loss of several batches is neither that of each, weighted, nor can
                it be computed from the outputs for all of them.
        """
        with at_averaged_weights(state) as averaged:
            new = self._evaluate(averaged, evaluator)
        return state.evolve(memory=new.memory, metrics=new.metrics)

    def _evaluate(self, state: State, evaluator: Evaluator) -> State:
        fire, label = self.dispatcher.fire, evaluator.label
        begun = bind_loss(fire(Event.EVAL_START, state))
        if begun.model is not state.model:
            report_undeclared(self.dispatcher.plan)
        with evaluation_mode(begun.model, begun.loss_module):
            averages = Averages(evaluator.metrics or {}, begun.device)
            processes = averages.processes = self.engine.evaluating(averages)
            state, losses, counted = self._add_batches(begun, evaluator, averages)
            # The state of an object that saw nothing has no shape, and a loss may need all outputs:
            # then each computes all batches.
            alone = averages.has_objects and not any(counted)
            if processes.several and processes.any(alone or bool(losses.kept)):
                averages = Averages(evaluator.metrics or {}, begun.device)
                state, losses, counted = self._add_batches(begun, evaluator, averages)
            losses.finish(state)
        if not counted and averages.processes.is_main:
            raise ValueError(
                f"the dataloader of Evaluator {label!r} returned no batch; check the dataset, and "
                "that the loader can be iterated more than once."
            )
        (results,) = to_numbers([averages.compute()])
        warn_if_nonfinite(label, results, state.model)
        metrics = MappingProxyType({**state.metrics, label: results})
        state = fire(Event.EVAL_END, state.evolve(metrics=metrics))
        names = {f"metrics/{label}/{name}": value for name, value in results.items()}
        self.dispatcher.logger.log_metrics(names, state.timestamp)
        return state

    def _add_batches(
        self, state: State, evaluator: Evaluator, averages: Averages
    ) -> tuple[State, EvaluatedLoss, list[bool]]:
        """Add the batches to the averages; return their loss, and whether each counts."""
        fire, forward, loader = self.dispatcher.fire, self.engine.forward, evaluator.dataloader
        key, counted = state.key.fold("eval", evaluator.label), []
        losses = EvaluatedLoss(self.weights, forward.loss, averages, loader)
        numbered = self.engine.evaluation_batches(loader, key, averages.processes, state.batch_spec)
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
                _update(averages, state, targets)
            state = fire(Event.EVAL_BATCH_END, state)
        return state, losses, counted

    def predict(self, state: State, dataloader: Iterable[Any]) -> tuple[State, list[Any]]:
        """Call the model on every batch, and return the state and the outputs."""
        with at_averaged_weights(state) as averaged:
            new, outputs = self._predict(averaged, dataloader)
        return state.evolve(memory=new.memory), outputs

    def _predict(self, state: State, dataloader: Iterable[Any]) -> tuple[State, list[Any]]:
        fire, forward = self.dispatcher.fire, self.engine.forward
        state = fire(Event.PREDICT_START, state)
        key = state.key.fold("predict")
        outputs: list[tuple[int, Any]] = []
        with evaluation_mode(state.model):
            numbered = self.engine.prediction_batches(dataloader, key)
            output: Any = None
            for step, batch, counts in on_device(numbered, state.device):
                state = state.evolve(batch=batch, outputs=None)
                state = fire(Event.PREDICT_BATCH_START, state)
                state = fire(Event.PREDICT_BEFORE_FORWARD, state)
                seed_step(key, step)
                state = state.evolve(outputs=forward.outputs(state))
                state = fire(Event.PREDICT_AFTER_FORWARD, state)
                output = map_tensors(torch.Tensor.cpu, state.outputs)
                if counts:
                    outputs.append((step, output))
                state = fire(Event.PREDICT_BATCH_END, state)
        state = fire(Event.PREDICT_END, state)
        return state, gather_outputs(outputs, output, self.engine.processes)


def report_undeclared(plan: Plan) -> None:
    """Warn if only plain functions can have replaced the model at the start of an evaluation."""
    found = plan.transforms(Event.EVAL_START)
    functions = [getattr(algorithm, "function", None) for algorithm in found]
    if not any("model" in getattr(one, "writes", ()) for one in (*found, *functions)):
        names = ", ".join(sorted({algorithm.name for algorithm in found}))
        warn_user(
            f"{names} replaced the model at EVAL_START and does not declare it, so the model has "
            "other weights after fit and in checkpoints than those that are evaluated; write an "
            "Algorithm with writes = {'model'}.",
            UserWarning,
        )


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


def _update(averages: Averages, state: State, targets: Callable[[State], Any]) -> None:
    if averages.names:
        own_loss = isinstance(state.loss_fn, OutputLoss)
        outputs = metric_outputs(state.outputs, own_loss=own_loss)
        averages.update(outputs, targets(state), state.batch_spec.count(state.batch))
