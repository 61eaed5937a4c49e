"""Write to MLflow."""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from composable._support import strict_json
from composable._support.checks import check_flag, check_text, check_text_keys
from composable._support.paths import write_atomically
from composable.core.logger import Columns, Logger, Rows
from composable.core.state import State
from composable.loggers import _environment as environment
from composable.loggers._back_end import BackEndLogger, LogTime
from composable.loggers._histograms import Histogram

_INVALID = re.compile(r"[^\w\-. :/]")
_LONGEST_PARAMETER = 6000
_MOST_AT_ONCE = 100  # parameters in one request; MLflow allows that many


class MLFlowLogger(BackEndLogger):
    """Writes metrics, parameters, texts, tables and artifacts to a run of MLflow.

    Arguments that are None come from the environment variables of MLflow: `MLFLOW_TRACKING_URI`,
    `MLFLOW_EXPERIMENT_NAME`, `MLFLOW_RUN_ID`, `MLFLOW_TAGS` and `MLFLOW_NESTED_RUN`. With
    `HF_MLFLOW_LOG_ARTIFACTS=true` the folder of checkpoints becomes an artifact at the end of
    training.

    The run is of the status RUNNING while `fit` runs, then FINISHED, or FAILED after an error. A
    parameter of MLflow cannot change, so a later `fit`'s becomes a tag.

    A resumed run continues the run of the checkpoint. MLflow cannot delete values, so those that it
    has are not written again.

    Args:
        experiment_name: The experiment; it is created if it is missing. Default: "Default".
        run_name: The name of the run. Default: MLflow generates one.
        run_id: An existing run to write to.
        tracking_uri: The address of the server or the store, such as "sqlite:///mlflow.db".
        tags: Tags of the run.
        nested: Whether the run is a child of the active run of `mlflow.start_run`.
        flush_interval: Number of records of metrics to buffer, at least 1.

    Raises:
        ModuleNotFoundError: The package mlflow is not installed.

    Example:
        >>> from composable.loggers import MLFlowLogger
        >>> logger = MLFlowLogger("digits", tracking_uri="sqlite:///mlflow.db")
    """

    package = "mlflow"
    extra = "mlflow"

    def __init__(
        self,
        experiment_name: str | None = None,
        run_name: str | None = None,
        *,
        run_id: str | None = None,
        tracking_uri: str | None = None,
        tags: Mapping[str, str] | None = None,
        nested: bool | None = None,
        flush_interval: int = 100,
    ) -> None:
        super().__init__(flush_interval=flush_interval)
        given = {"experiment_name": experiment_name, "run_name": run_name, "run_id": run_id}
        for argument, value in {**given, "tracking_uri": tracking_uri}.items():
            check_text(argument, value)
        check_text_keys("tags", tags)
        if nested is not None:
            check_flag("nested", nested)
        self.experiment_name = experiment_name or environment.text("MLFLOW_EXPERIMENT_NAME")
        self.run_name = run_name
        self.run_id = run_id or environment.text("MLFLOW_RUN_ID")
        self.tracking_uri = tracking_uri
        self.tags = dict(_tags_of_environment() if tags is None else tags)
        self.nested = environment.flag("MLFLOW_NESTED_RUN") if nested is None else nested
        self._client: Any = None
        self._status = "FINISHED"

    def _make_client(self) -> Any:
        from mlflow import MlflowClient  # imported here: it takes more than a second

        return MlflowClient(self.tracking_uri)

    def _open(self, saved: Any) -> None:
        if self._client is None:
            self._client = self._make_client()
        if saved is not None:
            self.run_id = saved
        if self.run_id is None:
            self.run_id = self._create_run()
        else:
            self._client.update_run(self.run_id, status="RUNNING")

    def _create_run(self) -> str:
        name = self.experiment_name or "Default"
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        tags = dict(self.tags)
        if self.nested:
            from mlflow import active_run

            if parent := active_run():
                tags["mlflow.parentRunId"] = parent.info.run_id
        run = self._client.create_run(number, tags=tags, run_name=self.run_name)
        return str(run.info.run_id)

    def _run_state(self) -> Any:
        return self.run_id

    def _steps(self) -> Mapping[str, int]:
        history = partial(self._client.get_metric_history, self.run_id)
        keys = self._client.get_run(self.run_id).data.metrics
        return {key: max(one.step for one in history(key)) for key in keys}

    def _is_new(self, name: str, step: int) -> bool:
        return super()._is_new(_key(name), step)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Open the run."""
        self._status = "FAILED"  # until the end of training
        super().fit_start(state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Note that training ended without an error, and log the checkpoints if requested."""
        self._status = "FINISHED"
        if environment.flag("HF_MLFLOW_LOG_ARTIFACTS"):
            self._log_checkpoints()

    def _release(self) -> None:
        self._client.set_terminated(self.run_id, status=self._status)
        self._status = "FINISHED"

    def _write_metrics(self, records: Sequence[tuple[LogTime, Mapping[str, Any]]]) -> None:
        from mlflow.entities import Metric

        metrics, texts = [], {}
        for moment, values in records:
            for name, value in values.items():
                if isinstance(value, str):
                    texts[_key(name)] = value
                elif value is not None:
                    clock = int(moment.clock * 1000)
                    metrics.append(Metric(_key(name), float(value), clock, moment.step))
        for i in range(0, len(metrics), 1000):  # as many as MLflow takes at once
            self._client.log_batch(self.run_id, metrics=metrics[i : i + 1000])
        for name, text in texts.items():
            self._client.set_tag(self.run_id, name, text)

    def _write_hyperparameters(self, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param, RunTag

        before = self._client.get_run(self.run_id).data.params
        given = {_key(n): str(value)[:_LONGEST_PARAMETER] for n, value in values.items()}
        new = [Param(n, value) for n, value in given.items() if n not in before]
        changed = [RunTag(n, v) for n, v in given.items() if before.get(n, v) != v]
        for i in range(0, len(new), _MOST_AT_ONCE):
            self._client.log_batch(self.run_id, params=new[i : i + _MOST_AT_ONCE])
        if changed:
            self._client.log_batch(self.run_id, tags=changed)

    def _write_images(self, name: str, pictures: Sequence[bytes], moment: LogTime) -> None:
        for i, picture in enumerate(pictures):
            self._write_file("images", f"{_file(name)}-step{moment.step}-{i}.png", picture)

    def _write_histogram(self, name: str, histogram: Histogram, moment: LogTime) -> None:
        content = json.dumps(histogram.counted).encode()
        self._write_file("histograms", f"{_file(name)}-step{moment.step}.json", content)

    def _write_text(self, name: str, text: str, moment: LogTime) -> None:
        self._write_file("texts", f"{_file(name)}-step{moment.step}.txt", text.encode())

    def _write_table(self, name: str, table: tuple[Columns, Rows], moment: LogTime) -> None:
        content = json.dumps(dict(zip(("columns", "data"), table, strict=True)))
        self._write_file("tables", f"{_file(name)}-step{moment.step}.json", content.encode())

    def _write_file(self, folder: str, name: str, content: bytes) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            path = write_atomically(Path(temporary, name), content)
            self._client.log_artifact(self.run_id, str(path), folder)

    def _write_artifact(self, name: str, path: Path) -> None:
        if path.is_dir():
            self._client.log_artifacts(self.run_id, str(path), _file(name))
        else:
            self._client.log_artifact(self.run_id, str(path), _file(name))


def _key(name: str) -> str:
    """Replace the characters that MLflow does not allow in names."""
    return _INVALID.sub("_", name)


def _file(name: str) -> str:
    return quote(name, safe="")


def _tags_of_environment() -> dict[str, str]:
    given = environment.text("MLFLOW_TAGS")
    if given is None:
        return {}
    try:
        tags = strict_json.load(given, "MLFLOW_TAGS")
    except ValueError:
        tags = None
    if not isinstance(tags, dict):
        raise ValueError(
            f"the environment variable MLFLOW_TAGS={given!r} must be a JSON object, such as "
            '\'{"team": "vision"}\'.'
        )
    return {str(name): str(value) for name, value in tags.items()}
