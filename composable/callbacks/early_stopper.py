"""Stop training when a metric has stopped improving."""

from collections.abc import Mapping
from fractions import Fraction
from types import NoneType
from typing import TYPE_CHECKING, Any

from composable.callbacks._results import full_name, is_better, known_mode, mode_of
from composable.core._warnings import warn_user
from composable.core.callback import Callback, check_keys
from composable.core.control import Control
from composable.core.time import Time, TimeLike, check_time, progress
from composable.functional._checks import check_range

if TYPE_CHECKING:
    from composable.core.logger import Logger
    from composable.core.state import State

__all__ = ["EarlyStopper"]


class EarlyStopper(Callback):
    """Stops training when an evaluation result has not improved for longer than `patience`.

    The result is checked after every evaluation during training. It improves if it is better than
    the best one by more than `min_delta`; NaN never does. With one evaluation per epoch and the
    default patience of one epoch, training stops after the second epoch in a row without
    improvement.

    Args:
        monitor: The name of the result: "accuracy", or with the label of its evaluator,
            "eval/accuracy".
        dataloader_label: The label of the evaluator. Default: the one in `monitor`, or "eval".
        mode: "min" if lower is better, "max" if higher is better. Default: what the metric declares
            as `higher_is_better`, or determined by the name of the result, such as "loss",
            "error", "accuracy" or "f1".
        min_delta: The minimum improvement, at least 0.
        patience: The maximum time without improvement: "3ep", "500ba", "0.1dur".

    Raises:
        ValueError: An argument has an invalid value, nothing determines the mode, or the evaluator
            has no result of that name.

    Example:
        >>> from composable.callbacks import EarlyStopper
        >>> stopper = EarlyStopper("accuracy", patience="3ep")
        >>> stopper.mode
        'max'
    """

    def __init__(
        self,
        monitor: str,
        *,
        dataloader_label: str | None = None,
        mode: str | None = None,
        min_delta: float = 0.0,
        patience: TimeLike = "1ep",
    ) -> None:
        if not isinstance(monitor, str):
            raise TypeError(f"monitor={monitor!r} must be the name of a metric, such as 'loss'.")
        if not (dataloader_label is None or isinstance(dataloader_label, str)):
            raise TypeError(f"dataloader_label={dataloader_label!r} must be a str or None.")
        self.mode = known_mode(monitor, mode)
        self._given_mode = mode
        check_range("min_delta", min_delta, 0)
        if dataloader_label is None and "/" in monitor:
            dataloader_label, _, monitor = full_name("monitor", monitor).partition("/")
        self.monitor = monitor
        self.dataloader_label = dataloader_label or "eval"
        self.min_delta = min_delta
        self.patience: Time = check_time("patience", patience)
        self.best: float | None = None
        """The best result so far."""
        self._since: Any = None
        self._results: Any = None

    def declare_modes(self, modes: Mapping[str, str]) -> None:
        """Use the mode that the metric declares, unless one was passed.

        Args:
            modes: The declared modes by the full names of results.

        Raises:
            ValueError: The mode is neither passed nor declared, and the name does not determine it.
        """
        name = f"{self.dataloader_label}/{self.monitor}"
        self.mode = mode_of(name, self._given_mode or modes.get(name))

    def fit_start(self, state: "State", logger: "Logger") -> None:
        """Discard the results of an earlier run."""
        if state.timestamp.batch == 0:
            self.best = self._since = None

    def eval_before_all(self, state: "State", logger: "Logger") -> None:
        """Note the results of earlier evaluations."""
        self._results = state.metrics.get(self.dataloader_label)

    def eval_after_all(self, state: "State", logger: "Logger") -> Control | None:
        """Check the result, and request a stop if the patience is exhausted."""
        results = state.metrics.get(self.dataloader_label)
        if results is None or results is self._results:
            return None  # another evaluator ran
        if self.monitor not in results:
            raise ValueError(
                f"monitor={self.monitor!r} must be a result of the evaluator "
                f"{self.dataloader_label!r}: one of {sorted(results)}."
            )
        now, patience = progress(state, self.patience)
        mode = mode_of(self.monitor, self.mode)
        better = is_better(mode, results[self.monitor], self.best, self.min_delta)
        if self._since is None or better:
            self._since = now
        if better:
            self.best = results[self.monitor]
        return Control.STOP if now - self._since > patience else None

    def fit_end(self, state: "State", logger: "Logger") -> None:
        """Warn if the evaluator never ran."""
        if self._since is None:
            warn_user(
                f"dataloader_label={self.dataloader_label!r} of EarlyStopper matches no evaluator "
                f"that ran: use one of {sorted(state.metrics)}.",
                UserWarning,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the best result, and the time at which it was reached."""
        return {"best": self.best, "since": self._since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the best result and its time.

        Raises:
            ValueError: A value is neither a number nor None.
        """
        check_keys(self, state)
        for name, value in state.items():
            if isinstance(value, bool) or not isinstance(value, (int, float, Fraction, NoneType)):
                raise ValueError(f"{name} must be a number or None, not a {type(value).__name__}.")
        self.best, self._since = state["best"], state["since"]
