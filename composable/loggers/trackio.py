"""Write to Trackio."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composable._support.checks import check_text
from composable.core.logger import Columns, Rows
from composable.loggers import _environment as environment
from composable.loggers._back_end import HostedRunLogger, LogTime, last_steps
from composable.loggers._histograms import Histogram


class TrackioLogger(HostedRunLogger):
    """Writes everything that is logged to a run of Trackio, in its database on this machine.

    `trackio show` shows the runs, and `trackio.sync(project=..., space_id=...)` copies them to a
    Space of Hugging Face. The package has one run at a time, so a run of the user's ends.

    A resumed run continues the run of the checkpoint, and the steps that the database already has
    are not written again.

    Args:
        project: The project. Default: `TRACKIO_PROJECT`, or "composable".
        name: The name of the run. Default: the package generates one.
        flush_interval: Number of records of metrics to buffer, at least 1.
        **init_kwargs: Further arguments of `trackio.init`, such as `group`.

    Raises:
        ModuleNotFoundError: The package trackio is not installed.
        ValueError: A Space or a server is to be written to.

    Example:
        >>> from composable.loggers import TrackioLogger
        >>> logger = TrackioLogger("digits")
    """

    package = "trackio"
    extra = "trackio"

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        *,
        flush_interval: int = 100,
        **init_kwargs: Any,
    ) -> None:
        super().__init__(flush_interval=flush_interval)
        check_text("project", project)
        check_text("name", name)
        for place in ("space_id", "server_url"):
            if place in init_kwargs or environment.text(f"TRACKIO_{place.upper()}"):
                raise ValueError(
                    f"{place} is not supported, since a killed run could not tell what is there: "
                    f"drop it and TRACKIO_{place.upper()}, and call trackio.sync(project=..., "
                    "space_id=...) after training."
                )
        self.project = project or environment.text("TRACKIO_PROJECT") or "composable"
        self._init_kwargs = {"embed": False, **init_kwargs}
        self._identity = {"name": name, "id": None}

    def _begin(self, saved: Any) -> bool:
        import trackio  # imported here: it takes seconds
        from trackio.sqlite_storage import SQLiteStorage

        name, own = (saved or self._identity).values()
        known = own and SQLiteStorage.get_logs(self.project, run_id=own)
        resume = "must" if known else "never"
        self._package = trackio
        self.run = trackio.init(self.project, name, resume=resume, **self._init_kwargs)
        self._is_offline = True
        if known and self.run.id != own:
            raise RuntimeError(
                f"the run {name!r} was followed by another one of this name in {self.project!r}; "
                "give each run a name of its own"
            )
        return True

    def _run_state(self) -> Any:
        self._identity = {"name": self.run.name, "id": self.run.id}
        return self._identity

    def _steps(self) -> Mapping[str, int]:
        from trackio.sqlite_storage import SQLiteStorage

        rows = SQLiteStorage.get_logs(self.project, self.run.name, run_id=self.run.id)
        # A row of this process may not be in the database yet.
        return last_steps(self._written, *(dict.fromkeys(row, row["step"]) for row in rows))

    # --- writing ---

    def _write_metrics(self, records: Sequence[tuple[LogTime, Mapping[str, Any]]]) -> None:
        for moment, values in records:
            self.run.log({n: v for n, v in values.items() if v is not None}, step=moment.step)

    def _write_hyperparameters(self, values: Mapping[str, Any]) -> None:
        self.run.config.update(values)
        self.run._config_logged = False  # a row brings it to the database
        self.run.log({}, step=0)

    def _write_images(self, name: str, pictures: Sequence[bytes], moment: LogTime) -> None:
        from PIL import Image

        for i, picture in enumerate(pictures):
            one = name if len(pictures) == 1 else f"{name}/{i}"
            self._log(one, self._package.Image(Image.open(io.BytesIO(picture))), moment)

    def _write_histogram(self, name: str, histogram: Histogram, moment: LogTime) -> None:
        pair = (list(histogram.counts), list(histogram.edges))
        self._log(name, self._package.Histogram(np_histogram=pair), moment)

    def _write_text(self, name: str, text: str, moment: LogTime) -> None:
        self._log(name, self._package.Markdown(text), moment)

    def _write_table(self, name: str, table: tuple[Columns, Rows], moment: LogTime) -> None:
        columns, rows = table
        self._log(name, self._package.Table(columns=columns, data=rows), moment)

    def _log(self, name: str, value: Any, moment: LogTime) -> None:
        self.run.log({name: value}, step=moment.step)

    def _write_artifact(self, name: str, path: Path) -> None:
        self.run.log_artifact(path, name=name)
