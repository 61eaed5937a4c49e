"""Estimate the remaining time of a run."""

import time
from types import GenericAlias
from typing import Any, ClassVar

from composable._support.checks import check_count
from composable.callbacks._monitor import Monitor
from composable.core.intervals import IntervalLike
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.stateful import list_of_numbers
from composable.core.time import progress


class RuntimeEstimator(Monitor):
    """Logs how long the rest of a run will take, in seconds.

    It logs `time/remaining_estimate_train`, `time/remaining_estimate_val` and their sum,
    `time/remaining_estimate`. Training is expected to continue at its mean speed so far. Each
    evaluator is expected to run as often as before, and to take its mean time; one that has not run
    yet is not included. Saving checkpoints and logging are not included either. A run without a
    `max_duration`, or one in epochs whose first epoch of unknown length has not ended, has no
    estimate.

    Args:
        interval: When to log: "10ba", "1ep", a function `(state, event) -> bool`, or None for
            never.
        skip_batches: The number of batches at the start of the run that do not count towards the
            mean speed, because they are slower, at least 0.

    Raises:
        ValueError: An argument has an invalid value.
        TypeError: An argument has the wrong type.

    Example:
        >>> from composable import Trainer
        >>> from composable.callbacks import RuntimeEstimator
        >>> from composable.loggers import InMemoryLogger
        >>> trainer = Trainer(
        ...     torch.nn.Linear(4, 3),
        ...     train_dataloader=[(torch.randn(8, 4), torch.randint(3, (8,)))] * 4,
        ...     max_duration="1ep",
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        ...     callbacks=RuntimeEstimator("2ba"),
        ...     loggers=InMemoryLogger(),
        ...     progress_bar=False,
        ... )
        >>> _ = trainer.fit()
        >>> first, last = trainer.history.series("time/remaining_estimate")
        >>> first > last == 0
        True
    """

    _saved_attributes: ClassVar = {
        "_unit": str | None,
        "_start": list_of_numbers(2, optional=True),
        "_latest": list_of_numbers(2),
        "_evaluations": GenericAlias(dict, (str, list_of_numbers(3))),
    }

    def __init__(self, interval: IntervalLike = "10ba", *, skip_batches: int = 1) -> None:
        super().__init__(interval)
        check_count("skip_batches", skip_batches)
        self.skip_batches = skip_batches
        self._start: list[Any] | None = None
        """Progress and seconds of training after the skipped batches."""
        self._latest: list[Any] = [0, 0.0]
        """Progress and seconds of training when the progress last changed."""
        self._evaluations: dict[str, list[Any]] = {}
        """By evaluator: how often it ran, its seconds in all, and the progress at its last run."""
        self._unit: str | None = None
        self._results: dict[str, Any] | None = None
        self._began = 0.0

    def fit_start(self, state: State, logger: Logger) -> None:
        """Discard the measurements of an earlier run, and of a duration in another unit."""
        unit = None if state.max_duration is None else state.max_duration.unit.value
        if state.timestamp.batch == 0 or unit != self._unit:
            self._unit, self._start, self._latest, self._evaluations = unit, None, [0, 0.0], {}
        self._measure(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Log the estimate."""
        self._measure(state)
        estimates = self._estimate(state) if self._due else None
        if estimates is not None:
            training, evaluation = estimates
            self._metrics = {
                "time/remaining_estimate": training + evaluation,
                "time/remaining_estimate_train": training,
                "time/remaining_estimate_val": evaluation,
            }
        super().batch_end(state, logger)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Measure the end of an epoch of unknown length."""
        self._measure(state)

    def eval_before_all(self, state: State, logger: Logger) -> None:
        """Note the results of earlier evaluations."""
        self._results = dict(state.metrics)

    def eval_start(self, state: State, logger: Logger) -> None:
        """Start the clock of an evaluator."""
        self._began = time.perf_counter()

    def eval_end(self, state: State, logger: Logger) -> None:
        """Add the seconds of the evaluator whose results are new."""
        if self._results is None or state.max_duration is None:
            return  # an evaluation outside of training
        seconds, (done, _) = time.perf_counter() - self._began, progress(state, state.max_duration)
        for label, results in state.metrics.items():
            if results is not self._results.get(label):
                count, before, _ = self._evaluations.get(label, [0, 0.0, 0])
                self._evaluations[label] = [count + 1, before + seconds, done]
        self._results = dict(state.metrics)

    def eval_after_all(self, state: State, logger: Logger) -> None:
        """Ignore evaluations outside of training."""
        self._results = None

    def close(self) -> None:
        """Discard the start of an evaluation that did not end."""
        super().close()
        self._began, self._results = 0.0, None

    def _measure(self, state: State) -> None:
        """Record the progress, if it changed since the last batch."""
        if state.max_duration is None:
            return
        (done, _), now = progress(state, state.max_duration), state.timestamp
        if done != self._latest[0]:
            self._latest = [done, now.total_wct]
        if self._start is None and now.batch >= self.skip_batches:
            self._start = [done, now.total_wct]

    def _estimate(self, state: State) -> tuple[float, float] | None:
        """Return the remaining seconds of training and of evaluation, or None if unknown."""
        if state.max_duration is None or self._start is None:
            return None
        (first, began), (done, ended) = self._start, self._latest
        _, total = progress(state, state.max_duration)
        if done <= first:
            return None
        left = float(total - done) * (ended - began) / float(done - first)
        training = max(left - (state.timestamp.total_wct - ended), 0.0)
        evaluation = 0.0
        for count, seconds, last in self._evaluations.values():
            if last > 0:
                evaluation += seconds / count * int(float(total - last) / (float(last) / count))
        return training, evaluation
