"""Log how the time of training is split."""

import time
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from composable._support.checks import check_count
from composable.core.callback import Callback
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.stateful import Kind, is_number

_PARTS = ("data", "forward", "backward", "optimizer", "evaluation", "saving", "other")


def _are_seconds(value: Any) -> bool:
    fits = isinstance(value, dict) and value.keys() == set(_PARTS)
    return fits and all(is_number(one) and one >= 0 for one in value.values())


_SECONDS = Annotated[Any, Kind(f"numbers of at least 0 for {', '.join(_PARTS)}", _are_seconds)]


def _begins(part: str) -> Callable[["TimeSplit", State, Logger], None]:
    """Return the method for an event at which a part begins, and the one before it ends."""

    def begin(self: "TimeSplit", state: State, logger: Logger) -> None:
        self._begin(part)

    return begin


class TimeSplit(Callback):
    """Logs the seconds of each part of training, from the start of the run.

    It logs `time_split/<part>` every `interval` batches and at the end of `fit`:

    - `data`: waiting for the loader, copies to the device, and algorithms that change the batch
      after loading;
    - `forward`: the model and the loss;
    - `backward`: the gradients;
    - `optimizer`: the step of the optimizers;
    - `evaluation` and `saving`;
    - `other`: the rest of `fit`, such as other callbacks, algorithms and loggers.

    The times are measured on the host, at events. The callback never synchronizes with the device.
    On a GPU, operations are queued, so their time counts towards the part in which the host waits.

    Args:
        interval: The number of batches between two records, at least 1.

    Raises:
        ValueError: `interval` is below 1.

    Example:
        >>> from composable import Trainer
        >>> from composable.callbacks import TimeSplit
        >>> from composable.loggers import InMemoryLogger
        >>> memory = InMemoryLogger()
        >>> trainer = Trainer(
        ...     torch.nn.Linear(4, 3),
        ...     train_dataloader=[(torch.randn(8, 4), torch.randint(3, (8,)))] * 5,
        ...     max_duration="1ep",
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        ...     callbacks=TimeSplit(),
        ...     loggers=memory,
        ...     progress_bar=False,
        ... )
        >>> _ = trainer.fit()
        >>> sorted(name for name in memory.latest if memory.latest[name] and "split" in name)
        ['time_split/backward', 'time_split/data', 'time_split/forward', 'time_split/optimizer',
         'time_split/other']
    """

    _saved_attributes: ClassVar = {"_seconds": _SECONDS}

    def __init__(self, interval: int = 100) -> None:
        check_count("interval", interval, 1)
        self.interval = interval
        self._seconds = dict.fromkeys(_PARTS, 0.0)
        self._part, self._since = "other", 0.0

    def _begin(self, part: str) -> None:
        """End the current part, and begin another one."""
        now = time.perf_counter()
        self._seconds[self._part] += now - self._since
        self._part, self._since = part, now

    def fit_start(self, state: State, logger: Logger) -> None:
        """Start the clock."""
        self._part, self._since = "other", time.perf_counter()

    before_dataloader, after_dataloader = _begins("data"), _begins("other")
    epoch_end = _begins("other")  # the loader is exhausted
    before_forward = _begins("forward")
    before_backward, after_backward = _begins("backward"), _begins("other")
    before_optimizer_step, after_optimizer_step = _begins("optimizer"), _begins("other")
    eval_before_all, eval_after_all = _begins("evaluation"), _begins("other")
    before_save, after_save = _begins("saving"), _begins("other")

    def batch_end(self, state: State, logger: Logger) -> None:
        """Log the times if it is due."""
        if not state.timestamp.batch % self.interval:
            self._log(logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Log the times."""
        self._log(logger)

    def _log(self, logger: Logger) -> None:
        self._begin("other")
        logger.log_metrics({f"time_split/{part}": self._seconds[part] for part in _PARTS})
