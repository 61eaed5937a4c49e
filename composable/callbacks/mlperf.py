"""Write the log of an MLPerf Training result."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composable._support.checks import (
    as_path,
    check_flags,
    check_one_of,
    check_range,
    check_text_keys,
)
from composable._support.extras import needs
from composable._support.paths import check_no_link, is_stream_file, open_to_write, truncate
from composable.callbacks._watched_result import ComparesResults
from composable.core.callback import check_state
from composable.core.control import Control
from composable.core.logger import Logger
from composable.core.result_names import find_result, full_name, mode_of
from composable.core.results import is_better
from composable.core.state import State
from composable.core.stateful import Count
from composable.distributed import Processes


class MLPerfCallback(ComparesResults):
    """Writes the log of a result for the MLPerf Training benchmark, with `mlperf_logging`.

    The log has the intervals of initialization, of the run, of epochs and of evaluations, the
    results of `metric`, the seed, the batch size of the first batch, and the numbers of examples of
    the first epoch and of the first evaluation. The run ends in the log when `metric` reaches
    `target`, with the status "success", or with the end of training, with "aborted".
    `python -m mlperf_logging.compliance_checker --ruleset 4.0.0 PATH` checks the log. What else a
    benchmark requires, such as the name of the optimizer, is passed as `values`.

    A resumed run appends to the log. With several processes, rank 0 writes it, and the number of
    examples of an evaluation is not known: pass `values={"eval_samples": ...}`. Use one `fit` a
    run.

    Args:
        path: The log, such as "result_0.txt"; its folder is created. An existing file is an error,
            unless the run that wrote it is resumed.
        target: The value of `metric` that ends the run.
        metric: The evaluation result: "eval/accuracy".
        mode: Whether a higher ("max") or a lower ("min") metric is better. Default: what the metric
            declares as `higher_is_better`, or determined by its name.
        benchmark: The name of the benchmark in the rules: "resnet", "bert".
        division: "open" or "closed".
        submitter: Your organization.
        platform: The name of the system.
        status: "onprem", "cloud", "preview" or "research".
        cache_cleared: Whether you cleared the caches of the system before the run.
        values: Further entries of the log, by their keys in the rules: `{"opt_name": "sgd"}`. They
            replace entries of this callback.
        stop_at_target: Whether to stop training when the target is reached.

    Raises:
        ValueError: An argument has an invalid value.
        ImportError: `mlperf_logging` is missing.
        FileExistsError: In `fit`: the file exists.

    Example:
        >>> from composable.callbacks import MLPerfCallback
        >>> log = MLPerfCallback("result_0.txt", target=0.759, submitter="us", platform="one")
        >>> log.metric
        'eval/accuracy'
    """

    def __init__(  # noqa: PLR0913 (public options)
        self,
        path: str | Path,
        *,
        target: float,
        metric: str = "eval/accuracy",
        mode: str | None = None,
        benchmark: str = "resnet",
        division: str = "open",
        submitter: str,
        platform: str,
        status: str = "onprem",
        cache_cleared: bool = False,
        values: Mapping[str, Any] | None = None,
        stop_at_target: bool = False,
    ) -> None:
        self.path = as_path("path", path)
        check_range("target", target, -float("inf"))
        self.target, self.metric = target, full_name("metric", metric)
        super().__init__("metric", self.metric, mode)
        check_one_of("division", division, ("open", "closed"))
        check_one_of("status", status, ("onprem", "cloud", "preview", "research"))
        check_flags(cache_cleared=cache_cleared, stop_at_target=stop_at_target)
        self.stop_at_target = stop_at_target
        self._submission = {
            "submission_benchmark": _check_text("benchmark", benchmark),
            "submission_division": division,
            "submission_org": _check_text("submitter", submitter),
            "submission_platform": _check_text("platform", platform),
            "submission_status": status,
        }
        self._cache_cleared = cache_cleared
        check_text_keys("values", values)
        self._values = dict(values or {})
        with needs("MLPerfCallback", "mlperf"):
            from mlperf_logging.mllog.mllog import MLLogger
        self._mllogger: Any = MLLogger
        self._file: Any = None
        self._built = _now()
        self._once: list[str] = []
        self._size: int | None = None
        self._before: Any = None
        self._examples = 0

    # --- the run ---

    def init(self, state: State, logger: Logger) -> None:
        """Note when initialization starts."""
        self._built = _now()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Log the submission, and the start of the run."""
        if not Processes.current().is_main:
            return
        self._open()
        if "run_start" in self._once:
            return
        self._event("cache_clear", self._cache_cleared, time_ms=self._built)
        self._log("start", "init_start", time_ms=self._built)
        for key, value in {**self._submission, "seed": state.key.seed, **self._values}.items():
            self._event(key, value)
        self._log("end", "init_stop")
        self._log("start", "run_start")
        self._once.append("run_start")

    def fit_end(self, state: State, logger: Logger) -> None:
        """Log the end of a run that has not reached the target."""
        self._stop("aborted", state)

    def _stop(self, status: str, state: State) -> None:
        if self._running:
            self._log("end", "run_stop", status=status, samples_count=state.timestamp.sample)
            self._once.append("run_stop")

    @property
    def _running(self) -> bool:
        return self._file is not None and "run_stop" not in self._once

    # --- epochs ---

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Log the start of an epoch."""
        self._interval("start", "epoch_start", state.timestamp.epoch + 1, state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Log the size of the first batch."""
        if "global_batch_size" not in self._once:
            batch = state.timestamp.sample - state.previous_timestamp.sample
            self._event("global_batch_size", batch)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Log the end of an epoch, and the number of examples of the first."""
        now = state.timestamp
        if now.epoch == 1:
            self._event("train_samples", now.sample)
        self._interval("end", "epoch_stop", now.epoch, state)

    # --- evaluations ---

    def eval_before_all(self, state: State, logger: Logger) -> None:
        """Log the start of an evaluation."""
        self._interval("start", "eval_start", _epoch(state), state)

    def eval_start(self, state: State, logger: Logger) -> None:
        """Note earlier results."""
        self._before, self._examples = state.metrics, 0

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Count the examples."""
        self._examples += state.batch_spec.count(state.batch)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Log the result."""
        label = self.metric.partition("/")[0]
        if state.metrics.get(label) is not self._before.get(label):
            if not Processes.current().several:  # each process evaluates some of the batches
                self._event("eval_samples", self._examples)
            value = find_result("metric", self.metric, state.metrics)
            if self._running:
                self._log("event", "eval_accuracy", value, **_position(_epoch(state), state))

    def eval_after_all(self, state: State, logger: Logger) -> Control | None:
        """Log the end of an evaluation, and of the run if the target is reached."""
        self._interval("end", "eval_stop", _epoch(state), state)
        value = find_result("metric", self.metric, state.metrics)
        mode = mode_of(self.metric, self.mode, name="metric")
        if value is None or not (value == self.target or is_better(mode, value, self.target)):
            return None
        self._stop("success", state)
        return Control.STOP if self.stop_at_target else None

    # --- the file ---

    def _open(self) -> None:
        if self._file is not None:
            return
        check_no_link(self.path)
        exists = self.path.exists() and not is_stream_file(self.path)
        if self._size is None and exists and "run_start" not in self._once:
            raise FileExistsError(
                f"path={str(self.path)!r} exists; pass the path of a new result, or resume the run "
                "that wrote it."
            )
        if self._size is not None and not is_stream_file(self.path):
            _truncate(self.path, self._size)
            self._size = None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        log = logging.Logger("mlperf")  # of its own: that of mllog is shared by the process
        log.addHandler(logging.StreamHandler(open_to_write(self.path, "a", encoding="utf-8")))
        self._file = self._mllogger(log)

    def _log(
        self, kind: str, key: str, value: Any = None, *, time_ms: Any = None, **metadata: Any
    ) -> None:
        getattr(self._file, kind)(key, value, metadata=metadata or None, time_ms=time_ms)

    def _event(self, key: str, value: Any, time_ms: int | None = None) -> None:
        """Log an entry that a log has once, unless it has it."""
        if self._file is not None and key not in self._once:
            self._log("event", key, value, time_ms=time_ms)
            self._once.append(key)

    def _interval(self, kind: str, key: str, epoch: int, state: State) -> None:
        if self._running:
            self._log(kind, key, **_position(epoch, state))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            for handler in self._file.logger.handlers:
                handler.stream.close()
            self._file = None

    # --- resuming ---

    def state_dict(self) -> dict[str, Any]:
        """Return the length of the file, and what it has that a log has once."""
        size = self.path.stat().st_size if self._file is not None else 0
        return {"bytes": size, "once": list(self._once)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the length of the file, to which the next `fit` truncates it.

        Raises:
            ValueError: A value is not what `state_dict` returns.
        """
        check_state(self, state, {"bytes": Count, "once": list[str]})
        self.close()
        self._size, self._once = state["bytes"], list(state["once"])


def _epoch(state: State) -> int:
    """Return the number of the epoch that has just ended or is in progress, from 1."""
    now = state.timestamp
    return now.epoch + (now.batch_in_epoch > 0)


def _position(epoch: int, state: State) -> dict[str, int]:
    return {"epoch_num": epoch, "samples_count": state.timestamp.sample}


def _now() -> int:
    return int(time.time() * 1000)


def _truncate(path: Path, size: int) -> None:
    """Remove the lines after a checkpoint.

    Raises:
        ValueError: The file is not the one that the run wrote.
    """
    has = path.stat().st_size if path.exists() else 0
    if has < size:
        raise ValueError(
            f"path={str(path)!r} has {has} bytes, but had {size} when the checkpoint was saved; "
            "use the file of that run."
        )
    if path.exists():
        truncate(path, size)


def _check_text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}={value!r} must be a name of at least one letter.")
    return value
