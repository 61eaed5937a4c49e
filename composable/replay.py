"""Replay one batch of a recorded run, and compare the results bit for bit."""

import copy
import importlib.util
import os
import runpy
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
from attrs.validators import deep_iterable, instance_of, optional

from composable._support.checks import check_count
from composable._support.printable import printable, shorten
from composable._support.secrets import REDACTED
from composable.callbacks.checkpoint_saver import CheckpointSaver
from composable.checkpoint import files
from composable.checkpoint.compare import describe_difference, mismatched
from composable.checkpoint.errors import CheckpointError
from composable.checkpoint.tree import RUN, pack
from composable.core.callback import Callback
from composable.core.destination import LoggerDestination
from composable.plan.declarations import as_list
from composable.plan.plan import Plan
from composable.resume.foreign import ForeignPoint
from composable.resume.manager import CheckpointManager
from composable.resume.select import latest_valid
from composable.resume.verify import Reader, ResumePoint
from composable.runs import records
from composable.runs.diff import Difference, changes, first_difference, first_weight
from composable.runs.environment import hash_file
from composable.runs.recorder import RunRecorder, StepObserver
from composable.runs.records import Steps, format_hex
from composable.storage.copies import local
from composable.storage.folders import address
from composable.trainer.arguments import check_seed
from composable.trainer.options import TrainerOptions
from composable.trainer.run import Run
from composable.trainer.session import overridden_runs


class ReplayError(CheckpointError):
    """A batch cannot be replayed."""


class ReplayOver(SystemExit):
    """Ends the script after the replayed batch."""


@attrs.frozen
class Report:
    """The result of a replay."""

    run: Path
    batch: int
    start: str
    """The checkpoint from which the run resumed, or "the beginning"."""
    loss: str | None
    """The loss of the batch as it was recorded, as a hexadecimal float."""
    difference: Difference | None
    """The first difference; None if everything is bit-identical."""
    tensor: str | None
    """The first tensor known to differ."""
    changes: tuple[str, ...]
    """Changes of the configuration since the recorded run: versions, threads, the commit."""

    @property
    def same(self) -> bool:
        """Whether everything is bit-identical."""
        return self.difference is None

    def __str__(self) -> str:
        lines = [f"{self.run}, from {self.start}"]
        if self.difference is None:
            skipped = self.loss is None
            loss = "no loss, it is skipped" if skipped else f"loss {format_hex(self.loss)}"
            lines.append(f"batch {self.batch}: {loss}: bit-identical")
        else:
            lines.append(self.difference.describe("recorded", "replayed"))
            lines.append(f"first tensor known to differ: {self.tensor or 'none'}")
        if self.changes:
            lines.append("changes since the recorded run:")
            lines += [f"  {change}" for change in self.changes]
        return "\n".join(map(printable, lines))


def replay(train: Callable[[], Any], run: str | Path, *, batch: int) -> Report:
    """Train on one batch of a recorded run again, and compare the results.

    `train` is called once. The Trainer that it builds with the run's `save_folder` resumes from the
    latest checkpoint before the batch, and its `fit` ends after the batch. Nothing is written: no
    checkpoints, no records, no metrics.

    Args:
        train: Builds the Trainer like the recorded one, and calls its `fit`.
        run: The `save_folder` of the run.
        batch: The batch of the run, from 0.

    Returns:
        Whether the batch is bit-identical, or the first step that differs.

    Raises:
        ReplayError: The batch was not recorded, or `train` does not reach it.
        CheckpointError: The run folder cannot be read.

    Example:
        >>> import tempfile
        >>> from functools import partial
        >>> from composable import Trainer
        >>> folder = tempfile.mkdtemp()
        >>> data = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(4)]
        >>> def train():
        ...     trainer = Trainer(
        ...         torch.nn.Linear(4, 3),
        ...         train_dataloader=data,
        ...         max_duration="1ep",
        ...         loss_fn=torch.nn.functional.cross_entropy,
        ...         optimizers=partial(torch.optim.SGD, lr=0.1),
        ...         save_folder=folder,
        ...         save_interval="2ba",
        ...         progress_bar=False,
        ...     )
        ...     trainer.fit()
        >>> train()
        >>> replay(train, folder, batch=3).same
        True
    """
    if not callable(train):
        raise TypeError(f"train={train!r} must be a function that builds a Trainer and fits it.")
    attempt = Replay.of(local("run", run, "latest", max_batch=batch), batch)
    with overridden_runs(attempt.override):
        try:
            train()
        except SystemExit as end:
            if not isinstance(end, ReplayOver) and end.code:
                raise
    return attempt.report()


def replay_script(
    run: str | Path,
    *,
    batch: int,
    arguments: Sequence[str] | None = None,
    changed: bool = False,
) -> Report:
    """Print the script of a recorded run, and run it up to one batch: see `replay`.

    Args:
        run: The `save_folder` of the run.
        batch: The batch of the run, from 0.
        arguments: The arguments of the script; the recorded ones if None.
        changed: Run the script even if it has changed.

    Raises:
        ReplayError: The script does not exist, or has changed.
    """
    run = local("run", run, "latest", max_batch=batch)
    record = Replay.of(run, batch).record
    if arguments is not None:
        record = {**record, "arguments": list(arguments)}
    elif _secret_argument(record):
        raise ReplayError(
            f"{run}: {_secret_argument(record)} not recorded; pass arguments=, or on the command "
            "line: composable replay RUN -- ARGUMENTS."
        )
    script = _Script.of(record, run)
    script.check(run, changed=changed)
    print(f"running {script}\n     in {printable(script.cwd)}")
    folder = Path(run).absolute()  # before the script's own folder is entered
    return replay(script.run, folder, batch=batch)


def _secret_argument(record: Mapping[str, Any]) -> str | None:
    """Return what a record lacks of the arguments of its script, or None."""
    if record.get("script") is not None and "arguments" not in record:
        return "the arguments of the script were"
    arguments = record.get("arguments")
    given = list(map(str, arguments)) if isinstance(arguments, list) else []
    for before, one in zip(["", *given], given, strict=False):
        if REDACTED in one:
            name = before if one == REDACTED else one.partition("=")[0]
            return f"the value of the argument {shorten(name)}, a secret, was"
    return None


@attrs.frozen
class _Script:
    """The script of a recorded run."""

    script: str = attrs.field(validator=instance_of(str))
    script_sha256: str = attrs.field(validator=instance_of(str))
    module: str | None = attrs.field(validator=optional(instance_of(str)))
    arguments: list[str] = attrs.field(validator=deep_iterable(instance_of(str), instance_of(list)))
    cwd: str = attrs.field(validator=instance_of(str))

    @classmethod
    def of(cls, record: Mapping[str, Any], run: str | Path) -> "_Script":
        try:
            given: Any = {field.name: record.get(field.name) for field in attrs.fields(cls)}
            return cls(**given)
        except TypeError:
            raise ReplayError(
                f"{run} was not written by a script; call composable.replay with a function that "
                "trains."
            ) from None

    def __str__(self) -> str:
        """Return the command, in which control characters are escaped."""
        named = ["python", "-m", self.module, f"({self.script})"] if self.module else [self.script]
        return printable(" ".join([*named[:3], *map(shlex.quote, self.arguments), *named[3:]]))

    def check(self, run: str | Path, *, changed: bool) -> None:
        """Check that the script exists and has not changed."""
        now = hash_file(Path(self.script))
        if now is None:
            raise ReplayError(f"{self.script}, which wrote {run}, cannot be read.")
        if now != self.script_sha256 and not changed:
            raise ReplayError(
                f"{self.script} has changed since it wrote {run}; pass --changed to run it anyway."
            )
        if not Path(self.cwd).is_dir():
            raise ReplayError(f"{self.cwd}, in which {self.script} ran, is not a directory.")

    def _check_module(self) -> None:
        """Check that the module is the script, before it runs."""
        spec = importlib.util.find_spec(str(self.module))
        origin = None if spec is None else spec.origin
        if origin is None or Path(origin).resolve() != Path(self.script).resolve():
            raise ReplayError(
                f"the module {printable(str(self.module))} is {origin}, and not the recorded "
                f"script {printable(self.script)}; call composable.replay with a function that "
                "trains."
            )

    def run(self) -> None:
        """Run the script as it was started."""
        before = sys.argv, sys.path[:], Path.cwd()
        sys.argv = [self.script, *self.arguments]
        sys.path.insert(0, self.cwd if self.module else str(Path(self.script).parent))
        os.chdir(self.cwd)
        try:
            if self.module:
                self._check_module()
                runpy.run_module(self.module, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(self.script, run_name="__main__")
        finally:
            sys.argv, sys.path[:] = before[:2]
            os.chdir(before[2])


# --- the options of Trainers that are built during a replay ---


@attrs.frozen(eq=False, kw_only=True)
class DryRunOptions(TrainerOptions):
    """The options of a Trainer that writes nothing."""

    dry_run: ClassVar[bool] = True
    _adopted: dict[int, tuple[Callback, Callback]] = attrs.field(init=False, factory=dict)

    @classmethod
    def of(cls, options: TrainerOptions, **others: Any) -> "DryRunOptions":
        """Return the same options, but for `others`."""
        names = [field.name for field in attrs.fields(TrainerOptions)]
        return cls(**{**{name: getattr(options, name) for name in names}, **others})

    def plan(self) -> Plan:
        """Compile the plan, with one silent logger in the place of all."""
        builtin = self.builtin_callbacks()
        own = [callback for callback in builtin if not isinstance(callback, LoggerDestination)]
        callbacks = [
            self.adopt(one) if isinstance(one, Callback) else one for one in as_list(self.callbacks)
        ]
        logs = len(own) < len(builtin) or bool(as_list(self.loggers))
        return Plan.compile(
            self.algorithms,
            callbacks,
            [LoggerDestination()] if logs else [],
            builtin_callbacks=map(self.adopt, own),
        )

    def lock(self) -> None:
        """Return None: nothing is written."""

    def adopt(self, callback: Callback) -> Callback:
        """Return a copy of the callback that writes nothing; the callback itself stays as it is."""
        if id(callback) not in self._adopted:
            self._adopted[id(callback)] = callback, self._silence(callback)
        return self._adopted[id(callback)][1]

    def _silence(self, callback: Callback) -> Callback:
        if isinstance(callback, LoggerDestination):
            return LoggerDestination()
        if isinstance(callback, (CheckpointSaver, RunRecorder)):
            callback = copy.copy(callback)
        if isinstance(callback, CheckpointSaver):
            callback.manager = CheckpointManager(callback, self.on_save)
        elif isinstance(callback, RunRecorder):
            callback.observer = self.observer()
        return callback

    def on_save(self, name: str, capture: Callable[[], Mapping[str, Any]]) -> None:
        """Do nothing in the place of writing a checkpoint."""

    def observer(self) -> StepObserver:
        """Return what receives the records in the place of a file."""
        return StepObserver()


@attrs.frozen(eq=False, kw_only=True)
class ReplayOptions(DryRunOptions):
    """The options of the Trainer whose run is replayed."""

    replay: "Replay"

    def resume_point(self) -> "ResumePoint | ForeignPoint | None":
        """Return the latest checkpoint of the run that is not beyond the batch."""
        return self.replay.resume_point(self.reader) or super().resume_point()

    def run_id(self) -> str:
        """Return the id of the run."""
        return self.replay.run

    def attach(self, run: Run) -> None:
        """Let the replay follow the run."""
        self.replay.attach(run)

    def on_save(self, name: str, capture: Callable[[], Mapping[str, Any]]) -> None:
        """Compare the run with a checkpoint."""
        self.replay.on_save(name, capture)

    def observer(self) -> StepObserver:
        """Return the replay."""
        return self.replay


@attrs.define(eq=False)
class Replay(StepObserver):
    """A replay: the records to compare with, and the differences found so far."""

    folder: Path
    batch: int
    record: Mapping[str, Any]
    steps: Steps
    start: str = "the beginning"
    difference: Difference | None = None
    tensor: str | None = None
    changes: tuple[str, ...] = ()
    joined: bool = False
    """Whether a Trainer of the run was built."""
    _reached: bool = False
    _last: int | None = None
    _end: int | None = None

    @classmethod
    def of(cls, folder: Path, batch: int) -> "Replay":
        """Return a replay of a batch of the run in a folder."""
        check_count("batch", batch)
        folder = folder.absolute()
        recorded, steps = records.read_records(folder), records.read_steps(folder)
        if batch not in steps.trained:
            first, last = min(steps.trained, default=0), max(steps.trained, default=-1)
            have = f"batches {first} to {last}" if steps.trained else "none"
            raise ReplayError(f"{folder} has no record of batch {batch}: it has {have}.")
        begun = [one for one in recorded if one["batch"] <= batch]
        if not begun:
            raise ReplayError(
                f"{folder / records.RUN} has no record of the run that trained on batch {batch}."
            )
        return cls(folder, batch, begun[-1], steps)

    def override(self, options: TrainerOptions) -> TrainerOptions:
        """Change the options of a Trainer: the run's resume it, and all write nothing."""
        if options.save_folder is None or not self._is_about(options.save_folder):
            return DryRunOptions.of(options)
        self.joined = True
        seed = check_seed(options.seed, self.seed)
        return ReplayOptions.of(options, seed=seed, autoresume=False, replay=self)

    def _is_about(self, save_folder: Path) -> bool:
        """Return whether a folder belongs to the run, which may have been moved."""
        recorded = str(self.record.get("save_folder"))
        folders = {self.folder.resolve(), Path(recorded).resolve()}
        return save_folder.resolve() in folders or address(save_folder) == recorded

    @property
    def run(self) -> str:
        """The number of the run."""
        return str(self.record.get("id"))

    @property
    def seed(self) -> int | None:
        """The seed of the run."""
        seed = self.record.get("seed")
        return seed if type(seed) is int else None

    def resume_point(self, reader: Reader) -> ResumePoint | None:
        """Return the latest checkpoint of the run that is not beyond the batch."""
        point = latest_valid(self.folder, reader, run=self.run, max_batch=self.batch)
        if point is None:
            return None
        self.start = f"checkpoint {point.path.name}"
        return attrs.evolve(point, restart=True)

    def attach(self, run: Run) -> None:
        """Skip the batches that the run skipped."""
        skipped = (number for number, value in self.steps.trained.items() if value["loss"] is None)
        run.guard.skipped_batches.update(skipped)

    def on_begin(self, description: Mapping[str, Any]) -> None:
        """Compare the descriptions of the two runs."""
        self.changes = tuple(changes(self.record, description))

    def on_step(self, batch: int, values: Mapping[str, Any]) -> None:
        """Compare the values of a batch with the recorded ones, and end after the batch.

        If they differ and no digests name the tensor, training continues until the next
        checkpoint of the run.
        """
        trained = "loss" in values
        recorded = (self.steps.trained if trained else self.steps.evaluated).get(batch)
        self._last = max(batch, self._last or 0)
        if self.difference is None and recorded is not None:
            self._compare(batch, recorded, values)
        if self.difference is not None:
            if self._end is None or batch >= self._end:
                raise ReplayOver(1)
        elif trained and batch == self.batch:
            self._reached = True
            raise ReplayOver(0)

    def _compare(self, batch: int, recorded: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Note the first difference, and the batch until which training continues."""
        if (what := first_difference(recorded, values)) is None:
            return
        self.difference = Difference(batch, what, recorded.get(what), values.get(what))
        if (weight := first_weight(recorded, values)) is not None:
            self.tensor = f"{weight} after batch {batch}"
        else:
            self._end = self._next_checkpoint(batch)

    def _next_checkpoint(self, batch: int) -> int | None:
        """Return the number of batches at the next checkpoint."""
        whole, _ = files.find(self.folder)
        saved = (one.manifest for one in whole if one.manifest.info.get("run") == self.run)
        return min((manifest.batch for manifest in saved if manifest.batch > batch), default=None)

    def on_save(self, name: str, capture: Callable[[], Mapping[str, Any]]) -> None:
        """Name the first tensor that differs from a checkpoint, after a difference."""
        if self.difference is None or self.tensor is not None:
            return
        try:
            saved = files.read(self.folder / name).tensors
        except CheckpointError:
            return  # it was deleted, or is damaged
        now = {name: tensor.cpu() for name, tensor in pack({"state": capture()}, RUN)[0].items()}
        first = next((one for one in mismatched(saved, now) if one in saved), None)
        if first is None:
            self.tensor = f"none: all tensors equal checkpoint {name}"
        else:
            gap = describe_difference(saved[first], now.get(first))
            self.tensor = f"{first} at checkpoint {name} ({gap})"
        raise ReplayOver(1)

    def report(self) -> Report:
        """Return the result.

        Raises:
            ReplayError: The run did not reach the batch.
        """
        if not self.joined:
            folder = self.record.get("save_folder")
            raise ReplayError(
                f"no Trainer with save_folder={folder!r} was built; check its save_folder."
            )
        if not self._reached and self.difference is None:
            raise ReplayError(
                f"training ended before batch {self.batch}"
                + ("." if self._last is None else f", after batch {self._last}.")
            )
        loss = self.steps.trained[self.batch]["loss"]
        return Report(
            self.folder, self.batch, self.start, loss, self.difference, self.tensor, self.changes
        )
