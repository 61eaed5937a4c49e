"""Saves checkpoints."""

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composable._support.checks import check_flags, check_one_of
from composable._support.warn import warn_user
from composable.callbacks._watched_result import ComparesResults
from composable.checkpoint.filters import check_patterns
from composable.core.callback import AttachedRun, check_state
from composable.core.control import Control
from composable.core.event import Event
from composable.core.intervals import IntervalLike, check_interval, is_due
from composable.core.logger import Logger
from composable.core.result_names import find_result, full_name
from composable.core.state import State
from composable.core.time import Timestamp
from composable.resume.manager import FIELDS, CheckpointManager
from composable.storage.folders import as_folder


class CheckpointSaver(ComparesResults):
    """Saves checkpoints of a run.

    The `Trainer` builds one from its `save_*` arguments. Pass several to save to several folders:
    for example, every hundred batches with the last two kept, and every tenth epoch.

    A checkpoint is a folder that is written atomically. An old checkpoint is deleted only after its
    replacement is on disk. The best checkpoint is kept in addition to the most recent ones. Links,
    checkpoints of other runs, and checkpoints to which other files were added are never deleted. A
    damaged checkpoint in the place of a new one is renamed: ep1-ba5.damaged-1.

    A batch may be saved twice: when an interval ends with it, and after the evaluation at the end
    of its epoch. If only some checkpoints are kept, the second replaces the first.

    Args:
        folder: The folder of the checkpoints, or its URL; it is created.
        save_interval: When to save: "1ep", "100ba", a function `(state, event) -> bool`, or None
            to save only when a callback requests it with `Control.SAVE`. Unless it is None, the
            end of training is saved too.
        filename: The name of a checkpoint, a format string with the fields {epoch}, {batch},
            {sample}, {token} and {iteration}.
        num_checkpoints_to_keep: Number of most recent checkpoints of this run to keep, or None to
            keep all.
        overwrite: Replace checkpoints of another run that have the same name.
        weights_only: Save only the model, with the weights with which it is evaluated. Training
            cannot resume from such a checkpoint.
        ignore_keys: Patterns of paths to exclude: "averages/EMA", "optimizers".
        background: Copy the state, and write it in a background thread.
        on_error: "raise" to raise if a checkpoint cannot be written, "warn" to warn and continue.
        metric: The evaluation result that selects the best checkpoint, by the name under which it
            is logged: "metrics/eval/accuracy", or short "eval/accuracy" or "accuracy". A better one
            is saved after its evaluation, whatever the interval.
        mode: Whether a higher ("max") or a lower ("min") metric is better. Default: determined by
            `higher_is_better` of the metric, or by its name, such as "loss", "error", "accuracy" or
            "f1".

    Raises:
        ValueError: An argument has an invalid value.
        TypeError: An argument has the wrong type.

    Example:
        >>> from composable.callbacks import CheckpointSaver
        >>> saver = CheckpointSaver("runs/a", save_interval="100ba", num_checkpoints_to_keep=2)
        >>> saver.filename
        'ep{epoch}-ba{batch}'
    """

    def __init__(  # noqa: PLR0913 (public options)
        self,
        folder: str | Path,
        *,
        save_interval: IntervalLike = "1ep",
        filename: str = "ep{epoch}-ba{batch}",
        num_checkpoints_to_keep: int | None = None,
        overwrite: bool = False,
        weights_only: bool = False,
        ignore_keys: Sequence[str] = (),
        background: bool = False,
        on_error: str = "raise",
        metric: str | None = None,
        mode: str | None = None,
    ) -> None:
        self.folder = as_folder("folder", folder)
        self.save_interval = check_interval("save_interval", save_interval)
        self.filename = _check_filename(filename)
        self.num_checkpoints_to_keep = _check_keep(num_checkpoints_to_keep)
        check_flags(overwrite=overwrite, weights_only=weights_only, background=background)
        check_one_of("on_error", on_error, ("raise", "warn"))
        self.overwrite, self.weights_only = overwrite, weights_only
        self.background, self.on_error = background, on_error
        self.ignore_keys = check_patterns("ignore_keys", ignore_keys)
        self.metric = None if metric is None else full_name("metric", metric)
        super().__init__("metric", self.metric, mode)
        self.manager = CheckpointManager(self)
        """Writes the checkpoints."""
        self._seen: Timestamp | None = None
        self._ran = False

    # --- when ---

    def attach(self, run: AttachedRun) -> None:
        """Let the run write the checkpoints that are requested."""
        run.checkpoints.managers.append(self.manager)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Create the folder."""
        self.manager.make_folder()

    def batch_start(self, state: State, logger: Logger) -> None:
        """Discard the metric of earlier weights."""
        self.manager.measured = None

    def eval_end(self, state: State, logger: Logger) -> None:
        """Record the metric."""
        if self.metric is not None:
            measured = find_result("metric", self.metric, state.metrics)
            if measured is not None:
                self.manager.measured, self._ran = measured, True

    def fit_end(self, state: State, logger: Logger) -> None:
        """Warn if the evaluator of the metric never ran."""
        if self.metric is not None and self.manager.best is None and not self._ran:
            warn_user(
                f"metric={self.metric!r} of CheckpointSaver is a result of no evaluator that ran, "
                f"so no best checkpoint was saved; evaluators: {sorted(state.metrics)}.",
            )

    def batch_checkpoint(self, state: State, logger: Logger) -> Control | None:
        """Request a save if one is due."""
        return self._request(state.previous_timestamp, state, Event.BATCH_END)

    def epoch_checkpoint(self, state: State, logger: Logger) -> Control | None:
        """Request a save if one is due."""
        return self._request(self._seen or state.previous_timestamp, state, Event.EPOCH_END)

    def _request(self, before: Timestamp, state: State, event: Event) -> Control | None:
        self._seen = state.timestamp
        due = is_due(self.save_interval, state.evolve(timestamp=before), state, event)
        self.manager.wanted |= due or self.manager.improved
        return Control.SAVE if self.manager.wanted else None

    def close(self) -> None:
        """Wait for the checkpoint that is being written."""
        self.manager.close()

    # --- its own state ---

    def state_dict(self) -> dict[str, Any]:
        """Return the names of the kept checkpoints and the best one."""
        return {**self.manager.state_dict(), "seen": self._seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the names of the kept checkpoints and the best one.

        Raises:
            ValueError: A name is a path, or another value is not what `state_dict` returns.
        """
        check_state(self, state, {"seen": Timestamp | None})
        self.manager.load_state_dict(state)
        self._seen = state["seen"]


# --- arguments ---


def _check_filename(filename: Any) -> str:
    if not isinstance(filename, str):
        raise TypeError(f"filename={filename!r} must be a str, such as 'ep{{epoch}}-ba{{batch}}'.")
    allowed = ", ".join(f"{{{field}}}" for field in FIELDS)
    try:
        fields = {
            field for _, field, _, _ in string.Formatter().parse(filename) if field is not None
        }
        example = filename.format(**dict.fromkeys(FIELDS, 1))
    except (ValueError, KeyError, IndexError, AttributeError):
        fields, example = {"?"}, ""
    if not fields <= set(FIELDS):
        raise ValueError(f"filename={filename!r} must have no fields other than {allowed}.")
    if not fields & {"batch", "sample", "epoch", "token"}:
        raise ValueError(
            f"filename={filename!r} must be unique for each checkpoint: include {{batch}}."
        )
    if "/" in example or "\\" in example or example.startswith("."):
        raise ValueError(
            f"filename={filename!r} must be a name, not a path: set the folder with folder=."
        )
    return filename


def _check_keep(count: Any) -> int | None:
    if count is None or (isinstance(count, int) and not isinstance(count, bool) and count >= 1):
        return count
    if isinstance(count, int) and count == -1:
        return None
    raise ValueError(
        f"num_checkpoints_to_keep={count!r} must be a positive integer, or None to keep all."
    )
