"""Log the throughput of training."""

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from composable.core.callback import Callback, check_keys
from composable.functional._checks import check_count

if TYPE_CHECKING:
    from composable.core.logger import Logger
    from composable.core.state import State

__all__ = ["SpeedMonitor"]


class SpeedMonitor(Callback):
    """Logs the throughput of training, averaged over the last `window_size` batches.

    It logs `throughput/batches_per_sec`, `throughput/samples_per_sec` and, if tokens are counted,
    `throughput/tokens_per_sec` after every batch, as soon as the window is full. Evaluation time is
    excluded. The monitor never synchronizes with the device: work that is still queued counts
    towards a later batch.

    Args:
        window_size: The number of batches to average over, at least 1.

    Raises:
        ValueError: `window_size` is below 1.

    Example:
        >>> from composable import Trainer
        >>> from composable.callbacks import SpeedMonitor
        >>> from composable.loggers import InMemoryLogger
        >>> memory = InMemoryLogger()
        >>> trainer = Trainer(
        ...     torch.nn.Linear(4, 3),
        ...     train_dataloader=[(torch.randn(8, 4), torch.randint(3, (8,)))] * 5,
        ...     max_duration="1ep",
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        ...     callbacks=SpeedMonitor(window_size=2),
        ...     loggers=memory,
        ...     progress_bar=False,
        ... )
        >>> _ = trainer.fit()
        >>> len(memory.series("throughput/samples_per_sec"))
        4
    """

    def __init__(self, window_size: int = 100) -> None:
        check_count("window_size", window_size, 1)
        self.window_size = window_size
        # Batches, samples, tokens and seconds of training at the end of each batch.
        self._window: deque[tuple[float, ...]] = deque(maxlen=min(window_size, 2**62) + 1)

    def fit_start(self, state: "State", logger: "Logger") -> None:
        """Start a window, unless the current one ends at this batch."""
        now = _done(state)
        if not self._window or self._window[-1] != now:
            self._window.clear()
            self._window.append(now)

    def batch_end(self, state: "State", logger: "Logger") -> None:
        """Log the throughput over the window."""
        self._window.append(_done(state))
        if len(self._window) <= self.window_size:
            return
        first, last = self._window[0], self._window[-1]
        *counts, seconds = (after - before for before, after in zip(first, last, strict=True))
        if seconds > 0:
            logger.log_metrics(
                {
                    f"throughput/{unit}_per_sec": count / seconds
                    for unit, count in zip(_UNITS, counts, strict=True)
                    if count or unit != "tokens"
                }
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the window."""
        return {"window": [list(done) for done in self._window]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the window.

        Raises:
            ValueError: The window is not one that `state_dict` returns.
        """
        check_keys(self, state)
        window = state["window"]
        if not isinstance(window, list) or not all(map(_is_point, window)):
            raise ValueError(
                "window must be a list of counts of batches, samples and tokens, and seconds."
            )
        self._window.clear()
        self._window.extend(tuple(done) for done in window)


_UNITS = ("batches", "samples", "tokens")


def _is_point(done: Any) -> bool:
    return (
        isinstance(done, list)
        and len(done) == len(_UNITS) + 1
        and all(type(number) in (int, float) for number in done)
    )


def _done(state: "State") -> tuple[float, ...]:
    now = state.timestamp
    return now.batch, now.sample, now.token, now.total_wct
