"""Write to Comet."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composable._support.checks import (
    as_path,
    check_one_of,
    check_text,
    check_text_keys,
    check_texts,
)
from composable.core.logger import Columns, Logger, Rows
from composable.core.state import State
from composable.loggers import _environment as environment
from composable.loggers._back_end import HostedRunLogger, LogTime, last_steps
from composable.loggers._histograms import Histogram
from composable.loggers._offline import archive_killed, comet_steps

# An observer of training reads what it is given, and not the code, the arguments or the machine.
_OFF: dict[str, Any] = {
    "log_code": False,
    "log_graph": False,
    "auto_param_logging": False,
    "auto_metric_logging": False,
    "auto_output_logging": False,
    "parse_args": False,
    "log_env_details": False,
    "log_git_metadata": False,
    "log_git_patch": False,
    "display_summary_level": 0,
}


class CometLogger(HostedRunLogger):
    """Writes everything that is logged to an experiment of Comet.

    Arguments that are None come from the environment variables `COMET_PROJECT_NAME`, `COMET_MODE`
    ("ONLINE", "OFFLINE" or "DISABLED") and `COMET_OFFLINE_DIRECTORY`. Without a mode, the
    experiment is online if there is an API key, and offline otherwise: an archive is written when
    it ends, and `comet upload` uploads it. With `COMET_LOG_ASSETS=true` the folder of checkpoints
    is logged at the end of training.

    The experiment stays open between calls, until `finish`, or until the logger or the process
    ends.

    A resumed run continues the experiment of the checkpoint, offline with a further archive. Steps
    that an archive in the folder already has are not written again. The package writes an archive
    only at the end; what a killed process logged offline is in a temporary folder until then, of
    which a resume on the same machine makes an archive.

    Args:
        project: The project. Default: "composable".
        workspace: The workspace.
        name: The name of the experiment.
        mode: "online", "offline" or "disabled".
        offline_directory: The folder of archives. Default: `comet`.
        tags: The tags of the experiment.
        experiment_kwargs: Further arguments of the experiment, such as `{"log_code": True}`. By
            default the package collects nothing by itself.
        flush_interval: Number of records of metrics to buffer, at least 1.

    Raises:
        ModuleNotFoundError: The package comet_ml is not installed.

    Example:
        >>> from composable.loggers import CometLogger
        >>> logger = CometLogger("digits", mode="offline")
    """

    package = "comet_ml"
    extra = "comet"
    _ends_by = "end"

    def __init__(
        self,
        project: str | None = None,
        *,
        workspace: str | None = None,
        name: str | None = None,
        mode: str | None = None,
        offline_directory: str | Path | None = None,
        tags: Sequence[str] = (),
        experiment_kwargs: Mapping[str, Any] | None = None,
        flush_interval: int = 100,
    ) -> None:
        super().__init__(flush_interval=flush_interval)
        for argument, value in {"project": project, "workspace": workspace, "name": name}.items():
            check_text(argument, value)
        check_texts("tags", tags)
        check_text_keys("experiment_kwargs", experiment_kwargs)
        self.project = project or environment.text("COMET_PROJECT_NAME") or "composable"
        self.workspace, self.name_of_experiment, self.tags = workspace, name, tuple(tags)
        chosen = (environment.text("COMET_MODE") or "").lower() or None if mode is None else mode
        if chosen is not None:
            check_one_of("mode", chosen, ("online", "offline", "disabled"))
        self.mode = chosen
        default = environment.text("COMET_OFFLINE_DIRECTORY") or "comet"
        folder = default if offline_directory is None else offline_directory
        self.offline_directory = as_path("offline_directory", folder)
        self._logs_assets = environment.flag("COMET_LOG_ASSETS")
        self._experiment_kwargs = {**_OFF, **(experiment_kwargs or {})}
        self._is_disabled = self.mode == "disabled"
        self._key: str | None = None

    @property
    def experiment(self) -> Any:
        """The experiment of the package, or None before the first record."""
        return self.run

    def _begin(self, saved: Any) -> bool:
        import comet_ml  # imported here: it takes a second

        has_key = comet_ml.config.get_config("comet.api_key") is not None
        mode = self.mode or ("online" if has_key else "offline")
        options = {**self._experiment_kwargs, "workspace": self.workspace}
        self._is_offline = mode == "offline"
        if self._is_offline:
            self.offline_directory.mkdir(parents=True, exist_ok=True)
            options["offline_directory"] = str(self.offline_directory)
        if saved is not None:
            self._key = saved["key"]
            self._recover(Path(saved["folder"]))
        existing = self._key is not None
        if existing:
            options["previous_experiment"] = self._key
        kind = {
            ("online", False): comet_ml.Experiment,
            ("online", True): comet_ml.ExistingExperiment,
            ("offline", False): comet_ml.OfflineExperiment,
            ("offline", True): comet_ml.ExistingOfflineExperiment,
        }[mode, existing]
        self.run = kind(project_name=self.project, **options)
        self._key = self.experiment.get_key()
        if not existing and self.name_of_experiment is not None:
            self.experiment.set_name(self.name_of_experiment)
        if not existing and self.tags:
            self.experiment.add_tags(list(self.tags))
        return True

    def _run_state(self) -> Any:
        return {"key": self._key, "folder": str(self.experiment.tmpdir)}

    def _steps(self) -> Mapping[str, int]:
        archives = self.offline_directory.glob(f"{self._key}*.zip") if self._is_offline else ()
        # A message of this process may not be on disk yet.
        return last_steps(self._written, *map(comet_steps, archives))

    def _recover(self, folder: Path) -> None:
        """Make an archive of what a killed process left in its temporary folder."""
        about = {
            "offline_id": self._key,
            "project_name": self.project,
            "workspace": self.workspace,
            "tags": list(self.tags),
        }
        archive_killed(folder, self.offline_directory / f"{self._key}-{folder.name}.zip", about)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Log the folder of checkpoints, if requested."""
        if self._logs_assets:
            self._log_checkpoints()

    # --- writing ---

    def _write_metrics(self, records: Sequence[tuple[LogTime, Mapping[str, Any]]]) -> None:
        for moment, values in records:
            epoch = moment.timestamp.epoch
            for name, value in values.items():
                if isinstance(value, str):
                    self.experiment.log_other(name, value)
                elif value is not None:
                    self.experiment.log_metric(name, value, step=moment.step, epoch=epoch)

    def _write_hyperparameters(self, values: Mapping[str, Any]) -> None:
        self.experiment.log_parameters(dict(values))

    def _write_images(self, name: str, pictures: Sequence[bytes], moment: LogTime) -> None:
        for i, picture in enumerate(pictures):
            one = name if len(pictures) == 1 else f"{name}/{i}"
            self.experiment.log_image(io.BytesIO(picture), name=one, step=moment.step)

    def _write_histogram(self, name: str, histogram: Histogram, moment: LogTime) -> None:
        self._log_json(name, histogram.counted, moment, "histogram")

    def _write_text(self, name: str, text: str, moment: LogTime) -> None:
        self.experiment.log_text(text, step=moment.step, metadata={"name": name})

    def _write_table(self, name: str, table: tuple[Columns, Rows], moment: LogTime) -> None:
        columns, rows = table
        self._log_json(name, {"columns": columns, "rows": rows}, moment, "table")

    def _log_json(self, name: str, value: Mapping[str, Any], moment: LogTime, kind: str) -> None:
        self.experiment.log_asset_data(
            json.dumps(value), name=f"{kind}/{name}.json", step=moment.step
        )

    def _write_artifact(self, name: str, path: Path) -> None:
        if path.is_dir():
            self.experiment.log_asset_folder(str(path), log_file_name=True, recursive=True)
        else:
            self.experiment.log_asset(str(path), file_name=f"{name}/{path.name}")
