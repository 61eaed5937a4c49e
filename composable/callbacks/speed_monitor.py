"""Log the throughput of training, and the time it takes."""

import time
from collections.abc import Callable
from numbers import Real
from types import GenericAlias
from typing import Any, ClassVar

from composable._support.checks import check_count, check_range
from composable._support.warn import warn_user
from composable.core.callback import AttachedRun, Callback
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.stateful import Number, NumberOrNone, list_of_numbers
from composable.data.grouping import batches_of
from composable.distributed import Processes

_UNITS = ("batches", "samples", "tokens", "flops")


class SpeedMonitor(Callback):
    """Logs the throughput of training over the last `window_size` batches, and wall-clock times.

    It logs after every batch:

    - `time/train`, `time/val` and `time/total`: the seconds of training, of evaluation during
      training, and their sum. Saving checkpoints and logging are not included.
    - as soon as the window is full, `throughput/batches_per_sec`, `throughput/samples_per_sec` and,
      if tokens are counted, `throughput/tokens_per_sec`. Evaluation is excluded.
    - with `flops_per_batch`, also `flops/total` (of the run so far, which is `State.flops`),
      `throughput/flops_per_sec`, `throughput/device/flops_per_sec` (of each process) and, if the
      peak of the device is known, `throughput/device/mfu`: the fraction of the peak that the model
      uses (model FLOPs utilization, at most 1).

    The monitor never synchronizes with the device: work that is still queued counts towards a later
    batch.

    Args:
        window_size: The number of batches to average over, at least 1.
        flops_per_batch: The floating-point operations of the forward and backward pass of a batch:
            a number; a function of the batch; or "count", to count them once, on the first batch,
            and to scale them by the tokens (or else the samples) of later ones. Default: the method
            `flops_per_batch(batch)` of the model if it has one, otherwise none.
        gpu_flops_available: The peak of the device in floating-point operations per second.
            Default: the data sheet's value for the dtype of the run, for common GPUs.

    Raises:
        ValueError: An argument has an invalid value.
        TypeError: An argument has the wrong type.

    Example:
        >>> from composable import Trainer
        >>> from composable.callbacks import SpeedMonitor
        >>> from composable.loggers import InMemoryLogger
        >>> trainer = Trainer(
        ...     torch.nn.Linear(4, 3),
        ...     train_dataloader=[(torch.randn(8, 4), torch.randint(3, (8,)))] * 5,
        ...     max_duration="1ep",
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        ...     callbacks=SpeedMonitor(window_size=2, flops_per_batch="count"),
        ...     loggers=InMemoryLogger(),
        ...     progress_bar=False,
        ... )
        >>> _ = trainer.fit()
        >>> len(trainer.history.series("throughput/samples_per_sec"))
        4
        >>> flops = trainer.history.latest["throughput/flops_per_sec"]
        >>> round(flops / trainer.history.latest["throughput/batches_per_sec"]) == 2 * (
        ...     2 * 8 * 4 * 3
        ... )
        True
    """

    _saved_attributes: ClassVar = {
        "_window": GenericAlias(list, list_of_numbers(len(_UNITS) + 1)),
        "_counted": NumberOrNone,
        "_eval_seconds": Number,
    }

    def __init__(
        self,
        window_size: int = 100,
        *,
        flops_per_batch: float | str | Callable[[Any], float] | None = None,
        gpu_flops_available: float | None = None,
    ) -> None:
        check_count("window_size", window_size, 1)
        _check_flops(flops_per_batch)
        if gpu_flops_available is not None:
            check_range("gpu_flops_available", gpu_flops_available, 0, ends="()")
        self.window_size = window_size
        self.flops_per_batch = flops_per_batch
        self.gpu_flops_available = gpu_flops_available
        # Batches, samples, tokens, operations and seconds of training at the end of each batch.
        self._window: list[list[float]] = []
        self._counted: float | None = None
        self._eval_seconds = 0.0
        self._peak: float | None = None
        self._processes = 1
        self._began: float | None = None

    def fit_start(self, state: State, logger: Logger) -> None:
        """Start a window, unless the current one ends at this batch."""
        if state.timestamp.batch == 0:
            self._eval_seconds, self._counted = 0.0, None
        now = self._done(state)
        if not self._window or self._window[-1] != now:
            self._window.clear()
            self._window.append(now)
        self._processes = Processes.current().size
        self._peak = self.gpu_flops_available
        if self._peak is None and self.counts(state):
            from composable.callbacks._flops import peak_flops  # imports slow parts of torch

            self._peak = peak_flops(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Log the times, and the throughput over the window."""
        self._window.append(self._done(state))
        del self._window[: -self.window_size - 1]
        trained = state.timestamp.total_wct
        metrics = {
            "time/train": trained,
            "time/val": self._eval_seconds,
            "time/total": trained + self._eval_seconds,
        }
        if state.flops is not None:
            metrics["flops/total"] = state.flops
        if len(self._window) > self.window_size:
            metrics |= self._throughput()
        logger.log_metrics(metrics)

    def eval_before_all(self, state: State, logger: Logger) -> None:
        """Start the clock of evaluation."""
        self._began = time.perf_counter()

    def eval_after_all(self, state: State, logger: Logger) -> None:
        """Stop the clock of evaluation."""
        if self._began is not None:
            self._eval_seconds += time.perf_counter() - self._began
            self._began = None

    def close(self) -> None:
        """Stop the clock of an evaluation that did not end."""
        self._began = None

    def _done(self, state: State) -> list[float]:
        now = state.timestamp
        return [now.batch, now.sample, now.token, state.flops or 0.0, now.total_wct]

    def _throughput(self) -> dict[str, float]:
        first, last = self._window[0], self._window[-1]
        *counts, seconds = (after - before for before, after in zip(first, last, strict=True))
        if seconds <= 0:
            return {}
        rates = {
            f"throughput/{unit}_per_sec": count / seconds
            for unit, count in zip(_UNITS, counts, strict=True)
            if count or unit in ("batches", "samples")
        }
        flops = rates.get("throughput/flops_per_sec")
        if flops is not None:
            rates["throughput/device/flops_per_sec"] = flops / self._processes
            if self._peak is not None:
                rates["throughput/device/mfu"] = flops / self._processes / self._peak
        return rates

    # --- floating-point operations ---

    def attach(self, run: AttachedRun) -> None:
        """Let the run count the floating-point operations."""
        run.count_flops_with(self)

    def counts(self, state: State) -> bool:
        """Return whether this monitor counts floating-point operations."""
        return self._source(state) is not None

    def flops_of(self, state: State) -> float:
        """Return the floating-point operations of a batch, of all processes; 0 if not counted."""
        source = self._source(state)
        if source is None:
            return 0.0
        if callable(source):
            return float(sum(map(source, batches_of(state.batch)))) * self._processes
        if source != "count":
            return float(source)
        before, now = state.previous_timestamp, state.timestamp
        tokens, samples = now.token - before.token, now.sample - before.sample
        if self._counted is None:
            self._counted = _count(state) * self._processes / (tokens or samples or 1)
        return self._counted * (tokens or samples)

    def _source(self, state: State) -> Any:
        """Return the number, the function or "count"; None if operations are not logged."""
        if self.flops_per_batch is not None:
            return self.flops_per_batch
        own = getattr(state.model, "flops_per_batch", None)
        return own if callable(own) else None


def _count(state: State) -> int:
    from composable.callbacks._flops import count_flops  # imports slow parts of torch

    try:
        return count_flops(state)
    except Exception as error:  # the code of the model may raise anything
        warn_user(
            f"SpeedMonitor can't count the floating-point operations of "
            f"{type(state.model).__name__}: {type(error).__name__}: {error} Pass them as "
            "flops_per_batch, a number or a function of the batch.",
        )
        return 0


def _check_flops(flops: Any) -> None:
    if flops is None or callable(flops) or (isinstance(flops, str) and flops == "count"):
        return
    if not isinstance(flops, Real):
        raise TypeError(
            f"flops_per_batch={flops!r} must be 'count', a number, a function of the batch or None."
        )
    check_range("flops_per_batch", flops, 0, ends="()")
