"""The events of the steps of an external loop."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import attrs
from torch import Tensor, nn

from composable.core.event import Event
from composable.core.key import Key
from composable.core.state import State
from composable.data.grouping import BatchGroup
from composable.distributed.processes import Processes
from composable.engines.forward import ForwardPass
from composable.engines.modules import write_gradients
from composable.engines.shares import LossShares
from composable.integrations._accumulation import Accumulation, sum_over_processes
from composable.integrations._refusals import (
    refuse_calls,
    refuse_metrics,
    refuse_request,
    refuse_without_batch,
    refuse_without_loss,
)
from composable.losses.loss import check_scalar
from composable.losses.part_weights import ADVICE, SplitLossError
from composable.plan.plan import Plan
from composable.trainer.parameters import drop_batch, frozen_parameters
from composable.trainer.step import computes_loss
from composable.utils.reproducibility import seed_step


def loss_in_precision(state: State, outputs: Any) -> Tensor:
    """Compute the loss of outputs, in the precision of the loop."""
    with state.precision.autocast(state.device):
        return check_scalar(state.loss_fn(outputs, state.batch))  # type: ignore[misc]


_ADVICE = (
    "Declare by loss_mean_over= what it is a mean over, or use the Trainer, where WholeLoss() "
    "computes it."
)
_CHANGING = (Event.AFTER_DATALOADER, Event.BATCH_START, Event.BEFORE_TRAIN_BATCH)
"""The events at which algorithms may change the batch before its examples are counted."""
_IN_BATCH = (Event.BEFORE_FORWARD, Event.BEFORE_BACKWARD)


@attrs.define(eq=False)
class StepEvents:
    """Fires the events of a step, in the order in which an external loop calls the methods."""

    plan: Plan
    """The plan of the algorithms."""
    state: State
    """The state of the run."""
    _fire: Callable[[Event, State], State]
    _micro: Accumulation
    """The microbatches of this step."""
    _last: Event = Event.FIT_START
    """The last event of the batch, as far as the next call depends on it."""
    _before: State | None = None
    """The state before this batch, until it is counted."""
    _outer: State | None = None
    """The state at `BATCH_START`, with the batch before mixing."""
    _whole: State | None = None
    """The state before `BEFORE_FORWARD`."""
    _replaced: list[nn.Module] = attrs.field(factory=list)
    """The modules of the given model that surgery replaced, until the first step."""
    _watched: ExitStack = attrs.field(factory=ExitStack)
    """Removes the hooks of the replaced modules."""
    _frozen: ExitStack = attrs.field(factory=ExitStack)
    """Restores the parameters that are frozen in this batch."""
    watching: bool = False
    """Whether the steps of the optimizer are watched."""
    _stepped_early: int = 0
    """After how many microbatches the last step came, if after too few."""
    _unstepped: bool = False
    """Whether the loop skipped the last step, so that it may have left gradients."""
    _had_backward: bool = False
    """Whether the backward pass of the last loss was called."""
    _key: Key = Key(0)
    """The key of the run."""
    _own_key: Key = Key(0)
    """The key of the batches of this process."""
    _started: float = 0.0
    _samples: int = 0
    measures: Any = None
    """The `TrainMetrics`, if there are any."""

    @property
    def model(self) -> nn.Module:
        """The model to train: the given one, or the result of surgery."""
        return self.state.model

    @property
    def loss_shares(self) -> LossShares:
        """The shares of microbatches in the losses of steps."""
        return self._micro.run

    def start_batch(self, batch: Any) -> Any:
        """Start a batch, or the next microbatch, and return it as the algorithms change it.

        Raises:
            ValueError: There is no optimizer.
            RuntimeError: An algorithm requests something that this loop does not support, or the
                optimizer stepped after too few batches.
        """
        self._check_followed("t.start_batch(batch)")
        self.end_complete_batch()
        first = self._last not in _IN_BATCH
        state = self._start_step() if first else self._next_microbatch()
        index = self._micro.count
        self._samples += state.batch_spec.count(batch)
        state = self._fire(Event.AFTER_DATALOADER, state.evolve(batch=batch))
        if first:
            state = self._fire(Event.BATCH_START, state.evolve(key=self._key))
            state = state.evolve(key=self._own_key)
        self._outer = state
        state = self._fire(Event.BEFORE_TRAIN_BATCH, state)
        if first and state.frozen:
            self._frozen.enter_context(frozen_parameters(state))
        elif not first:
            state = state.evolve(frozen=self.state.frozen)  # of the whole step
        self._whole = state = state.evolve(key=self._own_key)
        self._micro.count += 1
        state = self._fire(Event.BEFORE_FORWARD, state)
        self._check_model(state, "during training")
        if state.second_pass is not None:
            refuse_request("second_pass")
        if state.whole_loss:
            refuse_request("whole_loss")
        self._advance(Event.BEFORE_FORWARD, state)
        if first:
            refuse_calls(self._replaced, self._watched)
        seed_step(self._own_key, state.timestamp.batch, index)
        return state.batch

    def loss(self, outputs: Any) -> Tensor:
        """Compute the loss of the current batch, for `backward`.

        With `accumulate_batches`, divide it by this number before `backward`, as most libraries do,
        also in a last step of fewer batches; let several processes average their gradients, as
        `DistributedDataParallel` does. The loss is multiplied by its share in the loss of the step
        and by these numbers, so that the gradients belong to the loss of all its examples: with
        terms of different divisors, ignored targets, class weights and sums, too.

        Args:
            outputs: The outputs of the model for the batch of `epoch` or `start_batch`.

        Raises:
            RuntimeError: There is no batch, or its loss has been computed already.
            SplitLossError: With `accumulate_batches` or several processes, it is unknown how the
                losses of batches make up the step's.
            ValueError: There is no loss function, or declared weights of a step add up to 0.
        """
        if self._last is not Event.BEFORE_FORWARD:
            raise RuntimeError(
                "t.loss(outputs) was called twice for one batch, or without one; call it once for "
                "every batch of t.epoch(loader). To step once for several batches, pass "
                "accumulate_batches= there."
            )
        if self.state.loss_fn is None:
            raise ValueError(
                f"t.loss(outputs) needs a loss; pass loss_fn to adapt_loop, or give "
                f"{type(self.state.model).__name__} a method loss(outputs, batch)."
            )
        forward = ForwardPass(lambda _: outputs, loss_in_precision)
        compute = computes_loss(partial(partial, self._fire), forward)
        given = self.state
        whole: Any = self._whole  # start_batch has set it
        try:
            state, weighted = self._micro.compute(
                compute, given, whole, *self._batches_of_step(whole)
            )
        except SplitLossError as error:
            raise SplitLossError(str(error).replace(ADVICE, _ADVICE)) from error
        if self.measures is not None:
            self.measures.measure(given, state.outputs, (self._micro.count,))
        self._advance(Event.BEFORE_BACKWARD, state)
        self._had_backward = False
        if weighted.requires_grad:
            weighted.register_hook(self._in_backward)  # type: ignore[no-untyped-call]
        return weighted

    def before_step(self) -> None:
        """Let algorithms change the gradients, right before the optimizer's step.

        Raises:
            RuntimeError: An algorithm acts at an event that this loop does not fire, or this is the
                second call for a step.
        """
        if self._last is Event.BEFORE_OPTIMIZER_STEP:
            raise RuntimeError(
                "t.before_step() was called twice for one step; use one LoopAdapterCallback. The "
                "mixins add it themselves."
            )
        self._watched.close()
        self._replaced = []
        if self._last not in _IN_BATCH:
            refuse_without_batch(self.plan)
            self._before = self.state
        if self._last is not Event.BEFORE_BACKWARD:
            refuse_without_loss(self.plan)
        if len(self._micro.losses) < max(self._micro.count, 1):
            refuse_metrics(self.measures, "this step was made without it; call it for every batch")
        state = self._after_microbatch()
        if self._micro.losses:
            groups = [group for optimizer in state.optimizers for group in optimizer.param_groups]
            parameters = (parameter for group in groups for parameter in group["params"])
            state = state.evolve(loss=self._micro.finish(parameters))
        state = self._fire(Event.BEFORE_OPTIMIZER_STEP, self._after_train_batch(state))
        if state.lr_override is not None:
            refuse_request("lr_override")
        if state.gradients is not None:
            write_gradients(state)
        self._unstepped = False
        self._advance(Event.BEFORE_OPTIMIZER_STEP, state)

    def after_step(self) -> None:
        """Fire the events after the optimizer's step."""
        self._last = Event.BEFORE_ZERO_GRAD  # also if an algorithm raises: the step was taken
        state = self._fire(Event.AFTER_OPTIMIZER_STEP, self.state)
        self.state = self._fire(Event.BEFORE_ZERO_GRAD, state)

    def end_complete_batch(self) -> None:
        """End the batch if its step was taken, or if it has all of its microbatches."""
        if self._last is Event.BEFORE_ZERO_GRAD or self._micro.complete:
            self.end_batch()

    def end_batch(self) -> None:
        """Count the batch and update averages; do nothing if no batch was started."""
        if self._last is Event.BEFORE_ZERO_GRAD:
            self._count(self._fire(Event.AFTER_ZERO_GRAD, self.state.evolve(gradients=None)))
        elif self._last in _IN_BATCH:
            self.skip_step()

    def leave_batch(self) -> None:
        """End the batch if its step was taken; otherwise return to the state before it.

        For a loop that was left, by an exception or `break`. Weights, buffers and gradients stay.
        """
        if self._last is Event.BEFORE_ZERO_GRAD:
            self.end_batch()
        if self._before is not None:
            self._unstepped = True  # it may have left gradients
            self._forget_batch(self._before)

    def skip_step(self) -> None:
        """Count a batch whose step the loop skipped, without the events of the step.

        The weights are those before it. The `Trainer` counts a step that overflowed likewise.
        """
        self._unstepped = True
        self._count(self._restored(self._after_microbatch()))

    def _batches_of_step(self, whole: State) -> tuple[Any, str]:
        """Return the batches of this step; or None, and why they are not known yet."""
        if self._micro.accumulate_batches == 1:
            return whole.batch, ""
        when = "before the last microbatch, because"
        acting = (transform for event in _CHANGING for transform in self.plan.transforms(event))
        for algorithm in acting:
            if "batch" in algorithm.writes or not algorithm.declares:
                return None, f"{when} {algorithm.name} may change batches"
        batches = self._micro.fetched.get(whole.timestamp.batch_in_epoch)
        # A function of the user may need them on the device, to which they are moved one by one.
        on_host = whole.device.type != "cpu" and self._micro.run.weights.declares(whole)
        if not batches or on_host:
            return None, f"{when} the loop fetches batches one by one"
        return BatchGroup(tuple(batches)), ""

    def _start_step(self) -> State:
        if self._stepped_early:
            raise RuntimeError(
                f"the optimizer stepped after {self._stepped_early} batches in the middle of an "
                f"epoch, and accumulate_batches={self._micro.accumulate_batches}, so the length of "
                "the epoch and the gradients would be wrong; pass the number of batches of a step."
            )
        self._micro.start()
        if self.measures is not None:
            self.measures.discard()
        self._before = self.state
        self._key, self._samples = self.state.key, 0
        self._own_key = self._key.of_batch(Processes.current().rank)
        self._started = time.perf_counter()
        return self.state.evolve(key=self._own_key)

    def _next_microbatch(self) -> State:
        """Return the state before the next microbatch, with a key for what changes the batch."""
        state = self._fire(Event.BEFORE_DATALOADER, drop_batch(self._after_microbatch()))
        return state.evolve(key=self._own_key.of_batch(self._micro.count))

    def _after_microbatch(self) -> State:
        """Return the state after the backward pass, with the batch before its loss."""
        state, whole = self.state, self._whole
        if self._last is Event.BEFORE_BACKWARD:
            state = state.evolve(loss=state.loss.detach())  # type: ignore[union-attr]
        if whole is not None:
            state = state.evolve(batch=whole.batch, loss_fn=whole.loss_fn)
        return self._fire(Event.AFTER_BACKWARD, state)

    def _after_train_batch(self, state: State) -> State:
        """Return the state after all microbatches, with the batch before mixing."""
        if self._outer is not None:
            state = state.evolve(key=self._key)
        return self._restored(self._fire(Event.AFTER_TRAIN_BATCH, state))

    def _restored(self, state: State) -> State:
        outer = self._outer
        if outer is None:
            return state
        return state.evolve(batch=outer.batch, loss_fn=outer.loss_fn, key=self._key)

    def _count(self, state: State) -> None:
        started, count = self._outer is not None, self._micro.count
        stepped = self._last is Event.BEFORE_ZERO_GRAD and started
        early = stepped and not self._micro.complete
        if stepped and self.measures is not None:
            self.measures.count(state.loss, self._examples_of_loss())
        self._stepped_early = count if early else 0
        seconds = time.perf_counter() - self._started if started else 0.0
        samples = self._samples * Processes.current().size
        now = state.timestamp.next_batch(samples, seconds=seconds)
        state = state.evolve(timestamp=now, previous_timestamp=state.timestamp, frozen=frozenset())
        if count > 1:
            state = state.without_outputs()
        self._forget_batch(drop_batch(state))  # also if an algorithm raises: it is counted
        state = self._fire(Event.BATCH_CHECKPOINT, self._fire(Event.BATCH_END, state))
        self.state = self._fire(Event.BEFORE_DATALOADER, drop_batch(state))

    def _examples_of_loss(self) -> Any:
        """Return the weight of this process's loss, whose mean over processes is the step's."""
        if not self.measures.of_loss:
            return None
        return sum_over_processes(self.state.device, self._samples) / Processes.current().size

    def _forget_batch(self, state: State) -> None:
        """Return to the time between two batches."""
        self._frozen.close()
        self._watched.close()
        self._micro.start()
        self._before = self._outer = self._whole = None
        self._advance(Event.BEFORE_DATALOADER, state)

    @property
    def _was_skipped(self) -> bool:
        """Whether the loop, such as its `GradScaler`, has skipped the step of this batch.

        The gradients were then cleared since, or they overflowed.
        """
        if not (
            self._last is Event.BEFORE_BACKWARD and self._had_backward and self._micro.complete
        ):
            return False
        held = self._held_gradients()
        overflowed = not all(bool(grad.isfinite().all()) for grad in held)
        return overflowed or not any(bool(grad.any()) for grad in held)

    def _held_gradients(self) -> list[Tensor]:
        groups = [group for optimizer in self.state.optimizers for group in optimizer.param_groups]
        held = [parameter.grad for group in groups for parameter in group["params"]]
        return [grad for grad in held if grad is not None]

    def _in_backward(self, _: Tensor) -> None:
        """Raise if a backward pass adds to the gradients of a batch without a step."""
        self._had_backward = True
        if not self._unstepped or self._micro.count > 1:
            return
        if any(bool(grad.any()) for grad in self._held_gradients()):
            raise RuntimeError(
                "the gradients of an earlier batch, after which the optimizer did not step, would "
                "be added to this batch's; call optimizer.zero_grad() where a step is "
                "skipped. If the loop steps once for n batches, pass accumulate_batches=n to "
                "t.epoch, and step at the end of an epoch too."
            )

    def _check_model(self, state: State, when: str) -> None:
        if state.model is not self.model:
            raise RuntimeError(
                f"an algorithm replaced the model {when}, and the external loop still trains the "
                "old one; in an external loop, models can be replaced at INIT only. "
                "StochasticDepth replaces it in its warm-up: pass drop_warmup=0.0."
            )

    def _advance(self, event: Event, state: State) -> None:
        self._last, self.state = event, state

    def _check_followed(self, call: str) -> None:
        if not self.state.optimizers:
            raise ValueError(
                f"{call} needs an optimizer; pass it to adapt_loop, or call t.follow(optimizer) "
                "first. In another trainer, LoopAdapterCallback does so: add it, or the mixin."
            )
