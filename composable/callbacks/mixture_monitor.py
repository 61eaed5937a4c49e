"""Log the loss of each loader of a mixture."""

from typing import Any

from composable.core.callback import Callback
from composable.core.intervals import IntervalLike, check_interval, completes
from composable.core.logger import Logger
from composable.core.state import State
from composable.data import Mixture


class MixtureMonitor(Callback):
    """Logs the training loss by the loader that the batch came from, as `loss/train/<name>`.

    Args:
        mixture: The `train_dataloader` of the run, of which each batch is a step: without
            `accumulate_batches` and `epoch_batches`.
        interval: When to log the last loss of each loader since then: "1ba", "1ep", a function
            `(state, event) -> bool`, or None for never.

    Raises:
        TypeError: `mixture` is not a `Mixture`.
        ValueError: `interval` is not a valid interval, or an epoch has another number of steps than
            the mixture has batches.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from composable.data import Mixture
        >>> mixture = Mixture({"a": DataLoader([1.0, 2.0]), "b": DataLoader([3.0])})
        >>> MixtureMonitor(mixture).mixture.sources
        ('a', 'b', 'a')
    """

    def __init__(self, mixture: Mixture, interval: IntervalLike = "1ba") -> None:
        if not isinstance(mixture, Mixture):
            raise TypeError(f"mixture={mixture!r} must be the Mixture that the run trains on.")
        self.mixture, self.interval = mixture, check_interval("interval", interval)
        self._losses: dict[str, Any] = {}

    def fit_start(self, state: State, logger: Logger) -> None:
        """Check that each batch is a step."""
        if state.epoch_length not in (None, len(self.mixture)):
            raise ValueError(
                f"mixture has {len(self.mixture)} batches, and an epoch has {state.epoch_length} "
                "steps; pass the train_dataloader, and omit accumulate_batches and epoch_batches."
            )

    def batch_end(self, state: State, logger: Logger) -> None:
        """Log the losses."""
        name = self.mixture.sources[state.previous_timestamp.batch_in_epoch]
        self._losses[f"loss/train/{name}"] = state.loss
        if completes(self.interval, state):
            logger.log_metrics(self._losses)
            self._losses = {}
