"""Filters of batches by a small proxy of the model, as an algorithm."""

import copy
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
import torch
import torch.distributed as dist
from attrs.validators import optional
from torch import Tensor, nn
from torch.optim import Optimizer

from composable._support.checks import check_entries, check_is_callable, check_module
from composable._support.devices import send
from composable.algorithms._scoring import example_losses
from composable.algorithms._validators import in_range, integer_at_least, passes
from composable.batches.batch import describe_batch
from composable.batches.precision import widest_float
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.data.grouping import ShardedBatch, parts_of, shards_in
from composable.distributed.processes import Processes
from composable.distributed.shards import TreeSum, all_reduce_exactly
from composable.functional import select_highest
from composable.losses.loss import OutputLoss
from composable.optim.building import build_optimizers
from composable.resume.optimizers import capture_optimizer, parameter_names, restore_optimizer

_KEEP = 0.5


def _check_optimizer(_: Any, attribute: Any, value: Any) -> None:
    if isinstance(value, Optimizer) or not callable(value):
        raise TypeError(
            f"{attribute.name}={value!r} must be a function of the parameters of the proxy, such "
            "as functools.partial(torch.optim.SGD, lr=0.1)."
        )


def _check_proxy(_: Any, attribute: Any, value: Any) -> None:
    check_module(attribute.name, value)
    if not any(parameter.requires_grad for parameter in value.parameters()):
        raise ValueError(
            f"{attribute.name} must have a parameter that requires gradients, for its optimizer; "
            "for a proxy that learns nothing more, pass an optimizer with lr=0."
        )


@attrs.frozen(repr=False)
class ProxyFilter(Algorithm):
    """Train on the examples of each batch whose loss under a small proxy is the highest.

    The proxy is a separate model, with a separate optimizer. It scores the whole batch in one
    forward pass, before any augmentation, and learns from the examples that are kept in every
    `interval`-th batch, when the model has stepped: a batch that is skipped teaches nothing. The
    given module is not changed: its weights and the state of its optimizer are in the memory of the
    run. It is called in the mode it is in, training or evaluation, and its buffers stay as they
    are. If its weights are not finite at the end of an epoch, an error is raised. With several
    processes or shards, each shard of a batch is filtered by itself, and all processes have the
    same proxy.

    Args:
        proxy: The proxy, whose outputs `loss_fn` takes.
        optimizer: A function of the parameters of the proxy that returns its optimizer, such as
            `functools.partial(torch.optim.SGD, lr=0.1)`.
        keep: Share of each batch to keep, in (0, 1]. Default: 0.5, unless `rule` is given.
        rule: `rule(losses, generator=generator)` returns the indices to keep, distinct and in any
            order, an alternative to `keep`:
            `functools.partial(composable.functional.select_using_loss, keep=0.5)` draws them.
            Default: `composable.functional.select_highest`.
        interval: The proxy learns from every `interval`-th batch.
        schedule: A function of time that scales the learning rate of the proxy, such as a schedule
            of `composable.optim`. Default: it is constant.
    """

    proxy: nn.Module = attrs.field(validator=_check_proxy, eq=repr)
    optimizer: Callable[[Any], Optimizer] = attrs.field(validator=_check_optimizer, eq=repr)
    keep: float | None = attrs.field(default=None, validator=optional(in_range(0, 1, ends="(]")))
    rule: Callable[..., Tensor] | None = attrs.field(
        default=None, validator=optional(passes(check_is_callable)), eq=repr
    )
    interval: int = attrs.field(default=4, validator=integer_at_least(1))
    schedule: Callable[[State], float] | None = attrs.field(
        default=None, validator=optional(passes(check_is_callable)), eq=repr
    )

    events = frozenset(
        {
            Event.AFTER_DATALOADER,
            Event.AFTER_OPTIMIZER_STEP,
            Event.EPOCH_END,
            Event.FIT_END,
        }
    )
    stage = Stage.SELECT
    writes = frozenset({"batch", "memory"})
    incompatible_with = MappingProxyType(
        dict.fromkeys(("SelectiveBackprop", "InfoBatch"), "both select examples by their losses")
    )

    def __attrs_post_init__(self) -> None:
        if self.keep is not None and self.rule is not None:
            raise ValueError(
                f"keep={self.keep!r} and rule={self.rule!r} must not both be given: pass one, such "
                "as rule=functools.partial(composable.functional.select_using_loss, keep=0.5)."
            )

    @property
    def reads(self) -> frozenset[str]:
        """The fields that it reads: the duration of the run for its schedule only."""
        clock = {"max_duration", "epoch_length"} if self.schedule is not None else set()
        return frozenset(
            {"batch", "model", "loss_fn", "key", "timestamp", "memory", "device"} | clock
        )

    def match(self, event: Event, state: State) -> bool:
        """Match at each batch, and at its end if the proxy learns from it."""
        if event is Event.AFTER_DATALOADER:
            return True
        memory = state.memory.get(self.name)
        if memory is None:
            return False
        return event is not Event.AFTER_OPTIMIZER_STEP or bool(memory["pending"])

    def apply(self, event: Event, state: State) -> State:
        """Filter a batch, let the proxy learn from it, or check its weights."""
        if event is Event.AFTER_DATALOADER:
            return self._filtered(state)
        memory = dict(state.memory[self.name])
        if event is Event.AFTER_OPTIMIZER_STEP:
            memory |= {**self._learned(state, memory), "pending": ()}
            return state.remember(self.name, memory)
        self._check_is_finite(memory["weights"])  # here, as the host waits for the device
        return state

    # --- filtering ---

    def _filtered(self, state: State) -> State:
        memory = dict(state.memory.get(self.name) or self._first_memory(state))
        size, weights = state.batch_spec.count(state.batch), memory["weights"]
        learns = state.timestamp.batch % self.interval == 0
        trained = [name for name, one in self.proxy.named_parameters() if one.requires_grad]
        leaves = {name: weights[name].detach().requires_grad_(learns) for name in trained}
        with torch.set_grad_enabled(learns):
            losses = self._losses(state, {**weights, **self._buffers(weights), **leaves}, size)
            chosen = self._chosen(state, losses.detach())
            loss = losses[chosen].sum()
        if learns:
            gradients = torch.autograd.grad(
                loss, [*leaves.values()], allow_unused=True, materialize_grads=True
            )
            step = state.timestamp.batch
            known = (one for one in memory["pending"] if one[0] == step)  # none of a skipped batch
            memory["pending"] = (*known, (step, list(gradients), len(chosen)))
        batch = state.batch_spec.select(state.batch, chosen)
        return state.evolve(batch=batch).remember(self.name, memory)

    def _first_memory(self, state: State) -> dict[str, Any]:
        """Return the memory before the first batch, with the weights of rank 0."""
        self._check_is_separate(state)
        weights = {
            name: state.precision.cast(tensor.detach()).to(state.device, copy=True).contiguous()
            for name, tensor in (*self.proxy.named_parameters(), *self.proxy.named_buffers())
        }
        if Processes.current().several:
            for weight in weights.values():
                dist.broadcast(weight, 0)
        return {
            "weights": weights,
            "optimizers": [],
            "pending": (),
        }

    def _check_is_separate(self, state: State) -> None:
        trained = {id(part) for module in state.modules.values() for part in _parts(module)}
        if any(id(part) in trained for part in _parts(self.proxy)):
            raise ValueError(
                f"the proxy of {self.name} is the trained model, or shares a part with it, and "
                "is trained separately: pass a separate, smaller module, or use SelectiveBackprop, "
                "which scores examples by the model."
            )

    def _buffers(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: weights[name].clone() for name, _ in self.proxy.named_buffers()}

    def _losses(self, state: State, tensors: Mapping[str, Tensor], size: int) -> Tensor:
        try:
            losses = example_losses(state, self.proxy, tensors, self.name)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, torch.OutOfMemoryError) or isinstance(state.loss_fn, OutputLoss):
                raise
            raise ValueError(
                f"the proxy of {self.name}, called as the model is, or loss_fn with its outputs "
                f"raised {type(error).__name__}: {error}\nBuild a proxy that takes the batch, "
                f"{describe_batch(state.batch)}, and has the outputs of the model, such as one for "
                "each class."
            ) from error
        if losses.shape != (size,):
            raise ValueError(
                f"the outputs of the proxy of {self.name} have losses of shape "
                f"{tuple(losses.shape)}, and the batch has {size} examples: build a proxy with an "
                "output for each example, as the model has."
            )
        return losses

    def _chosen(self, state: State, losses: Tensor) -> Tensor:
        if self.rule is None:
            return select_highest.unchecked(losses, keep=_KEEP if self.keep is None else self.keep)
        chosen = self.rule(losses, generator=state.generator(self.name))
        if not isinstance(chosen, Tensor) or chosen.dtype != torch.int64 or chosen.ndim != 1:
            raise TypeError(
                f"rule returned {chosen!r:.200} and must return the indices to keep, an int64 "
                "tensor [kept]. A rule that also weights losses, such as "
                "composable.data.InfoBatch's, is a separate algorithm."
            )
        if not len(chosen):
            raise ValueError(
                f"rule kept none of the {len(losses)} examples of batch {state.timestamp.batch}: "
                "let it return at least one index, as select_highest does."
            )
        chosen = send(chosen, losses.device).sort().values
        if self.name not in state.memory:  # in the first batch, as the host waits for the device
            self._check_is_mask(chosen, len(losses))
        return chosen

    def _check_is_mask(self, chosen: Tensor, size: int) -> None:
        if int(chosen[0]) < 0 or int(chosen[-1]) >= size or not chosen.diff().all():
            raise ValueError(
                f"rule returned the indices {chosen.tolist()!r:.200} and must return distinct ones "
                f"from 0 to {size - 1}: return draw.unique(), say."
            )

    # --- learning ---

    def _learned(self, state: State, memory: Mapping[str, Any]) -> dict[str, Any]:
        """Step the optimizer of the proxy by the mean loss of the examples that were kept."""
        weights = memory["weights"]
        model = self._module(weights)
        optimizers = build_optimizers(self.optimizer, model)
        names = parameter_names(model)
        rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
        for optimizer, saved in zip(optimizers, copy.deepcopy(memory["optimizers"]), strict=False):
            restore_optimizer(optimizer, _numbered(saved, int), names)
        trained = [one for one in model.parameters() if one.requires_grad]
        for parameter, gradient in zip(
            trained, _mean_gradients(state.batch, memory["pending"]), strict=True
        ):
            parameter.grad = gradient
        for optimizer, bases in zip(optimizers, rates, strict=True):
            if self.schedule is not None:
                for group, base in zip(optimizer.param_groups, bases, strict=True):
                    group["lr"] = base * self.schedule(state)
            optimizer.step()
        new = {name: one.detach() for name, one in model.named_parameters()}
        saved = [_numbered(capture_optimizer(optimizer, names), str) for optimizer in optimizers]
        return {"weights": {**weights, **new}, "optimizers": saved}

    def _check_is_finite(self, weights: Mapping[str, Tensor]) -> None:
        """Raise a ValueError if the proxy has diverged: it would filter by NaN."""
        finite = {n: w.isfinite().all() for n, w in weights.items() if w.is_floating_point()}
        if finite and not torch.stack([*finite.values()]).all():  # the host waits once
            name = next(name for name, tensor in finite.items() if not tensor)
            raise ValueError(
                f"the proxy of {self.name} has diverged: its weight {name} is not finite. "
                "Lower the learning rate of its optimizer, or clip its steps."
            )

    def _module(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """Return a copy of the proxy with copies of some weights; tied ones stay tied."""
        memo: dict[int, Any] = {
            id(parameter): nn.Parameter(weights[name].clone(), parameter.requires_grad)
            for name, parameter in self.proxy.named_parameters()
        }
        return copy.deepcopy(self.proxy, memo)

    def check_memory(self, memory: Any, state: State) -> None:
        """Raise a `ValueError` if a loaded memory does not belong to this proxy."""
        check_entries(memory, "optimizers", "pending", "weights")
        own = (*self.proxy.named_parameters(), *self.proxy.named_buffers())
        ours = {name: tuple(tensor.shape) for name, tensor in own}
        theirs = {name: tuple(weight.shape) for name, weight in memory["weights"].items()}
        if ours != theirs:
            raise ValueError(
                f"its weights have the shapes {theirs}, and the proxy has {ours}: pass the proxy "
                "of the saved run."
            )


def _mean_gradients(batch: Any, pending: Sequence[tuple[int, list[Tensor], int]]) -> list[Tensor]:
    """Return the gradients of the mean loss over the examples that all processes keep.

    Args:
        batch: The batch of the step.
        pending: The step, the gradients of the summed losses of each of its parts on this process,
            and the number of their examples.
    """
    parts, total = iter(pending), TreeSum()
    for shard in shards_in(batch):
        for inner in parts_of(shard.batch):
            _, gradients, kept = next(parts)
            wide = widest_float(gradients[0].device)
            flat = torch.cat([gradient.to(wide).flatten() for gradient in gradients])
            one = torch.cat([flat, flat.new_full((1,), kept)])
            total.add([torch.zeros_like(one) if shard.empty or inner.empty else one])
    whole = all_reduce_exactly(total.value[0], _processes_of(batch))
    *sums, count = whole.split_with_sizes([*(tensor.numel() for tensor in pending[0][1]), 1])
    return [
        (tensor / count).view(like.shape).to(like.dtype)
        for tensor, like in zip(sums, pending[0][1], strict=True)
    ]


def _processes_of(batch: Any) -> Processes:
    """Return the processes that share the batch of a step."""
    return batch.shards.processes if isinstance(batch, ShardedBatch) else Processes.current()


def _parts(module: nn.Module) -> list[Any]:
    """Return the parameters of a module, and the modules that have them."""
    return [*module.parameters(), *(one for one in module.modules() if one._parameters)]


def _numbered(saved: Mapping[str, Any], kind: Callable[[Any], Any]) -> dict[str, Any]:
    """Convert the numbers of parameters, which are the keys of a state of an optimizer."""
    return {**saved, "state": {kind(number): value for number, value in saved["state"].items()}}
