"""Callbacks that stop training when an evaluation result calls for it."""

from collections.abc import Mapping
from typing import Any

from composable._support.checks import check_text
from composable._support.warn import warn_user
from composable.core.callback import Callback
from composable.core.control import Control
from composable.core.logger import Logger
from composable.core.result_names import full_name, known_mode, mode_of
from composable.core.state import State


class ComparesResults(Callback):
    """Compares the values of an evaluation result.

    Args:
        argument: The argument of the subclass that names the result, for errors.
        result: The full name of the result, "eval/accuracy", or None for none.
        mode: "min" if lower is better, "max" if higher is better, or None.

    Raises:
        ValueError: `mode` has another value.
    """

    def __init__(self, argument: str, result: str | None, mode: str | None) -> None:
        self.watched_result = argument, result
        self.mode = known_mode(result or "eval/loss", mode)
        self._given_mode = mode

    def declare_modes(self, modes: Mapping[str, str]) -> None:
        """Use the mode that the metric declares, unless one was passed.

        Args:
            modes: The declared modes by the full names of results.

        Raises:
            ValueError: The mode is neither passed nor declared, and the name does not determine it.
        """
        argument, result = self.watched_result
        if result is not None:
            self.mode = mode_of(result, self._given_mode or modes.get(result), name=argument)


class WatchedResult(ComparesResults):
    """Stops training depending on an evaluation result.

    A subclass defines `_is_over`, which is called after every evaluation that computes the result.
    It takes the arguments of `EarlyStopper`.
    """

    def __init__(self, monitor: str, dataloader_label: str | None, mode: str | None) -> None:
        if not isinstance(monitor, str):
            raise TypeError(f"monitor={monitor!r} must be the name of a metric, such as 'loss'.")
        check_text("dataloader_label", dataloader_label)
        if dataloader_label is None and "/" in monitor:
            dataloader_label, _, monitor = full_name("monitor", monitor).partition("/")
        self.monitor = monitor
        self.dataloader_label = dataloader_label or "eval"
        super().__init__("monitor", f"{self.dataloader_label}/{self.monitor}", mode)
        self._results: Any = None

    def eval_before_all(self, state: State, logger: Logger) -> None:
        """Note the results of earlier evaluations."""
        self._results = state.metrics.get(self.dataloader_label)

    def eval_after_all(self, state: State, logger: Logger) -> Control | None:
        """Check the result, and request a stop if it calls for one."""
        results = state.metrics.get(self.dataloader_label)
        if results is None or results is self._results:
            return None  # another evaluator ran
        if self.monitor not in results:
            raise ValueError(
                f"monitor={self.monitor!r} must be a result of the evaluator "
                f"{self.dataloader_label!r}: one of {sorted(results)}."
            )
        mode = mode_of(self.monitor, self.mode)
        return Control.STOP if self._is_over(state, mode, results[self.monitor]) else None

    def fit_end(self, state: State, logger: Logger) -> None:
        """Warn if the evaluator never ran."""
        if self.dataloader_label not in state.metrics:
            ran = sorted(state.metrics)
            advice = f"use one of {ran}" if ran else "none ran; pass an eval_dataloader"
            warn_user(
                f"dataloader_label={self.dataloader_label!r} of {self.name} matches no evaluator "
                f"that ran: {advice}.",
            )

    def _is_over(self, state: State, mode: str, value: float) -> bool:
        raise NotImplementedError
