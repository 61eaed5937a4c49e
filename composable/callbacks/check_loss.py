"""Raise an error if the loss is NaN or infinite."""

import math

from composable.callbacks.nan_monitor import NaNMonitor


class CheckLoss(NaNMonitor):
    """Raises an error if the loss of a training batch is NaN or infinite.

    The callback of this name in Cerebras Model Zoo: a `NaNMonitor` that checks for infinite losses
    too.

    Raises:
        RuntimeError: A loss is NaN or infinite.

    Example:
        >>> from composable import Trainer
        >>> from composable.callbacks import CheckLoss
        >>> trainer = Trainer(
        ...     torch.nn.Linear(1, 1),
        ...     train_dataloader=[(torch.full((1, 1), 1e30), torch.ones(1, 1))],
        ...     max_duration="1ep",
        ...     loss_fn=torch.nn.functional.mse_loss,
        ...     optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        ...     nonfinite_loss="ignore",
        ...     progress_bar=False,
        ... )
        >>> with CheckLoss():
        ...     trainer.fit()
        Traceback (most recent call last):
            ...
        RuntimeError: the loss of batch 0 is inf, and all weights are finite: inspect the batch...
    """

    @staticmethod
    def _is_wrong(loss: float) -> bool:
        return not math.isfinite(loss)
