"""Log how the time of training is split."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from composable._support.checks import check_count
from composable.core.callback import Callback, check_keys

if TYPE_CHECKING:
    from composable.core.logger import Logger
    from composable.core.state import State

__all__ = ["TimeSplit"]

_PARTS = ("data", "forward", "backward", "optimizer", "evaluation", "saving", "other")


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

    The times are those of the host, at events. The callback never synchronizes with the device. On
    a GPU, operations are queued, so their time counts towards the part in which the host waits.

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

    def fit_start(self, state: "State", logger: "Logger") -> None:
        """Start the clock."""
        self._part, self._since = "other", time.perf_counter()

    def before_dataloader(self, state: "State", logger: "Logger") -> None:
        """Begin `data`."""
        self._begin("data")

    def after_dataloader(self, state: "State", logger: "Logger") -> None:
        """End `data`."""
        self._begin("other")

    def epoch_end(self, state: "State", logger: "Logger") -> None:
        """End `data`: the loader is exhausted."""
        self._begin("other")

    def before_forward(self, state: "State", logger: "Logger") -> None:
        """Begin `forward`."""
        self._begin("forward")

    def before_backward(self, state: "State", logger: "Logger") -> None:
        """Begin `backward`."""
        self._begin("backward")

    def after_backward(self, state: "State", logger: "Logger") -> None:
        """End `backward`."""
        self._begin("other")

    def before_optimizer_step(self, state: "State", logger: "Logger") -> None:
        """Begin `optimizer`."""
        self._begin("optimizer")

    def after_optimizer_step(self, state: "State", logger: "Logger") -> None:
        """End `optimizer`."""
        self._begin("other")

    def eval_before_all(self, state: "State", logger: "Logger") -> None:
        """Begin `evaluation`."""
        self._begin("evaluation")

    def eval_after_all(self, state: "State", logger: "Logger") -> None:
        """End `evaluation`."""
        self._begin("other")

    def before_save(self, state: "State", logger: "Logger") -> None:
        """Begin `saving`."""
        self._begin("saving")

    def after_save(self, state: "State", logger: "Logger") -> None:
        """End `saving`."""
        self._begin("other")

    def batch_end(self, state: "State", logger: "Logger") -> None:
        """Log the times if it is due."""
        if not state.timestamp.batch % self.interval:
            self._log(logger)

    def fit_end(self, state: "State", logger: "Logger") -> None:
        """Log the times."""
        self._log(logger)

    def _log(self, logger: "Logger") -> None:
        self._begin("other")
        logger.log_metrics({f"time_split/{part}": self._seconds[part] for part in _PARTS})

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds of each part."""
        return {"seconds": dict(self._seconds)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the seconds of each part.

        Raises:
            ValueError: They are not what `state_dict` returns.
        """
        check_keys(self, state)
        seconds = state["seconds"]
        if not isinstance(seconds, dict) or seconds.keys() != self._seconds.keys():
            raise ValueError(f"seconds must be a number for each of {', '.join(_PARTS)}.")
        if not all(type(one) in (int, float) and one >= 0 for one in seconds.values()):
            raise ValueError("seconds must be numbers of at least 0.")
        self._seconds = dict(seconds)
