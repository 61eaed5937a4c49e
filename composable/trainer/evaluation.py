"""Evaluation and prediction."""

from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any

import torch

from composable.core._warnings import warn_user
from composable.core.batch import map_tensors
from composable.core.evaluation_mode import evaluation_mode
from composable.core.event import Event
from composable.core.logger import to_numbers
from composable.core.loss import ModelLoss, OutputLoss
from composable.core.loss_weights import LossWeights
from composable.core.model_call import metric_outputs
from composable.core.state import State
from composable.data.prefetch import on_device
from composable.distributed.outputs import gather_outputs
from composable.distributed.processes import Processes
from composable.engines.engine import Engine
from composable.engines.forward import ForwardPass
from composable.engines.modules import bind_loss
from composable.metrics import Averages, Evaluator
from composable.plan.dispatch import Dispatcher
from composable.plan.plan import Plan
from composable.trainer.evaluated_loss import EvaluatedLoss
from composable.trainer.evaluated_weights import at_averaged_weights
from composable.trainer.guards import warn_if_nonfinite
from composable.utils.reproducibility import seed_step

__all__ = ["evaluate", "predict"]


def evaluate(
    dispatcher: Dispatcher,
    engine: Engine,
    state: State,
    evaluator: Evaluator,
    weights: LossWeights,
) -> State:
    """Evaluate a model, and return the state with the results.

    Args:
        dispatcher: Fires the events.
        engine: Computes outputs and losses; each of its processes evaluates some of the batches.
        state: The state of the run. Its weights are the averages of schedule-free optimizers until
            `EVAL_END`, and so long last the changes that algorithms make to it at `EVAL_START`,
            such as other averages; memory and metrics are kept.
        evaluator: The data and the metrics.
        weights: The weights of batches in the loss of all of them.

    Raises:
        ValueError: The dataloader is empty.
        SplitLossError: The loss of several batches is neither that of each, weighted, nor can it be
            computed from the outputs for all of them.
    """
    with at_averaged_weights(state) as averaged:
        new = _evaluate(dispatcher, engine, averaged, evaluator, weights)
    return state.evolve(memory=new.memory, metrics=new.metrics)


def _evaluate(
    dispatcher: Dispatcher,
    engine: Engine,
    state: State,
    evaluator: Evaluator,
    weights: LossWeights,
) -> State:
    fire, forward = dispatcher.fire, engine.forward
    begun = bind_loss(fire(Event.EVAL_START, state))
    if begun.model is not state.model:
        report_undeclared(dispatcher.plan)
    state = begun
    key = state.key.fold("eval", evaluator.label)
    averages = Averages(evaluator.metrics or {}, state.device)
    processes = averages.processes = engine.evaluating(averages)

    def batches(state: State) -> tuple[State, bool, EvaluatedLoss, bool]:
        """Evaluate; return whether there was no batch, the loss, and whether one counted."""
        empty, counted = True, False
        losses = EvaluatedLoss(weights, forward.loss, averages, evaluator.dataloader)
        numbered = engine.evaluation_batches(
            evaluator.dataloader, key, averages.processes, state.batch_spec
        )
        for step, batch, counts in on_device(numbered, state.device):
            empty = False
            state = state.evolve(batch=batch, outputs=None)
            state = fire(Event.EVAL_BATCH_START, state)
            state = fire(Event.EVAL_BEFORE_FORWARD, state)
            seed_step(key, step)
            with losses.around_outputs(state):
                outputs, targets = _validate(state, forward)
            state = fire(Event.EVAL_AFTER_FORWARD, state.evolve(outputs=outputs))
            if counts:
                counted = True
                losses.add(state)
                _update(averages, state, targets)
            state = fire(Event.EVAL_BATCH_END, state)
        return state, empty, losses, counted

    with evaluation_mode(state.model, state.loss_module):
        state, empty, losses, counted = batches(state)
        # The state of an object that saw nothing has no shape, and a loss may need all outputs:
        # then each computes all batches.
        alone = averages.has_objects and not counted
        if processes.several and processes.any(alone or bool(losses.kept)):
            averages, processes = Averages(evaluator.metrics or {}, state.device), Processes()
            state, empty, losses, _ = batches(begun)
        losses.finish(state)
    if empty and processes.is_main:
        raise ValueError(
            f"the dataloader of Evaluator {evaluator.label!r} returned no batch; check the "
            "dataset, and that the loader can be iterated more than once."
        )
    (results,) = to_numbers([averages.compute()])
    warn_if_nonfinite(evaluator.label, results, state.model)
    metrics = MappingProxyType({**state.metrics, evaluator.label: results})
    state = fire(Event.EVAL_END, state.evolve(metrics=metrics))
    names = {f"metrics/{evaluator.label}/{name}": value for name, value in results.items()}
    dispatcher.logger.log_metrics(names, state.timestamp)
    return state


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


def predict(
    dispatcher: Dispatcher, engine: Engine, state: State, dataloader: Iterable[Any]
) -> tuple[State, list[Any]]:
    """Call the model on every batch, and return the state and the outputs.

    Args:
        dispatcher: Fires the events.
        engine: Computes outputs; each of its processes calls the model on some of the batches.
        state: The state of the run.
        dataloader: The batches.
    """
    with at_averaged_weights(state) as averaged:
        new, outputs = _predict(dispatcher, engine, averaged, dataloader)
    return state.evolve(memory=new.memory), outputs


def _predict(
    dispatcher: Dispatcher, engine: Engine, state: State, dataloader: Iterable[Any]
) -> tuple[State, list[Any]]:
    fire, forward = dispatcher.fire, engine.forward
    state = fire(Event.PREDICT_START, state)
    key = state.key.fold("predict")
    outputs: list[tuple[int, Any]] = []
    with evaluation_mode(state.model):
        numbered = engine.prediction_batches(dataloader, key)
        output: Any = None
        for step, batch, counts in on_device(numbered, state.device):
            state = state.evolve(batch=batch, outputs=None)
            state = fire(Event.PREDICT_BATCH_START, state)
            state = fire(Event.PREDICT_BEFORE_FORWARD, state)
            seed_step(key, step)
            state = fire(Event.PREDICT_AFTER_FORWARD, state.evolve(outputs=forward.outputs(state)))
            output = map_tensors(torch.Tensor.cpu, state.outputs)
            if counts:
                outputs.append((step, output))
            state = fire(Event.PREDICT_BATCH_END, state)
    state = fire(Event.PREDICT_END, state)
    return state, gather_outputs(outputs, output, engine.processes)
