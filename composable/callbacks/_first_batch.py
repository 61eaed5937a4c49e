"""The base class of callbacks that show examples of evaluations."""

from collections.abc import Mapping
from typing import Any

from composable.core.callback import Callback
from composable.core.logger import Logger
from composable.core.state import State


class UsesFirstBatch(Callback):
    """Logs what a subclass keeps of the first batch of each evaluation, once its label is known.

    A subclass defines `_keep` and `_log`, and may set `_shown` before an evaluation.
    """

    _waits, _shown = False, True
    _kept: Any = None
    _results: Mapping[str, Any] = {}

    def eval_start(self, state: State, logger: Logger) -> None:
        """Wait for the first batch."""
        self._waits, self._kept = bool(logger.destinations) and self._shown, None
        self._results = state.metrics

    def eval_after_forward(self, state: State, logger: Logger) -> None:
        """Keep examples of the first batch."""
        if self._waits:
            self._kept, self._waits = self._keep(state), False

    def eval_end(self, state: State, logger: Logger) -> None:
        """Log the examples under the label of the evaluator, which is known now."""
        before, now = self._results, state.metrics
        labels = [label for label in now if now[label] is not before.get(label)]
        if self._kept is not None and labels:
            self._log(labels[0], self._kept, logger)
        self._kept, self._results = None, {}

    def _keep(self, state: State) -> Any:
        raise NotImplementedError

    def _log(self, label: str, kept: Any, logger: Logger) -> None:
        raise NotImplementedError
