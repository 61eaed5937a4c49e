"""What an external loop refuses: requests, events that it does not fire, models and processes."""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import RandomSampler, SequentialSampler

from composable._support.surgery import WRAPPERS
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import Timestamp
from composable.distributed.processes import Processes
from composable.optim.building import check_optimizers
from composable.plan.plan import Plan

_OF_THE_BATCH = (
    Event.AFTER_DATALOADER,
    Event.BATCH_START,
    Event.BEFORE_TRAIN_BATCH,
    Event.BEFORE_FORWARD,
)
_OF_THE_LOSS = (
    Event.AFTER_FORWARD,
    Event.BEFORE_LOSS,
    Event.AFTER_LOSS,
    Event.BEFORE_BACKWARD,
)
_BEFORE_TRAINING = {Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD, Event.FIT_START}
_OF_EVALUATED_BATCHES = {
    Event.EVAL_BATCH_START,
    Event.EVAL_BEFORE_FORWARD,
    Event.EVAL_AFTER_FORWARD,
    Event.PREDICT_BATCH_START,
    Event.PREDICT_BEFORE_FORWARD,
    Event.PREDICT_AFTER_FORWARD,
}
_REQUESTS = {
    "second_pass": "a second pass over the batch, at other weights",
    "whole_loss": "a loss of the outputs for all parts of a batch",
    "lr_override": "a step with other learning rates",
}


class UnsupportedRequestError(RuntimeError):
    """An algorithm requests something that only the `Trainer` of this library can do."""


# --- requests ---


def refuse_requests(plan: Plan) -> None:
    """Raise if an algorithm declares a request or an event that external loops don't support."""
    for algorithm in plan.algorithms:
        if algorithm.events and algorithm.events <= _OF_EVALUATED_BATCHES:
            raise UnsupportedRequestError(
                f"{algorithm.name} requests a change of the batches of evaluations, which an "
                "external loop does not support; use the Trainer, or call its function in the "
                "evaluation. See docs/integrations.md for what works where."
            )
        for request in _REQUESTS.keys() & set(algorithm.writes):
            refuse_request(request, algorithm.name)


def refuse_request(request: str, who: str = "an algorithm") -> None:
    """Raise an UnsupportedRequestError for a field of the state."""
    raise UnsupportedRequestError(
        f"{who} requests {_REQUESTS[request]} (state.{request}), which an external loop does not "
        "support; use the Trainer, or write it into the loop with the function of "
        "composable.functional. See docs/integrations.md for what works where."
    )


# --- events that a loop does not fire ---


def refuse_metrics(measures: Any, why: str) -> None:
    """Raise if metrics of training are given, and would not be measured or saved."""
    if measures is not None:
        text = "train_metrics= of adapt_loop measures the outputs that t.loss(outputs) gets, and "
        raise RuntimeError(f"{text}{why}.")


def refuse_without_batch(plan: Plan) -> None:
    """Raise if an algorithm needs `t.start_batch`, in a loop that does not call it."""
    refuse_unfired(plan, _OF_THE_BATCH, "a step", "t.start_batch(batch)")
    refuse_unfired(plan, (Event.BATCH_END,), "a step", "t.start_batch(batch)", reads="batch")


def refuse_without_loss(plan: Plan) -> None:
    """Raise if an algorithm needs `t.loss`, in a loop that does not call it."""
    refuse_unfired(plan, _OF_THE_LOSS, "a step", "t.loss(outputs)")
    refuse_unfired(plan, (Event.INIT,), "a step", "t.loss(outputs)", writes="loss_fn")


def names_acting_in_training(plan: Plan) -> str:
    """List the algorithms that act after the start of training, other than in evaluations."""
    events = [event for event in Event if not event.name.startswith(("EVAL", "PREDICT"))]
    acting = [plan.transforms(event) for event in events if event not in _BEFORE_TRAINING]
    return ", ".join(dict.fromkeys(algorithm.name for some in acting for algorithm in some))


def refuse_unfired(
    plan: Plan,
    events: Iterable[Event],
    what: str,
    call: str,
    *,
    reads: str | None = None,
    writes: str | None = None,
) -> None:
    """Raise if an algorithm acts, reads or writes at an event that a loop does not fire."""
    for event in events:
        for algorithm in plan.transforms(event):
            if writes is not None and writes not in algorithm.writes:
                continue
            if reads is not None and reads not in algorithm.reads:
                continue
            raise RuntimeError(
                f"{algorithm.name} acts at {event.name}, and this loop made {what} without "
                f"{call}; call it, use the mixin of composable.integrations, or drop "
                f"{algorithm.name}. See docs/integrations.md for what works where."
            )


# --- models and optimizers ---


def check_bare(model: nn.Module) -> nn.Module:
    """Return the model, unless it is wrapped for distributed training."""
    for kind in type(model).__mro__:
        if kind.__name__ in WRAPPERS:
            raise ValueError(
                f"model is wrapped in {kind.__name__}, which is bound to the parameters of its "
                "construction; pass the bare model to adapt_loop, and wrap t.model."
            )
    return model


def check_optimizer(optimizer: Any, model: nn.Module) -> Optimizer:
    """Return the optimizer, without a wrapper such as Accelerate's, which has no hooks."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizer={optimizer!r} must be a torch.optim.Optimizer of the model's parameters."
        )
    check_optimizers([optimizer], model)
    return optimizer


def check_same_place(now: Timestamp, other: Timestamp) -> None:
    """Raise a ValueError if two adapters on one loader are at different batches of an epoch."""
    if now.batch_in_epoch != other.batch_in_epoch:
        raise ValueError(
            f"others= has an adapter at batch {other.batch_in_epoch} of its epoch, and t is at "
            f"batch {now.batch_in_epoch}; load the t.state_dict() of both from one checkpoint."
        )


def check_divided(loader: Any) -> None:
    """Raise a ValueError if each of several processes would get all batches of a loader."""
    whole = type(getattr(loader, "sampler", None)) in (RandomSampler, SequentialSampler)
    if whole and Processes.current().several:
        raise ValueError(
            "the DataLoader in t.seeded(loader) has the same batches in each process, because "
            "Lightning does not divide it: pass it sampler=DistributedSampler(dataset, seed=...)."
        )


def check_unchanged(given: Any, batch: Any, plan: Plan) -> None:
    """Raise if an algorithm changes a batch that another adapter returns."""
    if batch is not given:
        raise RuntimeError(
            f"an adapter in others= ({names_acting_in_training(plan)}) changes the batch, and the "
            "loop gets the batch of t; pass what changes batches to the adapter whose epoch is "
            "iterated."
        )


def modules_only_in(model: nn.Module, other: nn.Module) -> list[nn.Module]:
    """List the modules of a model that another model does not have."""
    others = {id(module) for module in other.modules()}
    return [module for module in model.modules() if id(module) not in others]


def refuse_calls(modules: Iterable[nn.Module], until: ExitStack) -> None:
    """Raise if one of the modules is called with gradients, until a stack is closed."""
    for module in modules:
        until.callback(module.register_forward_pre_hook(_refuse_replaced).remove)


def _refuse_replaced(module: nn.Module, inputs: Any) -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"the loop calls {type(module).__name__} of the model that was passed to adapt_loop, "
            "which the algorithms have replaced; train t.model instead."
        )


# --- classes and processes ---


def check_mixin(kind: type, mixin: type, base: type, method: str) -> None:
    """Raise a TypeError unless the methods of a mixin replace methods of a trainer, and no others.

    Args:
        kind: A class with the mixin among its bases.
        mixin: The mixin.
        base: The class of the other library whose methods the mixin replaces.
        method: The method in which the mixin computes the loss.
    """
    order = kind.__mro__
    if base not in order:
        return
    if order.index(mixin) > order.index(base):
        raise TypeError(
            f"{kind.__name__} must have {mixin.__name__} before {base.__name__} among its bases, "
            f"because otherwise the methods of {base.__name__} override the mixin's: "
            f"class {kind.__name__}({mixin.__name__}, ...)."
        )
    owners = [one for one in order if method in vars(one) and one not in base.__mro__]
    if owners[0] is mixin and len(owners) > 1:
        raise TypeError(
            f"{kind.__name__}.{method} must be one method, but {mixin.__name__}.{method} hides "
            f"{owners[1].__name__}.{method}; define {method} in {kind.__name__}, with the calls "
            f"t.start_batch(batch) and t.loss(outputs), or write `{method} = "
            f"{mixin.__name__}.{method}` there to use the mixin's."
        )


def check_agreement(state: State) -> None:
    """Check that all processes have one seed, and are at one batch.

    Raises:
        ValueError: They have not. Every process raises it.
    """
    processes = Processes.current()
    if not processes.several:
        return
    seed, batch = state.key.seed, state.timestamp.batch
    numbers = torch.tensor([seed >> 32, seed & (2**32 - 1), batch])
    extremes = torch.cat([numbers, -numbers]).to(state.device)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
    largest, smallest = extremes.cpu().chunk(2)
    if not torch.equal(largest, -smallest):
        raise ValueError(
            f"the {processes.size} processes have different seeds, or are at different batches "
            f"(rank {processes.rank}: seed={seed}, batch {batch}), so they would change the model "
            "and choose algorithms differently; pass the same seed= to adapt_loop in every "
            "process, and load the same t.state_dict()."
        )
