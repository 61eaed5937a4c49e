"""Saves checkpoints."""

import math
import string
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from torch import Tensor

from composable.checkpoint import files, folders
from composable.checkpoint.errors import CheckpointError
from composable.checkpoint.filters import without
from composable.checkpoint.tree import pack
from composable.core.callback import Callback
from composable.core.control import Control
from composable.core.event import Event
from composable.core.intervals import IntervalLike, check_interval, is_due
from composable.core.state import State
from composable.core.time import Timestamp

if TYPE_CHECKING:
    from composable.core.logger import Logger

__all__ = ["CheckpointSaver", "UnsavedCheckpointWarning"]

_FIELDS = ("epoch", "batch", "sample", "token", "iteration")


class UnsavedCheckpointWarning(UserWarning):
    """A checkpoint could not be written, and the run goes on without it."""


class CheckpointSaver(Callback):
    """Saves the run: when, where, under which names, and how many checkpoints are kept.

    The `Trainer` makes one of its `save_*` arguments. Give it several to keep, say, the last two
    of every hundred batches in one folder and every tenth epoch in another.

    A checkpoint is a folder, and it is there whole or not at all. Nothing is deleted before what
    replaces it is on the disk. The best checkpoint is kept beside the newest.

    Args:
        folder: Where the checkpoints go; it is made.
        save_interval: When to save: "1ep", "100ba", a function `(state, event) -> bool`, or None
            for whenever a callback asks with `Control.SAVE`. The end of training is saved too,
            unless it is None.
        filename: The name of a checkpoint, made of the time: {epoch}, {batch}, {sample}, {token}
            and {iteration}.
        num_checkpoints_to_keep: How many of this run's newest are kept; all where None.
        overwrite: Replace checkpoints of another run that have the same name.
        weights_only: Save the model alone. A run can't go on from such a checkpoint.
        ignore_keys: What to leave out, as patterns of paths: "memory/EMA", "optimizers".
        background: Copy what is saved, and write it while training goes on.
        on_error: What to do where it can't be written: "raise", or "warn" and go on.
        metric: The result of evaluation that tells the best checkpoint: "eval/accuracy". A better
            one is saved after its evaluation, whatever the interval.
        mode: Whether the "max" or the "min" of the metric is best.

    Raises:
        ValueError: An argument is out of its range.
        TypeError: An argument is of another kind.

    Example:
        >>> from composable.callbacks import CheckpointSaver
        >>> saver = CheckpointSaver("runs/a", save_interval="100ba", num_checkpoints_to_keep=2)
        >>> saver.filename
        'ep{epoch}-ba{batch}'
    """

    def __init__(
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
        mode: str = "max",
    ) -> None:
        self.folder = Path(folder)
        self.save_interval = check_interval("save_interval", save_interval)
        self.filename = _check_filename(filename)
        self.num_checkpoints_to_keep = _check_keep(num_checkpoints_to_keep)
        self.overwrite = _check_flag("overwrite", overwrite)
        self.weights_only = _check_flag("weights_only", weights_only)
        self.ignore_keys = check_patterns("ignore_keys", ignore_keys)
        self.background = _check_flag("background", background)
        self.on_error = _check_choice("on_error", on_error, ("raise", "warn"))
        self.metric = _check_metric(metric)
        self.mode = _check_choice("mode", mode, ("max", "min"))
        self.wanted = False
        """Whether it has asked to save, and was not told to yet."""
        self.dry_run: Callable[[str, Callable[[], Mapping[str, Any]]], object] | None = None
        """Called in the place of writing, with the name and a function that captures the run."""
        self._kept: list[str] = []
        self._best: tuple[str, float] | None = None
        self._seen: Timestamp | None = None
        self._measured: float | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    # --- when ---

    def fit_start(self, state: State, logger: "Logger") -> None:
        """Make the folder: one that vanishes later is not made again, for its disk may be gone."""
        if self.dry_run is None:
            self._settle(lambda: folders.make_folder(self.folder))

    def batch_start(self, state: State, logger: "Logger") -> None:
        """What was measured before is not of the weights to come."""
        self._measured = None

    def eval_end(self, state: State, logger: "Logger") -> None:
        """Take down the metric."""
        label, _, name = (self.metric or "").rpartition("/")
        self._measured = state.metrics.get(label, {}).get(name, self._measured)

    def batch_checkpoint(self, state: State, logger: "Logger") -> Control | None:
        """Ask to save where it is due."""
        return self._ask(state.previous_timestamp, state, Event.BATCH_END)

    def epoch_checkpoint(self, state: State, logger: "Logger") -> Control | None:
        """Ask to save where it is due."""
        return self._ask(self._seen or state.previous_timestamp, state, Event.EPOCH_END)

    def _ask(self, before: Timestamp, state: State, event: Event) -> Control | None:
        self._seen = state.timestamp
        due = is_due(self.save_interval, state.evolve(timestamp=before), state, event)
        self.wanted = self.wanted or due or self._is_better()
        return Control.SAVE if self.wanted else None

    def _is_better(self) -> bool:
        if self._measured is None or math.isnan(self._measured):
            return False
        if self._best is None:
            return True
        sign = 1 if self.mode == "max" else -1
        return sign * self._measured > sign * self._best[1]

    # --- what, and where ---

    def name_of(self, state: State) -> str:
        """The name of a checkpoint of this state."""
        now = state.timestamp
        return self.filename.format(**{field: getattr(now, field) for field in _FIELDS})

    def save(
        self, state: State, run: Mapping[str, Any], take: Callable[[bool], Mapping[str, Any]]
    ) -> None:
        """Write a checkpoint, and delete those that are too many.

        Args:
            state: Where the run stands.
            run: What the run is; `id` tells it apart from others.
            take: Gives what is saved; the weights alone where it is called with True.

        Raises:
            CheckpointError: It could not be written, and `on_error` is "raise".
        """
        self.wanted = False
        self.finish()  # one at a time, in their order
        name, kept, best = self.name_of(state), self._kept, self._best
        self._kept = [*(one for one in kept if one != name), name]
        if self._is_better():
            self._best = name, self._measured  # type: ignore[assignment]
        if self.dry_run is not None:
            self.dry_run(name, lambda: take(False))
            return
        tree = without(take(self.weights_only), self.ignore_keys)
        complete = not (self.weights_only or self.ignore_keys)
        saved = Saved.of(state, run, tree, complete=complete)

        def write(saved: Saved) -> None:
            try:
                self.write(name, saved)
            except CheckpointError:
                self._kept, self._best = kept, best
                raise
            self._drop_old()

        if not self.background:
            self._settle(lambda: write(saved))
            return
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing = self._thread.submit(write, saved.copied())

    def write(self, name: str, saved: "Saved") -> Path:
        """Write one checkpoint."""
        target = self.folder / name
        own = self.overwrite or _run_of(target) == saved.info["run"]
        return files.write(target, saved.tensors, saved.data, overwrite=own, info=saved.info)

    def _drop_old(self) -> None:
        """Delete this run's checkpoints beyond the number to keep; the newer ones are durable."""
        if self.num_checkpoints_to_keep is None:
            return
        best = self._best[0] if self._best else None
        old = [name for name in self._kept if name != best][: -self.num_checkpoints_to_keep]
        for name in old:
            folders.delete(self.folder / name)
        self._kept = [name for name in self._kept if name not in old]

    # --- in the background ---

    def finish(self) -> None:
        """Wait for what is being written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            self._settle(writing.result)

    def _settle(self, result: Callable[[], None]) -> None:
        try:
            result()
        except CheckpointError as error:
            if self.on_error == "raise":
                raise
            message = f"a checkpoint was not saved, and the run goes on: {error}"
            warnings.warn(message, UnsavedCheckpointWarning, stacklevel=4)

    def close(self) -> None:
        """Wait for what is being written."""
        try:
            self.finish()
        finally:
            if self._thread is not None:
                self._thread.shutdown()
                self._thread = None

    # --- what it remembers ---

    def state_dict(self) -> dict[str, Any]:
        """Which checkpoints it keeps, and which is the best."""
        return {
            "kept": list(self._kept),
            "best": self._best,
            "seen": self._seen,
            "measured": self._measured,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep these checkpoints."""
        self._kept, self._best = list(state["kept"]), state["best"]
        self._seen, self._measured = state["seen"], state["measured"]


@attrs.frozen(eq=False)
class Saved:
    """What goes into a checkpoint."""

    tensors: Mapping[str, Tensor]
    data: Any
    info: Mapping[str, Any]

    @classmethod
    def of(
        cls, state: State, run: Mapping[str, Any], tree: Mapping[str, Any], *, complete: bool
    ) -> "Saved":
        """The tree of a run that stands at `state`; `complete` if the run can go on from it."""
        now = state.timestamp
        tensors, data = pack({"run": run, "timestamp": now, "state": tree})
        data["on_device"] = sorted(n for n, one in tensors.items() if one.device.type != "cpu")
        return cls(
            tensors,
            data,
            {
                "run": run["id"],
                "batch": now.batch,
                "epoch": now.epoch,
                "complete": complete,
            },
        )

    def copied(self) -> "Saved":
        """The same with copies of the tensors, which training doesn't change."""
        copies = {name: one.to("cpu", copy=True) for name, one in self.tensors.items()}
        return attrs.evolve(self, tensors=copies)


def _run_of(checkpoint: Path) -> Any:
    """The number of the run that wrote a checkpoint; None where there is none."""
    try:
        return files.verify(checkpoint).info.get("run")
    except CheckpointError:
        return None


# --- arguments ---


def check_patterns(name: str, patterns: Any) -> tuple[str, ...]:
    """Patterns of paths."""
    if isinstance(patterns, str):
        return (patterns,)
    if not isinstance(patterns, Sequence) or not all(isinstance(one, str) for one in patterns):
        raise TypeError(f"{name}={patterns!r} must be patterns of paths, such as ['optimizers'].")
    return tuple(patterns)


def _check_filename(filename: Any) -> str:
    if not isinstance(filename, str):
        raise TypeError(f"filename={filename!r} must be a string such as 'ep{{epoch}}-ba{{batch}}'")
    ways = ", ".join(f"{{{field}}}" for field in _FIELDS)
    try:
        fields = {
            field for _, field, _, _ in string.Formatter().parse(filename) if field is not None
        }
        example = filename.format(**dict.fromkeys(_FIELDS, 1))
    except (ValueError, KeyError, IndexError, AttributeError):
        fields, example = {"?"}, ""
    if not fields <= set(_FIELDS):
        raise ValueError(f"filename={filename!r} may have {ways}, and nothing else in braces.")
    if not fields & {"batch", "sample", "epoch", "token"}:
        raise ValueError(
            f"filename={filename!r} would give every checkpoint one name: put {{batch}} in it."
        )
    if "/" in example or "\\" in example or example.startswith("."):
        raise ValueError(
            f"filename={filename!r} must be a name, not a path: give the folder apart."
        )
    return filename


def _check_keep(count: Any) -> int | None:
    if count is None or (isinstance(count, int) and not isinstance(count, bool) and count >= 1):
        return count
    if count == -1:
        return None
    raise ValueError(
        f"num_checkpoints_to_keep={count!r} must be an integer from 1 on, or None for all."
    )


def _check_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be True or False.")
    return value


def _check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    if value not in choices:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}.")
    return str(value)


def _check_metric(metric: Any) -> str | None:
    if metric is not None and not (isinstance(metric, str) and "/" in metric.strip("/")):
        raise ValueError(
            f"metric={metric!r} must be an evaluator's label and a metric, such as 'eval/accuracy'."
        )
    return metric
