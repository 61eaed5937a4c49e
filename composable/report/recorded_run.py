"""A recorded run, read from its folder."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from composable._support.extras import needs
from composable._support.secrets import redact, redact_command
from composable.checkpoint import find
from composable.checkpoint.errors import CheckpointError, MissingCheckpointError
from composable.report.curves import Curve
from composable.report.lines import (
    as_batch,
    as_number,
    in_order,
    read_lines,
    short_text,
)
from composable.runs import records
from composable.runs.events import EVENTS
from composable.storage.copies import local

if TYPE_CHECKING:
    from pandas import DataFrame


_FIELDS = frozenset({"epoch", "batch", "sample", "seconds"})
_RUNNING = 120.0  # seconds since the last write


@attrs.frozen(eq=False)
class BatchClock:
    """The samples and seconds of training at some batches, to convert between them."""

    samples: Curve = attrs.field(factory=Curve)
    seconds: Curve = attrs.field(factory=Curve)

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the time of a line, if it has one."""
        batch = as_batch(line.get("batch"))
        for curve, name in ((self.samples, "sample"), (self.seconds, "seconds")):
            value = as_number(line.get(name))
            if batch is not None and value is not None and value >= 0:
                curve.add(batch, value)


@attrs.define
class ShownWarning:
    """A warning that was shown during a run, and how often."""

    category: str
    message: str
    where: str
    batch: int
    """The batch at which it was shown first."""
    count: int = 1


def _as_folder(folder: Any) -> Path:
    return local("folder", folder, "sizes")


def _missing(path: Path) -> str | None:
    """Return what is wrong with a path that is not a folder, or None."""
    if path.is_dir():
        return None
    fault = "is a file" if path.exists() else "does not exist"
    return f"{path} {fault}; pass the save_folder of a recorded run."


@attrs.define(eq=False, repr=False)
class RecordedRun:
    """A run that a Trainer recorded in its `save_folder`.

    What cannot be read is skipped and named in `problems`. A run may still be running.

    Args:
        folder: The `save_folder` of a Trainer.

    Raises:
        MissingCheckpointError: The folder does not exist, or is not the folder of a recorded run.

    Example:
        >>> import tempfile
        >>> from functools import partial
        >>> from composable import Trainer
        >>> from composable.report import RecordedRun
        >>> folder = tempfile.mkdtemp()
        >>> trainer = Trainer(
        ...     torch.nn.Linear(4, 3),
        ...     train_dataloader=[(torch.randn(8, 4), torch.randint(3, (8,)))] * 5,
        ...     max_duration="2ep",
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     optimizers=partial(torch.optim.SGD, lr=0.1),
        ...     save_folder=folder,
        ...     progress_bar=False,
        ... )
        >>> _ = trainer.fit()
        >>> run = RecordedRun(folder)
        >>> run.status, run.num_batches, sorted(run.curves)
        ('finished', 10, ['loss/train', 'lr', 'throughput/samples_per_sec'])
    """

    folder: Path = attrs.field(converter=_as_folder)
    records: list[dict[str, Any]] = attrs.field(init=False, factory=list)
    """The configurations, one for each start of the run, the oldest first."""
    curves: dict[str, Curve] = attrs.field(init=False, factory=dict)
    """The metrics by their logged names: `loss/train`, `lr`, `metrics/eval/accuracy`."""
    clock: BatchClock = attrs.field(init=False, factory=BatchClock)
    warnings: list[ShownWarning] = attrs.field(init=False, factory=list)
    checkpoints: list[dict[str, Any]] = attrs.field(init=False, factory=list)
    """Each checkpoint: `name`, `batch`, `epoch`, `bytes`, `complete`, `created`, `best`."""
    problems: list[str] = attrs.field(init=False, factory=list)
    """What could not be read, in sentences."""
    status: str = attrs.field(init=False, default="unknown")
    """`finished`, `running`, `interrupted`, `failed`, `not ended` (killed), or `unknown`."""
    error: str | None = attrs.field(init=False, default=None)
    """The error that ended the run."""
    num_skipped: int = attrs.field(init=False, default=0)
    """The number of batches without a step, such as after a loss that is not finite."""

    def __attrs_post_init__(self) -> None:
        if not is_run(self.folder):
            raise MissingCheckpointError(
                _missing(self.folder)
                or f"{self.folder} contains no {records.RUN} and no {records.STEPS}: it is not the "
                "save_folder of a recorded run."
            )
        self._read_records()
        self._read_steps()
        self._read_events()
        self._read_metrics()
        self._derive_throughput()
        self._read_checkpoints()

    # --- facts ---

    @property
    def configuration(self) -> dict[str, Any]:
        """The configuration of the last start; empty if it cannot be read."""
        return self.records[-1] if self.records else {}

    @property
    def plan(self) -> dict[str, Any]:
        """The plan of the last start; empty if it cannot be read."""
        plan = self.configuration.get("plan")
        return plan if isinstance(plan, dict) else {}

    @property
    def num_batches(self) -> int:
        """The number of batches trained on."""
        return max((curve.batches[-1] for curve in self.curves.values() if len(curve)), default=0)

    @property
    def num_seconds(self) -> float | None:
        """The seconds of training, without evaluation, if they are known."""
        return self.clock.seconds.values[-1] if len(self.clock.seconds) else None

    @property
    def epoch_length(self) -> int | None:
        """The number of batches in an epoch, if it is known."""
        length = self.configuration.get("epoch_length")
        return length if type(length) is int and length > 0 else None

    @property
    def time_split(self) -> dict[str, float]:
        """The seconds of each part of training, if the run had a `TimeSplit` callback."""
        prefix = "time_split/"
        return {
            name.removeprefix(prefix): curve.values[-1]
            for name, curve in self.curves.items()
            if name.startswith(prefix) and len(curve)
        }

    # --- as tables ---

    def __repr__(self) -> str:
        noun = "batch" if self.num_batches == 1 else "batches"
        facts = f"{self.status}, {self.num_batches} {noun}, metrics {sorted(self.curves)}"
        return f"<RecordedRun {self.folder}: {facts}>"

    def to_pandas(self) -> "DataFrame":
        """Return the metrics as a table with a row for each batch that has any.

        The index is the number of batches, the columns are the metrics, and `seconds` of training.

        Raises:
            ImportError: pandas is not installed.
        """
        with needs("to_pandas", "report"):
            import pandas

        def column(curve: Curve) -> Any:
            return pandas.Series(list(curve.values), index=list(curve.batches), dtype="float64")

        columns = {name: column(curve) for name, curve in sorted(self.curves.items())}
        table = pandas.DataFrame(columns).rename_axis("batch").sort_index()
        known = column(self.clock.seconds)
        every = known.index.union(table.index)
        seconds = known.reindex(every).interpolate("index", limit_area="inside")
        table.insert(0, "seconds", seconds.reindex(table.index))
        return table

    # --- reading ---

    def _read_records(self) -> None:
        try:
            self.records.extend(map(_without_secrets, records.read_records(self.folder)))
        except CheckpointError as error:
            self.problems.append(str(error))

    def _curve(self, name: str) -> Curve:
        return self.curves.setdefault(name, Curve())

    def _read_steps(self) -> None:
        for line in read_lines(self.folder / records.STEPS, self.problems):
            index = as_batch(line.pop("batch", None))
            if index is None:
                continue
            trained = "loss" in line
            if trained and line.get("skipped"):
                self.num_skipped += 1
            for name, value in line.items():
                number = as_number(value)
                if number is None or name == "epoch" or name.startswith("weights/"):
                    continue
                logged = name if trained else f"metrics/{name}"
                self._curve("loss/train" if name == "loss" else logged).add(index + 1, number)

    def _read_events(self) -> None:
        last: dict[str, Any] = {}
        for line in read_lines(self.folder / EVENTS, self.problems):
            self.clock.add(line)
            if line.get("event") == "warning":
                self._add_warning(line)
            elif line.get("event") in ("start", "end"):
                last = line
        if last.get("event") == "start":
            files = [self.folder / name for name in (records.STEPS, EVENTS)]
            written = max(path.stat().st_mtime for path in files if path.is_file())  # one is read
            recent = time.time() - written < _RUNNING
            self.status = "running" if recent else "not ended"
        elif last.get("error") is not None:
            self.error = short_text(last["error"])
            stopped = re.match(r"KeyboardInterrupt|Preempted", self.error)
            self.status = "interrupted" if stopped else "failed"
        elif last:
            self.status = "finished"

    def _add_warning(self, line: dict[str, Any]) -> None:
        category, message, where = (
            short_text(line.get(name, "")) for name in ("category", "message", "where")
        )
        for warning in self.warnings:
            if (warning.category, warning.message, warning.where) == (category, message, where):
                warning.count += 1
                return
        batch = as_batch(line.get("batch")) or 0
        self.warnings.append(ShownWarning(category, message, where, batch))

    def _read_metrics(self) -> None:
        """Read the files of JSONLinesLogger; a metric of steps.jsonl is already known."""
        known, timed = set(self.curves), bool(len(self.clock.seconds))
        for path in self._find_metrics_files():
            for line in read_lines(path, self.problems):
                batch = as_batch(line.get("batch"))
                if batch is None:
                    continue
                if not timed:
                    self.clock.add(line)
                for name in line.keys() - _FIELDS - known:
                    if (number := as_number(line[name])) is not None:
                        self._curve(name).add(batch, number)

    def _find_metrics_files(self) -> Iterator[Path]:
        """Find the files in the folder, and those in folders of it that the configuration names.

        A configuration may come from anywhere: a file outside of the folder is not read.
        """
        own = {records.STEPS, EVENTS}
        inside = [
            path
            for path in sorted(self.folder.glob("*.jsonl"))
            if path.name not in own and not re.search(r"\.[0-9]+\.jsonl$", path.name)
        ]
        named = self.configuration.get("metrics_paths")
        paths = list(named.values()) if isinstance(named, dict) else []
        given = [self.folder / path for path in paths if isinstance(path, str) and "\0" not in path]
        root = self.folder.resolve()
        for path in dict.fromkeys(one.absolute() for one in (*inside, *given) if one.is_file()):
            if path.resolve().is_relative_to(root):
                yield path
            else:
                self.problems.append(
                    f"{path} is outside of the folder of the run, and is not read: write metrics "
                    "to a file in the save_folder."
                )

    def _derive_throughput(self) -> None:
        """Compute the throughput between the known times, if no callback logged it."""
        name = "throughput/samples_per_sec"
        if name in self.curves:
            return
        seconds, curve = dict(self.clock.seconds), Curve()
        known = [(batch, count) for batch, count in self.clock.samples if batch in seconds]
        for (start, before), (end, now) in pairwise(known):
            elapsed = seconds[end] - seconds[start]
            if elapsed > 0 and now > before:
                curve.add(end, (now - before) / elapsed)
        if len(curve):
            self.curves[name] = curve

    def _read_checkpoints(self) -> None:
        try:
            whole, broken = find(self.folder)
        except CheckpointError as error:
            self.problems.append(str(error))
            return
        self.problems.extend(str(one.error) for one in broken)
        best = _best_of(whole[0].manifest.info.get("best")) if whole else None  # of the latest
        for checkpoint in reversed(whole):
            manifest = checkpoint.manifest
            self.checkpoints.append(
                {
                    "name": checkpoint.path.name,
                    "batch": manifest.batch,
                    "epoch": manifest.info.get("epoch"),
                    "bytes": sum(file.size for file in manifest.files.values()),
                    "complete": manifest.info.get("complete") is True,
                    "created": manifest.created,
                    "best": best if best and best["checkpoint"] == checkpoint.path.name else None,
                }
            )


def _without_secrets(record: dict[str, Any]) -> dict[str, Any]:
    commands = {
        name: redact_command(map(str, record[name]))
        for name in ("command", "arguments")
        if isinstance(record.get(name), list)
    }
    return {**redact(record), **commands}


def _best_of(best: Any) -> dict[str, Any] | None:
    if not isinstance(best, dict) or not isinstance(best.get("checkpoint"), str):
        return None
    return {name: best.get(name) for name in ("checkpoint", "metric", "value")}


def is_run(folder: Path) -> bool:
    """Return whether a folder has the files of a recorded run."""
    return any((folder / name).is_file() for name in (records.RUN, records.STEPS))


def find_runs(runs: Iterable[str | Path]) -> list[RecordedRun]:
    """Read run folders, and the run folders in other folders.

    Args:
        runs: Folders. One that is not a run folder stands for the run folders in it.

    Raises:
        MissingCheckpointError: There is no run folder at a path.
    """
    folders: dict[Path, Path] = {}
    for given in runs:
        path = local("runs", given, "sizes")
        inside = [path] if is_run(path) else _runs_in(path)
        if not inside:
            raise MissingCheckpointError(
                _missing(path)
                or f"{path} contains no {records.RUN}, and neither does a folder in it: pass the "
                "save_folder of a recorded run, or a folder of such folders."
            )
        folders |= {one.resolve(): one for one in inside if one.resolve() not in folders}
    return [RecordedRun(folder) for folder in folders.values()]


def _runs_in(path: Path) -> list[Path]:
    try:
        return sorted(
            (entry for entry in path.iterdir() if is_run(entry)), key=lambda one: in_order(one.name)
        )
    except OSError:
        return []
