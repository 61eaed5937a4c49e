"""Callbacks that act between batches, and their intervals."""

from torch import nn

from composable.core.callback import AttachedRun, Callback
from composable.core.event import Event
from composable.core.intervals import IntervalLike, check_interval, has_completed
from composable.core.logger import Logger
from composable.core.state import State
from composable.functional import with_tensors


class AtIntervals(Callback):
    """Acts after each batch that completes an interval; a subclass defines `_act`."""

    def __init__(self, interval: IntervalLike) -> None:
        self.interval = check_interval("interval", interval)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Act if the interval has passed."""
        if has_completed(self.interval, state, Event.BATCH_END):
            self._act(state, logger)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Act if the interval has passed, where the epoch had no known length."""
        if has_completed(self.interval, state, Event.EPOCH_END):
            self._act(state, logger)

    def _act(self, state: State, logger: Logger) -> None:
        raise NotImplementedError


class UsesEvaluatedModel(AtIntervals):
    """Uses the model with the weights that an evaluation would measure."""

    _run: AttachedRun | None = None

    def attach(self, run: AttachedRun) -> None:
        """Receive the run, which determines the evaluated weights."""
        self._run = run

    def fit_start(self, state: State, logger: Logger) -> None:
        """Check that this process has the whole model.

        Raises:
            ValueError: The parameters are divided among processes.
        """
        if self._run is not None:
            self._run.check_whole(
                f"{self.name} cannot use a model whose parameters are divided among processes, as "
                "by FSDP; load a checkpoint in one process, and use it there."
            )

    def _evaluated(self, state: State) -> nn.Module:
        if self._run is not None:
            return self._run.evaluated_model(state)
        averages = list(state.averages.values())
        return with_tensors(state.model, averages[-1]) if averages else state.model
