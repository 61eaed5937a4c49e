"""Log the learning rates."""

from typing import Any

from composable.core.callback import Callback
from composable.core.intervals import IntervalLike, check_interval, completes
from composable.core.logger import Logger
from composable.core.state import State
from composable.optim.learning_rates import LearningRates


class LRMonitor(Callback):
    """Logs the learning rate of every parameter group, as used by the step.

    The loop logs the learning rates with the loss, every `log_interval`. This callback logs them at
    a separate interval, under the same names: `lr`, `lr/group1`, `lr/optimizer1`. A batch whose
    learning rates the loop has just logged is not logged twice.

    Args:
        interval: When to log: "1ba", "1ep", a function `(state, event) -> bool`, or None for never.

    Raises:
        ValueError: `interval` is not a valid interval.
        TypeError: `interval` has the wrong type.

    Example:
        >>> from composable import Trainer
        >>> from composable.callbacks import LRMonitor
        >>> from composable.loggers import InMemoryLogger
        >>> trainer = Trainer(
        ...     torch.nn.Linear(4, 3),
        ...     train_dataloader=[(torch.randn(8, 4), torch.randint(3, (8,)))] * 4,
        ...     max_duration="1ep",
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        ...     callbacks=LRMonitor(),
        ...     loggers=InMemoryLogger(),
        ...     log_interval="2ba",
        ...     progress_bar=False,
        ... )
        >>> _ = trainer.fit()
        >>> len(trainer.history.series("lr")), len(trainer.history.series("loss/train"))
        (4, 2)
    """

    def __init__(self, interval: IntervalLike = "1ba") -> None:
        self.interval = check_interval("interval", interval)
        self._rates: dict[str, Any] = {}

    def after_optimizer_step(self, state: State, logger: Logger) -> None:
        """Read the learning rates that the step used."""
        due = completes(self.interval, state)
        self._rates = {**self._rates, **LearningRates(state.optimizers).read()} if due else {}

    def log(self, state: State, logger: Logger) -> None:
        """Skip the batch: the loop has logged its learning rates."""
        self._rates = {}

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Log the learning rates."""
        if self._rates:
            logger.log_metrics(self._rates)
            self._rates = {}

    def close(self) -> None:
        """Discard the learning rates of a batch that did not end."""
        self._rates = {}
