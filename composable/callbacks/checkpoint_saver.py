"""Saves checkpoints."""

import math
import string
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import attrs
from torch import Tensor

from composable.callbacks._results import find_result, full_name, is_better, known_mode, mode_of
from composable.checkpoint import folders
from composable.checkpoint.errors import BrokenCheckpointWarning, CheckpointError
from composable.checkpoint.filters import expanded, without
from composable.core._printable import shorten
from composable.core._warnings import warn_user
from composable.core.callback import Callback, check_keys
from composable.core.control import Control
from composable.core.event import Event
from composable.core.intervals import IntervalLike, check_interval, is_due
from composable.core.state import State
from composable.core.time import Timestamp
from composable.distributed.processes import Processes
from composable.functional._checks import as_path

if TYPE_CHECKING:
    from composable.core.logger import Logger

__all__ = ["CheckpointSaver", "UnsavedCheckpointWarning"]

_FIELDS = ("epoch", "batch", "sample", "token", "iteration")


class UnsavedCheckpointWarning(UserWarning):
    """A checkpoint could not be written, and training continues without it."""


class CheckpointSaver(Callback):
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
        folder: The folder of the checkpoints; it is created.
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
        self.folder = as_path("folder", folder)
        self.save_interval = check_interval("save_interval", save_interval)
        self.filename = _check_filename(filename)
        self.num_checkpoints_to_keep = _check_keep(num_checkpoints_to_keep)
        self.overwrite = _check_flag("overwrite", overwrite)
        self.weights_only = _check_flag("weights_only", weights_only)
        self.ignore_keys = check_patterns("ignore_keys", ignore_keys)
        self.background = _check_flag("background", background)
        self.on_error = _check_choice("on_error", on_error, ("raise", "warn"))
        self.metric = None if metric is None else full_name("metric", metric)
        self.mode = known_mode(self.metric or "loss", mode)
        self._given_mode = mode
        self.wanted = False
        """Whether a save is requested and not yet done."""
        self.dry_run: Callable[[str, Callable[[], Mapping[str, Any]]], object] | None = None
        """Called in the place of writing, with the name and a function that captures the run."""
        self._kept: list[str] = []
        self._best: tuple[str, float] | None = None
        self._batch: int | None = None
        self._seen: Timestamp | None = None
        self._measured: float | None = None
        self._ran = False
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    def declare_modes(self, modes: Mapping[str, str]) -> None:
        """Use the mode that the metric declares, unless one was passed.

        Args:
            modes: The declared modes by the full names of results.

        Raises:
            ValueError: The mode is neither passed nor declared, and the name does not determine it.
        """
        if self.metric is not None:
            mode = self._given_mode or modes.get(self.metric)
            self.mode = mode_of(self.metric, mode, name="metric")

    # --- when ---

    def fit_start(self, state: State, logger: "Logger") -> None:
        """Create the folder, once: if it vanishes later, its disk may have been unmounted."""
        if self.dry_run is None and Processes.current().is_main:
            self._settle(lambda: folders.make_folder(self.folder))

    def batch_start(self, state: State, logger: "Logger") -> None:
        """Discard the metric of earlier weights."""
        self._measured = None

    def eval_end(self, state: State, logger: "Logger") -> None:
        """Record the metric."""
        if self.metric is not None:
            measured = find_result("metric", self.metric, state.metrics)
            self._measured = self._measured if measured is None else measured
            self._ran = self._ran or measured is not None

    def fit_end(self, state: State, logger: "Logger") -> None:
        """Warn if the evaluator of the metric never ran."""
        if self.metric is not None and self._best is None and not self._ran:
            warn_user(
                f"metric={self.metric!r} of CheckpointSaver is a result of no evaluator that ran, "
                f"so no best checkpoint was saved; evaluators: {sorted(state.metrics)}.",
                UserWarning,
            )

    def batch_checkpoint(self, state: State, logger: "Logger") -> Control | None:
        """Request a save if one is due."""
        return self._request(state.previous_timestamp, state, Event.BATCH_END)

    def epoch_checkpoint(self, state: State, logger: "Logger") -> Control | None:
        """Request a save if one is due."""
        return self._request(self._seen or state.previous_timestamp, state, Event.EPOCH_END)

    def _request(self, before: Timestamp, state: State, event: Event) -> Control | None:
        self._seen = state.timestamp
        due = is_due(self.save_interval, state.evolve(timestamp=before), state, event)
        self.wanted = self.wanted or due or self.improved
        return Control.SAVE if self.wanted else None

    @property
    def latest(self) -> str | None:
        """The name of the latest checkpoint."""
        return self._kept[-1] if self._kept else None

    @property
    def best(self) -> tuple[str, float] | None:
        """The name of the best checkpoint so far, and its result."""
        return self._best

    @property
    def improved(self) -> bool:
        """Whether the last result is better than that of the best checkpoint."""
        best = None if self._best is None else self._best[1]
        if self._measured is None or self.metric is None:
            return False
        return is_better(mode_of(self.metric, self.mode, name="metric"), self._measured, best)

    # --- saving ---

    def name_of(self, state: State) -> str:
        """Return the name of the checkpoint of a state."""
        now = state.timestamp
        return self.filename.format(**{field: getattr(now, field) for field in _FIELDS})

    def save(
        self,
        state: State,
        run: Mapping[str, Any],
        take: Callable[[bool], Mapping[str, Any]],
        *,
        together: bool = False,
    ) -> None:
        """Save a checkpoint, and delete old ones beyond the number to keep.

        Args:
            state: The current state of the run.
            run: The description of the run; its `id` is unique.
            take: A function that returns the tree to save, or only the weights if called with
                True.
            together: Whether the tree has parts of several processes, which write it together.

        Raises:
            CheckpointError: The checkpoint could not be written, and `on_error` is "raise".
        """
        self.wanted = False
        self.finish()  # one at a time, in order
        name, batch, before = self.name_of(state), state.timestamp.batch, self._memory()
        replaced = self._kept[-1] if self._kept and self._batch == batch else None
        self._kept = [*(one for one in self._kept if one != name), name]
        self._batch = batch
        if self.improved:
            self._best = name, self._measured  # type: ignore[assignment]
        if self.dry_run is not None:
            self.dry_run(name, lambda: take(False))
            return
        if not (Processes.current().is_main or together):
            self._forget_old(replaced)  # rank 0 writes
            return
        tree = without(take(self.weights_only), expanded(self.ignore_keys))
        complete = not (self.weights_only or self.ignore_keys)
        saved = Saved.of(state, run, tree, complete=complete, best=self._describe_best())

        def write(saved: Saved) -> None:
            try:
                self.write(name, saved)
            except CheckpointError:
                self._kept, self._best, self._batch = before
                raise
            self._drop_old(saved.info["run"], replaced)

        # The parts of several processes are written together, between their steps.
        if not self.background or together:
            self._settle(lambda: write(saved))
            return
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing = self._thread.submit(write, saved.copied())

    def _memory(self) -> tuple[list[str], tuple[str, float] | None, int | None]:
        return self._kept, self._best, self._batch

    def _describe_best(self) -> dict[str, Any] | None:
        if self._best is None:
            return None
        name, value = self._best
        exact = value if math.isfinite(value) else str(value)  # JSON has no infinities
        return {"metric": self.metric, "mode": self.mode, "checkpoint": name, "value": exact}

    def write(self, name: str, saved: "Saved") -> Path:
        """Write one checkpoint."""
        target = self.folder / name
        processes = Processes.current()
        if processes.is_main and not self.overwrite:
            _put_aside(target)
        own = self.overwrite or (processes.is_main and _run_of(target) == saved.info["run"])
        return saved.write(target, overwrite=own)

    def _drop_old(self, run: str, replaced: str | None) -> None:
        """Delete this run's checkpoints beyond the number to keep; the newer ones are on disk."""
        for name in self._forget_old(replaced):
            if Processes.current().is_main:
                folders.delete(self.folder / name, run)

    def _forget_old(self, replaced: str | None) -> list[str]:
        """Drop the names beyond the number to keep, and return them."""
        if self.num_checkpoints_to_keep is None:
            return []
        best, newest = self._best[0] if self._best else None, self._kept[-1]
        old = [replaced] if replaced not in (None, best, newest) else []
        recent = [name for name in self._kept if name not in (best, *old)]
        old += recent[: -self.num_checkpoints_to_keep]
        self._kept = [name for name in self._kept if name not in old]
        return old

    # --- in the background ---

    def finish(self) -> None:
        """Wait for the checkpoint that is being written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            self._settle(writing.result)

    def _settle(self, result: Callable[[], None]) -> None:
        try:
            result()
        except CheckpointError as error:
            if self.on_error == "raise":
                raise
            message = f"a checkpoint could not be saved, training continues: {error}"
            warn_user(message, UnsavedCheckpointWarning)

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and stop the thread."""
        try:
            self.finish()
        finally:
            if self._thread is not None:
                self._thread.shutdown()
                self._thread = None

    # --- its own state ---

    def state_dict(self) -> dict[str, Any]:
        """Return the names of the kept checkpoints and the best one."""
        return {
            "kept": list(self._kept),
            "batch": self._batch,
            "best": self._best,
            "seen": self._seen,
            "measured": self._measured,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the names of the kept checkpoints and the best one.

        Raises:
            ValueError: A name is a path, or another value is not what `state_dict` returns.
        """
        check_keys(self, state)
        kept, best, seen, measured = (state[name] for name in ("kept", "best", "seen", "measured"))
        batch = state["batch"]
        if not isinstance(kept, list) or not all(map(folders.is_plain_name, kept)):
            raise ValueError(f"kept={_short(kept)} must be a list of names of checkpoints.")
        if not isinstance(batch, (int, NoneType)):
            raise ValueError(f"batch={_short(batch)} must be a number or None.")
        if best is not None and not _is_best(best):
            raise ValueError(f"best={_short(best)} must be the name of a checkpoint and a metric.")
        if not isinstance(seen, (Timestamp, NoneType)):
            raise ValueError(f"seen={_short(seen)} must be a Timestamp or None.")
        if not isinstance(measured, (float, int, NoneType)):
            raise ValueError(f"measured={_short(measured)} must be a number or None.")
        self._kept, self._best, self._batch = list(kept), best, batch
        self._seen, self._measured = seen, measured


def _is_best(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and folders.is_plain_name(value[0])
        and isinstance(value[1], (int, float))
    )


def _short(value: Any) -> str:
    return shorten(value, 200)


@attrs.frozen(eq=False)
class Saved:
    """The contents of a checkpoint."""

    tensors: Mapping[str, Tensor]
    data: Any
    info: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        state: State,
        run: Mapping[str, Any],
        tree: Mapping[str, Any],
        *,
        complete: bool,
        best: Mapping[str, Any] | None = None,
    ) -> "Saved":
        """Pack the tree of a run at `state`.

        Args:
            state: The state of the run.
            run: The description of the run.
            tree: What to save.
            complete: Whether training can resume from it.
            best: The metric, name and value of the best checkpoint so far.
        """
        now = state.timestamp
        from composable.checkpoint.tree import RUN, pack  # on use: it is slow to import

        tensors, data = pack({"run": run, "timestamp": now, "state": tree}, RUN)
        data["on_device"] = sorted(n for n, one in tensors.items() if one.device.type != "cpu")
        return cls(
            tensors,
            data,
            {
                "run": run["id"],
                "batch": now.batch,
                "epoch": now.epoch,
                "complete": complete,
                **({} if best is None else {"best": best}),
            },
        )

    def write(self, path: Path, *, overwrite: bool) -> Path:
        """Write a checkpoint: all processes together if tensors are divided, otherwise rank 0."""
        from composable.checkpoint import files  # on use: it is slow to import

        processes = Processes.current()
        divided = any(hasattr(tensor, "device_mesh") for tensor in self.tensors.values())
        if not (divided or processes.is_main):  # the parts of the processes were excluded
            return path
        return files.write(
            path,
            self.tensors,
            self.data,
            overwrite=overwrite,
            info=self.info,
            processes=processes if divided else None,
        )

    def copied(self) -> "Saved":
        """Return the same contents with copies of the tensors, which training does not change."""
        copies = {name: one.to("cpu", copy=True) for name, one in self.tensors.items()}
        return attrs.evolve(self, tensors=copies)


def _put_aside(target: Path) -> None:
    found = folders.put_aside(target)
    if found is not None:
        aside, fault = found
        warn_user(
            f"{target} is damaged, and was renamed to {aside}, so that training continues: {fault}",
            BrokenCheckpointWarning,
        )


def _run_of(checkpoint: Path) -> Any:
    """Return the id of the run that wrote a checkpoint, or None if there is no valid one."""
    from composable.checkpoint import files  # on use: it is slow to import

    try:
        return files.verify(checkpoint).info.get("run")
    except CheckpointError:
        return None


# --- arguments ---


def check_patterns(name: str, patterns: Any) -> tuple[str, ...]:
    """Return patterns of paths as a tuple."""
    if isinstance(patterns, str):
        return (patterns,)
    if not isinstance(patterns, Sequence) or not all(isinstance(one, str) for one in patterns):
        raise TypeError(f"{name}={patterns!r} must be a list of patterns, such as ['optimizers'].")
    return tuple(patterns)


def _check_filename(filename: Any) -> str:
    if not isinstance(filename, str):
        raise TypeError(f"filename={filename!r} must be a str, such as 'ep{{epoch}}-ba{{batch}}'.")
    allowed = ", ".join(f"{{{field}}}" for field in _FIELDS)
    try:
        fields = {
            field for _, field, _, _ in string.Formatter().parse(filename) if field is not None
        }
        example = filename.format(**dict.fromkeys(_FIELDS, 1))
    except (ValueError, KeyError, IndexError, AttributeError):
        fields, example = {"?"}, ""
    if not fields <= set(_FIELDS):
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


def _check_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be True or False.")
    return value


def _check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}.")
    return str(value)
