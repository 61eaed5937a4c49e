"""Loss scaling in a run: scale the loss, unscale gradients, skip the steps that overflow."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from typing_extensions import TypedDict

from composable._support.dtensors import local_part
from composable.batches.precision import Precision
from composable.core.state import State
from composable.core.stateful import Count, Factor
from composable.engines.modules import Buffers
from composable.optim.loss_scaling import unscale_, update_scale
from composable.optim.stepping import count_skipped_step, zero_grad
from composable.plan.dispatch import Dispatcher

_LOWEST = 2.0**-10


class GradientOverflowError(RuntimeError):
    """Gradients are not finite at any loss scale."""


class SkippedStep(Exception):
    """Raised before the optimizers step, to skip the batch with this loss: see `skipping`."""

    def __init__(self, loss: Tensor) -> None:
        super().__init__()
        self.loss = loss


class Overflow(SkippedStep):
    """Gradients are not finite."""


class ScalerState(TypedDict):
    """The scale, if there is one, and the counts of steps."""

    scale: Factor
    streak: Count
    num_skipped: Count


@attrs.define(eq=False)
class LossScaler:
    """The loss scale of a run, and the number of steps that were skipped.

    Args:
        precision: The precision of the run, which says whether the loss is scaled, and how.
        device: The device of the run.
    """

    precision: Precision
    device: torch.device
    enabled: bool = attrs.field(init=False)
    """Whether the loss is scaled."""
    scale: Tensor = attrs.field(init=False)
    streak: int = 0
    """The number of steps without overflow since the scale changed."""
    num_skipped: int = 0
    on_all: Callable[[Tensor], Tensor] = attrs.field(default=lambda flag: flag)
    """Returns whether any process has gradients that are not finite."""
    of_update: str | None = None
    """The update of a run whose loss is scaled."""

    def __attrs_post_init__(self) -> None:
        self.enabled = self.precision.scales_loss
        self.scale = self._tensor(self.precision.initial_scale)

    def _tensor(self, scale: float) -> Tensor:
        return torch.tensor(scale, dtype=torch.float32, device=self.device)

    def backward(self, loss: Any, gradients: Sequence[Tensor] | None = None) -> None:
        """Compute the gradients of the scaled loss, or of outputs whose gradients are scaled."""
        scaled = loss * self.scale if gradients is None else loss
        torch.autograd.backward(scaled, gradients)

    def unscale(self, state: State) -> bool:
        """Divide the gradients by the scale, and return whether all are finite."""
        groups = [group for optimizer in state.optimizers for group in optimizer.param_groups]
        parameters = {id(parameter): parameter for group in groups for parameter in group["params"]}
        gradients = [local_part(p.grad) for p in parameters.values() if p.grad is not None]
        return not self.on_all(unscale_(gradients, self.scale)).item()

    def update(self, *, overflow: bool) -> None:
        """Compute the scale of the next step."""
        precision = self.precision
        self.scale, self.streak = update_scale(
            self.scale,
            self.streak,
            overflow=overflow,
            growth_factor=precision.growth_factor,
            backoff_factor=precision.backoff_factor,
            growth_interval=precision.growth_interval,
        )

    def record_skip(self, batch: int) -> dict[str, float]:
        """Count a skipped step, reduce the scale, and return both as metrics.

        Raises:
            GradientOverflowError: The scale is so small that it is not what overflows.
        """
        self.num_skipped += 1
        self.update(overflow=True)
        scale = self.scale.item()
        of = "" if self.of_update is None else f" in the update {self.of_update!r}"
        if scale < _LOWEST:
            raise GradientOverflowError(
                f"the gradients of batch {batch}{of} are not finite, even with a loss scale of "
                f"{scale:.3g}, while the loss is: a smaller scale will not help. Look for a "
                "division by 0 or a square root of 0 in the model or its loss, whose gradient is "
                "NaN, or use precision='amp_bf16', in which large values don't overflow."
            )
        end = "" if self.of_update is None else f"/{self.of_update}"
        return {f"precision/loss_scale{end}": scale, f"precision/skipped{end}": self.num_skipped}

    def state_dict(self) -> ScalerState:
        """Return the scale, and the counts of steps."""
        return {
            "scale": self.scale.item() if self.enabled else None,
            "streak": self.streak,
            "num_skipped": self.num_skipped,
        }

    def load_state_dict(self, state: ScalerState) -> None:
        """Restore what `state_dict` returned; a run that scaled nothing has no scale to restore."""
        if self.enabled and state["scale"] is not None:
            self.scale, self.streak = self._tensor(state["scale"]), state["streak"]
            self.num_skipped = state["num_skipped"]


def unscale_gradients(
    gradients: Callable[..., State], scaler: LossScaler, check_loss: Callable[[State], State] | None
) -> Callable[..., State]:
    """Unscale the gradients of a pass, and end the step if one is not finite.

    Args:
        gradients: Computes the gradients of the scaled loss.
        scaler: The scale.
        check_loss: Raises an error for a loss that is not finite: no scale would change it.
    """

    def unscaled(state: State) -> State:
        state = gradients(state)
        if scaler.unscale(state):
            return state
        if check_loss is not None:
            check_loss(state)
        raise Overflow(state.loss)  # type: ignore[arg-type]

    return unscaled


def skip_overflow(
    step: Callable[[State], State], dispatcher: Dispatcher, scaler: LossScaler
) -> Callable[[State], State]:
    """Skip the step of a batch whose gradients overflow, and update the scale after each step.

    The buffers keep what the forward pass wrote, as with `torch.amp.GradScaler`.
    """

    def scaled(state: State) -> State:
        state = step(state)
        scaler.update(overflow=False)
        return state

    def record(state: State) -> dict[str, float]:
        return scaler.record_skip(state.timestamp.batch)

    return skipping(scaled, dispatcher, Overflow, record)


def skipping(
    step: Callable[[State], State],
    dispatcher: Dispatcher,
    error: type[SkippedStep],
    record: Callable[[State], dict[str, float]],
    *,
    keeps_buffers: bool = True,
) -> Callable[[State], State]:
    """Skip the batches whose step raises an error: return the state before it, but for its loss.

    Args:
        step: The step.
        dispatcher: It has the loggers.
        error: The error.
        record: Counts a skipped batch, and returns metrics to log.
        keeps_buffers: Whether the buffers keep what the forward pass wrote.
    """

    def guarded(state: State) -> State:
        buffers = Buffers([]) if keeps_buffers else Buffers.of(state)
        try:
            return step(state)
        except error as skipped:
            zero_grad(state)
            buffers.restore()
            count_skipped_step(state.optimizers)
            dispatcher.logger.log_metrics(record(state), state.timestamp)
            return state.evolve_unchecked(loss=skipped.loss, frozen=frozenset())

    return guarded
