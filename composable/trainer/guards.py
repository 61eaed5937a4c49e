"""Guards against losses that are not finite."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from composable._support.dtensors import whole
from composable._support.foreach import l2_norms
from composable._support.warn import warn_user
from composable.core.state import State
from composable.core.stateful import Count, SavedFields, saved
from composable.engines.scaled import SkippedStep, skipping
from composable.optim.stepping import count_skipped_step
from composable.plan.dispatch import Dispatcher

_MAX_CONSECUTIVE = 10
_MAX_PENDING = 64


class NonFiniteLossError(RuntimeError):
    """The loss of a batch was NaN or infinite."""

    def __init__(self, message: str, batch: int) -> None:
        super().__init__(message)
        self.batch = batch


class NonFiniteLossWarning(UserWarning):
    """A loss was NaN or infinite: of a batch, which was skipped, or of an evaluation."""


class SkipBatch(SkippedStep):
    """The loss of a batch is not finite."""


@attrs.define(eq=False)
class NonFiniteGuard(SavedFields):
    """Checks that losses are finite.

    Args:
        policy: "raise", "skip", "rollback" or "ignore".
        immediate: Check each loss before the optimizers step. On a GPU that synchronizes, so with
            "raise" losses are checked up to 64 batches later there, and before every save.
    """

    policy: str
    immediate: bool
    num_skipped: int = saved(Count, default=0)
    num_rollbacks: int = saved(Count, default=0)
    skipped_batches: set[int] = saved(list[Count], factory=set)
    """Batches that are skipped after a rollback, because their losses were not finite before."""
    _consecutive: dict[str, int] = saved(dict[str, Count], factory=dict)
    """The skipped batches since the last one that was not, by the update, "" for the only loss."""
    _pending: list[tuple[int, Tensor, str | None]] = attrs.field(factory=list)
    _norms: Mapping[str, Tensor] = attrs.field(factory=dict)
    """The norms of the weights that computed the first of the pending losses."""

    @property
    def check(self) -> Callable[[State], State] | None:
        """Checks the loss of a batch; None if losses may be infinite or NaN."""
        if self.policy == "ignore":
            return None
        return self.check_now if self.immediate else self.check_later

    def check_later(self, state: State) -> State:
        """Check the loss of a batch together with others, and return the state: see `flush`."""
        if not self._pending:
            self._norms = _norms_of(state.model)
        loss: Tensor = state.loss  # type: ignore[assignment]  # a step has computed it
        self._pending.append((state.timestamp.batch, loss, state.update))
        if len(self._pending) >= _MAX_PENDING:
            self.flush()
        return state

    def check_now(self, state: State) -> State:
        """Check the loss of a batch before the optimizers step, and return the state.

        Raises:
            SkipBatch: The loss is not finite, and the policy is "skip".
            NonFiniteLossError: It is not finite, and the policy is another one, or the weights were
                not finite before.
        """
        loss: Tensor = state.loss  # type: ignore[assignment]  # a step has computed it
        value, batch = loss.item(), state.timestamp.batch
        if math.isfinite(value):
            self._consecutive.pop(state.update or "", None)
            return state
        if weight := _nonfinite(_norms_of(state.model)):
            raise _weights_error(value, batch, weight, state.update)
        if self.policy != "skip":
            raise _error(value, batch, state.update)
        self.record_skip(value, state)
        raise SkipBatch(loss)

    def flush(self) -> None:
        """Check the losses that are pending.

        Raises:
            NonFiniteLossError: A loss is not finite. The error names the first such batch.
        """
        pending, self._pending = self._pending, []
        if not pending:
            return
        losses = [loss.detach().reshape(()).float() for _, loss, _ in pending]
        for (batch, _, update), value in zip(pending, torch.stack(losses).tolist(), strict=True):
            if not math.isfinite(value):
                if weight := _nonfinite(self._norms):
                    raise _weights_error(value, batch, weight, update)
                raise _error(value, batch, update, knows_cause=batch == pending[0][0])

    def record_skip(self, value: float, state: State) -> None:
        """Count a skipped batch, and warn.

        Raises:
            NonFiniteLossError: Too many batches in a row were skipped.
        """
        self.num_skipped += 1
        update, batch = state.update or "", state.timestamp.batch
        self._consecutive[update] = self._consecutive.get(update, 0) + 1
        if self._consecutive[update] >= _MAX_CONSECUTIVE:
            raise NonFiniteLossError(
                f"the losses of {_MAX_CONSECUTIVE} consecutive batches{_in(state.update)} were not "
                f"finite, up to batch {batch}; skipping more will not help. Lower the learning "
                "rate, clip gradients, or resume from an earlier checkpoint.",
                batch,
            )
        warn_user(
            f"the loss of batch {batch}{_in(state.update)} was {value}: the batch is skipped "
            f"({self.num_skipped} so far).",
            NonFiniteLossWarning,
        )

    def record_rollback(self, error: NonFiniteLossError) -> None:
        """Count a rollback, and skip the batch when it comes again.

        Raises:
            NonFiniteLossError: The run was rolled back too often.
        """
        self.num_rollbacks += 1
        if self.num_rollbacks > _MAX_CONSECUTIVE:
            raise error
        self.skipped_batches.add(error.batch)
        self._pending.clear()


def _in(update: str | None) -> str:
    """Name the update in a message, if there are several."""
    return "" if update is None else f" in the update {update!r}"


def _error(
    value: float, batch: int, update: str | None, *, knows_cause: bool = True
) -> NonFiniteLossError:
    cause = "" if knows_cause else ", because of it or of a step before it that made weights NaN"
    return NonFiniteLossError(
        f"the loss of batch {batch}{_in(update)} was {value}{cause}. Inspect that batch (resuming "
        "from the previous checkpoint repeats it), lower the learning rate, or clip gradients; "
        "nonfinite_loss='skip' skips such batches, and 'rollback' also restores the last "
        "checkpoint.",
        batch,
    )


def warn_if_nonfinite(label: str, results: Mapping[str, Any], model: nn.Module) -> None:
    """Warn about an evaluation whose loss is not finite."""
    value = results.get("loss")
    if not isinstance(value, float) or math.isfinite(value):
        return
    weight = _nonfinite(_norms_of(model))
    cause = (
        f"weights of the model are not finite, such as {weight!r}"
        if weight
        else "look for values that are not finite in its data, and for batches without a label, "
        "over which a mean is NaN"
    )
    warn_user(f"the loss of Evaluator {label!r} is {value}: {cause}.", NonFiniteLossWarning)


def _norms_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the norms of the parameters, without waiting for the device."""
    named = {n: one.detach() for n, one in model.named_parameters() if one.is_floating_point()}
    return dict(zip(named, map(whole, l2_norms(list(named.values()))), strict=True))


def _nonfinite(norms: Mapping[str, Tensor]) -> str | None:
    """Return the name of a parameter that is not finite: the same on every process."""
    return next((name for name, norm in norms.items() if not norm.isfinite()), None)


def _weights_error(value: float, batch: int, weight: str, update: str | None) -> NonFiniteLossError:
    """Return the error of a batch whose loss follows from the weights, which an earlier one set."""
    where = f"the loss of batch {batch}{_in(update)} was {value}"
    fault = f"{where}, because weights of the model were not finite"
    if not batch:
        return NonFiniteLossError(
            f"{fault} when training began, such as {weight!r}; check how they were "
            "initialized or loaded.",
            batch,
        )
    return NonFiniteLossError(
        f"{fault} before it, such as {weight!r}: the step of an earlier batch, probably "
        f"batch {batch - 1}, made them so, though its loss was finite. Lower the learning rate, "
        "clip gradients, or resume from an earlier checkpoint; skipping this batch would not help.",
        batch - 1,
    )


def skip_batches(
    step: Callable[[State], State], dispatcher: Dispatcher, guard: NonFiniteGuard
) -> Callable[[State], State]:
    """Skip the batches that the policy says, if it says any: as if they had not been there."""

    def record(_: State) -> dict[str, float]:
        return {"nonfinite/skipped": guard.num_skipped}

    if guard.policy == "skip":
        step = skipping(step, dispatcher, SkipBatch, record, keeps_buffers=False)
    if guard.policy == "rollback" or guard.skipped_batches:
        step = skip_listed(step, guard)
    return step


def skip_listed(step: Callable[[State], State], guard: NonFiniteGuard) -> Callable[[State], State]:
    """Skip the batches that were not finite before a rollback."""

    def guarded(state: State) -> State:
        batch = state.timestamp.batch
        if batch not in guard.skipped_batches:
            return step(state)
        guard.record_skip(math.nan, state)
        count_skipped_step(state.optimizers)
        return state.evolve_unchecked(frozen=frozenset())

    return guarded
