"""Print lines of progress, where there is no progress bar."""

import sys
from datetime import timedelta
from typing import IO, Any

from composable.core.callback import Callback
from composable.core.intervals import IntervalLike, check_interval, completes
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.time import Timestamp, progress


class Printer(Callback):
    """Prints a line of progress at an interval, and the results of every evaluation.

    For log files and terminals without a progress bar. A line has the progress, the loss of the
    batch, the speed since the last line, and the remaining time of training at that speed. Reading
    the loss waits for the device, once for each line. `ConsoleLogger` prints all logged metrics
    instead.

    Args:
        interval: When to print: "10sec", "100ba", "1ep", a function `(state, event) -> bool`, or
            None for evaluations only. Only seconds of training count.
        stream: The stream to print to. Default: standard output.

    Raises:
        ValueError: `interval` is not a valid interval.
        TypeError: `interval` has the wrong type.

    Example:
        >>> from composable import Trainer
        >>> from composable.callbacks import Printer
        >>> trainer = Trainer(
        ...     torch.nn.Linear(4, 3),
        ...     train_dataloader=[(torch.zeros(8, 4), torch.zeros(8, 3))] * 4,
        ...     max_duration="1ep",
        ...     loss_fn=torch.nn.functional.mse_loss,
        ...     optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        ...     callbacks=Printer("2ba"),
        ...     progress_bar=False,
        ... )
        >>> _ = trainer.fit()
        epoch 0, batch 2 (50 %): loss ..., ... batches/s, 0:00:00 left
        epoch 0, batch 4 (100 %): loss ..., ... batches/s, 0:00:00 left
    """

    def __init__(self, interval: IntervalLike = "10sec", *, stream: IO[str] | None = None) -> None:
        self.interval = check_interval("interval", interval)
        if stream is not None and not callable(getattr(stream, "write", None)):
            raise TypeError(
                f"stream={stream!r} must be a text stream, or None for standard output."
            )
        self.stream = stream
        self._due = False
        self._before: Timestamp | None = None
        self._results: Any = {}

    def fit_start(self, state: State, logger: Logger) -> None:
        """Start to measure the speed."""
        self._before = state.timestamp

    def batch_start(self, state: State, logger: Logger) -> None:
        """Decide whether a line is printed after this batch."""
        self._due = completes(self.interval, state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Print a line of progress."""
        if self._due:
            before, self._before = self._before, state.timestamp
            facts = [] if state.loss is None else [f"loss {state.loss.item():.4g}"]
            self._print(state, [*facts, *_speed(before, state)])

    def eval_before_all(self, state: State, logger: Logger) -> None:
        """Note the results of earlier evaluations."""
        self._results = dict(state.metrics)

    def eval_after_all(self, state: State, logger: Logger) -> None:
        """Print the results that are new."""
        self._print(
            state,
            [
                f"{label}/{name} {value:.4g}"
                for label, results in state.metrics.items()
                if results is not self._results.get(label)
                for name, value in results.items()
            ],
        )

    def close(self) -> None:
        """Forget the run."""
        self._due, self._before, self._results = False, None, {}

    def _print(self, state: State, facts: list[str]) -> None:
        now, share = state.timestamp, ""
        if state.max_duration is not None:
            share = f" ({100 * state.elapsed:.0f} %)"
        line = f"epoch {now.epoch}, batch {now.batch}{share}: {', '.join(facts)}"
        print(line, file=self.stream or sys.stdout, flush=True)


def _speed(before: Timestamp | None, state: State) -> list[str]:
    """Describe the speed since an earlier time, and the remaining time."""
    if before is None:
        return []
    seconds = state.timestamp.total_wct - before.total_wct
    batches = state.timestamp.batch - before.batch
    if seconds <= 0 or batches <= 0:
        return []
    facts = [f"{batches / seconds:.3g} batches/s"]
    if state.max_duration is not None:
        done, total = progress(state, state.max_duration)
        earlier, _ = progress(state, state.max_duration, before)
        if done > earlier:
            left = float(total - done) * seconds / float(done - earlier)
            facts.append(f"{timedelta(seconds=round(max(left, 0.0)))} left")
    return facts
