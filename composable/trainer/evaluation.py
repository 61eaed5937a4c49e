"""Evaluation and prediction."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from composable.core.batch import count_examples, map_tensors, to_device
from composable.core.event import Event
from composable.core.logger import to_numbers
from composable.core.state import State
from composable.data.order import seeded_batches
from composable.metrics import Averages, Evaluator
from composable.plan.dispatch import Dispatcher
from composable.trainer.parameters import bind_loss
from composable.utils.reproducibility import seed_step

__all__ = ["evaluate", "evaluation_mode", "predict"]


def evaluate(
    dispatcher: Dispatcher, state: State, evaluator: Evaluator, loss_weight: Callable[[Any], Any]
) -> State:
    """Evaluate a model, and return the state with the results.

    Args:
        dispatcher: Fires the events.
        state: The state of the run. Changes that algorithms make to it at `EVAL_START`, such as
            averaged weights, last until `EVAL_END`; memory and metrics are kept.
        evaluator: The data and the metrics.
        loss_weight: Counts what the loss of a batch is the mean of.

    Raises:
        ValueError: The dataloader is empty.
    """
    fire, outer = dispatcher.fire, state
    state = bind_loss(fire(Event.EVAL_START, state))
    key = state.key.fold("eval", evaluator.label)
    averages = Averages(evaluator.metrics or {})
    step = -1
    with evaluation_mode(state.model, state.loss_module):
        for step, batch in enumerate(seeded_batches(evaluator.dataloader, key, epoch=0)):
            state = state.evolve(batch=to_device(batch, state.device), outputs=None)
            state = fire(Event.EVAL_BATCH_START, state)
            state = fire(Event.EVAL_BEFORE_FORWARD, state)
            seed_step(key, step)
            state = fire(Event.EVAL_AFTER_FORWARD, state.evolve(outputs=state.forward()))
            _update(averages, state, loss_weight)
            state = fire(Event.EVAL_BATCH_END, state)
    if step < 0:
        raise ValueError(
            f"the dataloader of Evaluator {evaluator.label!r} returned no batch; check the "
            "dataset, and that the loader can be iterated more than once."
        )
    (results,) = to_numbers([averages.compute()])
    metrics = MappingProxyType({**state.metrics, evaluator.label: results})
    state = fire(Event.EVAL_END, state.evolve(metrics=metrics))
    names = {f"metrics/{evaluator.label}/{name}": value for name, value in results.items()}
    dispatcher.logger.log_metrics(names, state.timestamp)
    return outer.evolve(memory=state.memory, metrics=state.metrics)


def _update(averages: Averages, state: State, loss_weight: Callable[[Any], Any]) -> None:
    if state.loss_fn is not None:
        averages.add("loss", state.loss_fn(state.outputs, state.batch), loss_weight(state.batch))
    if averages.names:
        inputs = state.batch_spec.inputs(state.batch)
        averages.update(state.outputs, state.targets, count_examples(inputs))


def predict(
    dispatcher: Dispatcher, state: State, dataloader: Iterable[Any]
) -> tuple[State, list[Any]]:
    """Call the model on every batch, and return the state and the outputs."""
    fire, outer = dispatcher.fire, state
    outputs = []
    state = fire(Event.PREDICT_START, state)
    key = state.key.fold("predict")
    with evaluation_mode(state.model):
        for step, batch in enumerate(seeded_batches(dataloader, key, epoch=0)):
            state = state.evolve(batch=to_device(batch, state.device), outputs=None)
            state = fire(Event.PREDICT_BATCH_START, state)
            state = fire(Event.PREDICT_BEFORE_FORWARD, state)
            seed_step(key, step)
            state = fire(Event.PREDICT_AFTER_FORWARD, state.evolve(outputs=state.forward()))
            outputs.append(map_tensors(torch.Tensor.cpu, state.outputs))
            state = fire(Event.PREDICT_BATCH_END, state)
    state = fire(Event.PREDICT_END, state)
    return outer.evolve(memory=state.memory), outputs


@contextmanager
def evaluation_mode(model: nn.Module, loss: nn.Module | None = None) -> Iterator[None]:
    """Switch a model, and a loss, to evaluation mode without gradients; restore each mode."""
    roots = [model] if loss is None else [model, loss]
    modes = [(module, module.training) for root in roots for module in root.modules()]
    for root in roots:
        root.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
