"""Raise an error if the loss is NaN."""

import math

import torch
from torch import Tensor

from composable._support.dtensors import local_part
from composable.core.callback import Callback
from composable.core.logger import Logger
from composable.core.state import State

_MAX_PENDING = 64


class NaNMonitor(Callback):
    """Raises an error if the loss of a training batch is NaN.

    The loss of every microbatch is checked. On the CPU, the error is raised before the optimizers
    step. Elsewhere, reading a loss waits for the device, and losses are checked up to 64
    microbatches later, and before every evaluation and every save.

    The `Trainer` checks the loss itself, infinite values included, unless it is constructed with
    `nonfinite_loss="ignore"`. This callback is for such runs.

    Raises:
        RuntimeError: A loss is NaN. The message names the batch, and weights that are not finite.

    Example:
        >>> from composable import Trainer
        >>> from composable.callbacks import NaNMonitor
        >>> Trainer(
        ...     torch.nn.Linear(1, 1),
        ...     train_dataloader=[(torch.tensor([[float("nan")]]), torch.ones(1, 1))],
        ...     max_duration="1ep",
        ...     loss_fn=torch.nn.functional.mse_loss,
        ...     optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        ...     callbacks=NaNMonitor(),
        ...     nonfinite_loss="ignore",
        ...     progress_bar=False,
        ... ).fit()
        Traceback (most recent call last):
            ...
        RuntimeError: the loss of batch 0 is nan, and all weights are finite: inspect the batch...
    """

    def __init__(self) -> None:
        self._pending: list[tuple[int, Tensor]] = []

    def after_backward(self, state: State, logger: Logger) -> None:
        """Check the loss of a microbatch, now or later."""
        loss = state.loss
        if loss is not None:
            self._pending.append((state.timestamp.batch, loss.detach()))
            if self._is_immediate(loss) or len(self._pending) >= _MAX_PENDING:
                self._check(state)

    def before_save(self, state: State, logger: Logger) -> None:
        """Check the pending losses."""
        self._check(state)

    eval_before_all = fit_end = before_save

    def close(self) -> None:
        """Discard the pending losses of a run that failed."""
        self._pending = []

    @staticmethod
    def _is_immediate(loss: Tensor) -> bool:
        return loss.device.type == "cpu"

    @staticmethod
    def _is_wrong(loss: float) -> bool:
        return math.isnan(loss)

    def _check(self, state: State) -> None:
        pending, self._pending = self._pending, []
        if not pending:
            return
        losses = torch.stack([loss.reshape(()) for _, loss in pending]).tolist()
        for (batch, _), loss in zip(pending, losses, strict=True):
            if self._is_wrong(loss):
                raise RuntimeError(_explain(state, batch, loss))


def _explain(state: State, batch: int, loss: float) -> str:
    named = state.named_parameters()
    # Of a sharded tensor, the part of this process: others may not raise.
    bad = [name for name, parameter in named if not local_part(parameter.detach()).isfinite().all()]
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        weights = f"the weights {', '.join(bad[:3])}{more} are not finite"
        advice = "lower the learning rate, or clip gradients"
    else:
        weights, advice = "all weights are finite", "inspect the batch, and the loss function"
    return f"the loss of batch {batch} is {loss}, and {weights}: {advice}."
