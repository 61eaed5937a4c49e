"""Write to TensorBoard."""

import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composable._support.checks import as_path
from composable._support.paths import truncate
from composable.core.logger import Columns, Rows
from composable.loggers._back_end import BackEndLogger, LogTime
from composable.loggers._histograms import Histogram
from composable.loggers._images import png_size


class TensorBoardLogger(BackEndLogger):
    """Writes metrics, images, histograms, texts and hyperparameters for TensorBoard.

    Show them with `tensorboard --logdir runs`. Tables are written as texts in Markdown, figures as
    images. The step is the number of batches trained.

    A resumed run writes to the folder of the saved one. Its event files are truncated to their
    length at the time of the checkpoint, and those that it had begun after it are deleted.

    Args:
        log_dir: The folder of this run. Default: a new folder in `runs`, named by date and time.
        flush_interval: Number of records of metrics to buffer, at least 1.

    Raises:
        ModuleNotFoundError: The package tensorboard is not installed.

    Example:
        >>> import tempfile
        >>> from composable import Timestamp
        >>> from composable.loggers import TensorBoardLogger
        >>> logger = TensorBoardLogger(tempfile.mkdtemp())
        >>> logger.log_metrics({"loss": torch.tensor(0.5)}, Timestamp(batch=1))
        >>> logger.close()
    """

    package = "tensorboard"
    extra = "tensorboard"

    def __init__(self, log_dir: str | Path | None = None, *, flush_interval: int = 100) -> None:
        super().__init__(flush_interval=flush_interval)
        self.log_dir = None if log_dir is None else as_path("log_dir", log_dir)
        """The folder that it writes to, or None before the first record."""
        self._id = ""
        self._writer: Any = None

    def _open(self, saved: Any) -> None:
        from torch.utils.tensorboard import SummaryWriter  # imported here: it is slow

        if saved is not None:
            self._restore(saved)
        self._id = self._id or secrets.token_hex(4)
        if self.log_dir is None:
            self.log_dir = Path("runs", f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{self._id}")
        self._writer = SummaryWriter(str(self.log_dir), filename_suffix=f".{self._id}")

    def _restore(self, saved: Mapping[str, Any]) -> None:
        """Truncate the files of the run to their lengths at the time of the checkpoint."""
        self._id = saved["id"]
        self.log_dir = Path(saved["folder"]) if self.log_dir is None else self.log_dir
        for path in self._files():
            size = saved["files"].get(path.name)
            if size is None:
                path.unlink()
            elif path.stat().st_size > size:
                truncate(path, size)

    def _files(self) -> list[Path]:
        """Return the event files that this run has written."""
        assert self.log_dir is not None
        if not self._id or not self.log_dir.is_dir():
            return []
        files = self.log_dir.iterdir()
        return [one for one in files if ".tfevents." in one.name and one.suffix == f".{self._id}"]

    def _run_state(self) -> Any:
        files = {path.name: path.stat().st_size for path in self._files()}
        return {"folder": str(self.log_dir), "id": self._id, "files": files}

    def _flush(self) -> None:
        self._writer.flush()

    def _release(self) -> None:
        self._writer.close()

    def _write_metrics(self, records: Sequence[tuple[LogTime, Mapping[str, Any]]]) -> None:
        for moment, values in records:
            for name, value in values.items():
                if isinstance(value, str):
                    self._write_text(name, value, moment)
                elif value is not None:
                    self._writer.add_scalar(name, float(value), moment.step, moment.clock)
        self._writer.flush()

    def _write_hyperparameters(self, values: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard.summary import hparams

        known = {n: v for n, v in values.items() if v is not None}
        # Without the summary of an experiment, TensorBoard lists all hyperparameters and metrics.
        _, *session = hparams(known, {})  # type: ignore[no-untyped-call]
        for summary in session:
            self._writer.file_writer.add_summary(summary)

    def _write_images(self, name: str, pictures: Sequence[bytes], moment: LogTime) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for i, picture in enumerate(pictures):
            tag = name if len(pictures) == 1 else f"{name}/{i}"
            width, height, channels = png_size(picture)
            image = Summary.Image(
                encoded_image_string=picture, width=width, height=height, colorspace=channels
            )
            summary = Summary(value=[Summary.Value(tag=tag, image=image)])
            self._writer.file_writer.add_summary(summary, moment.step, moment.clock)

    def _write_histogram(self, name: str, histogram: Histogram, moment: LogTime) -> None:
        if histogram.counts:
            self._writer.add_histogram_raw(
                name,
                histogram.minimum,
                histogram.maximum,
                histogram.num_values,
                histogram.total,
                histogram.total_of_squares,
                list(histogram.edges[1:]),
                list(histogram.counts),
                moment.step,
                moment.clock,
            )

    def _write_text(self, name: str, text: str, moment: LogTime) -> None:
        self._writer.add_text(name, text, moment.step, moment.clock)

    def _write_table(self, name: str, table: tuple[Columns, Rows], moment: LogTime) -> None:
        columns, rows = table
        lines = [columns, ["---"] * len(columns), *rows]
        text = "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)
        self._write_text(name, text, moment)
