"""Writes the checkpoints of a run to a folder, and deletes old ones."""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from typing_extensions import TypedDict

from composable._support.warn import warn_user
from composable.checkpoint.errors import (
    BrokenCheckpointWarning,
    CheckpointError,
    DamagedCheckpointError,
    TakenOverError,
)
from composable.checkpoint.filters import expanded, replaced
from composable.checkpoint.manifest import is_plain_name
from composable.core.results import is_better
from composable.core.state import State
from composable.core.stateful import Kind, check_type
from composable.distributed.processes import Processes
from composable.resume.parts import Saved
from composable.storage.folders import remote_at

if TYPE_CHECKING:
    from composable.storage.remote_folder import RemoteFolder


FIELDS = ("epoch", "batch", "sample", "token", "iteration")
"""The fields of a file name."""


class UnsavedCheckpointWarning(UserWarning):
    """A checkpoint could not be written, and training continues without it."""


def _is_best(value: Any) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return value is None
    return is_plain_name(value[0]) and isinstance(value[1], (int, float))


class ManagerState(TypedDict):
    """The names of the kept checkpoints, the batch of the last, and the best."""

    kept: list[Annotated[str, Kind("the name of a checkpoint", is_plain_name)]]
    batch: int | None
    best: Annotated[Any, Kind("the name of a checkpoint and a result, or None", _is_best)]
    measured: float | int | None


class Settings(Protocol):
    """The arguments of a `CheckpointSaver`."""

    folder: Path
    save_interval: Any
    filename: str
    num_checkpoints_to_keep: int | None
    overwrite: bool
    weights_only: bool
    ignore_keys: tuple[str, ...]
    background: bool
    on_error: str
    metric: str | None
    mode: str | None


class CheckpointManager:
    """Writes the checkpoints that a `CheckpointSaver` requests, and deletes old ones.

    Args:
        settings: What to save, where, and how much of it to keep.
        dry_run: Called in the place of writing, with the name and a function that captures the run.
    """

    def __init__(
        self,
        settings: Settings,
        dry_run: Callable[[str, Callable[[], Mapping[str, Any]]], object] | None = None,
    ) -> None:
        self.settings = settings
        self._remote: RemoteFolder | None = remote_at(settings.folder)
        self.dry_run = dry_run
        self.wanted = False
        """Whether a save is requested and not yet done."""
        self.measured: float | None = None
        """The result of the current weights, if they were evaluated."""
        self.best: tuple[str, float] | None = None
        """The name of the best checkpoint so far, and its result."""
        self._kept: list[str] = []
        self._batch: int | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    @property
    def latest(self) -> Path | None:
        """The path of the latest checkpoint."""
        return self.settings.folder / self._kept[-1] if self._kept else None

    @property
    def improved(self) -> bool:
        """Whether the last result is better than the best checkpoint's."""
        if self.measured is None:
            return False
        return is_better(
            str(self.settings.mode), self.measured, None if self.best is None else self.best[1]
        )

    def make_folder(self) -> None:
        """Create the folder, once: if it vanishes later, its disk may have been unmounted."""
        if self.dry_run is None and Processes.current().is_main:
            from composable.checkpoint.atomic import make_folder  # on use: it is slow to import

            self._settle(lambda: make_folder(self.settings.folder))
            if self._remote is not None:
                self._settle(self._remote.claim)

    def name_of(self, state: State) -> str:
        """Return the name of the checkpoint of a state."""
        now = state.timestamp
        return self.settings.filename.format(**{field: getattr(now, field) for field in FIELDS})

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
        name, batch = self.name_of(state), state.timestamp.batch
        before = self._kept, self.best, self._batch
        outdated = self._kept[-1] if self._kept and self._batch == batch else None
        self._kept = [*(one for one in self._kept if one != name), name]
        self._batch = batch
        if self.improved:
            self.best = name, self.measured  # type: ignore[assignment]
        if self.dry_run is not None:
            self.dry_run(name, lambda: take(False))
            return
        if not (Processes.current().is_main or together):
            self._forget_old(outdated)  # rank 0 writes
            return
        tree = take(self.settings.weights_only)
        tree = replaced(tree, {}, expanded(self.settings.ignore_keys))
        complete = not (self.settings.weights_only or self.settings.ignore_keys)
        saved = Saved.of(state, run, tree, complete=complete, best=self._describe_best())

        def write(saved: Saved) -> None:
            try:
                self.write(name, saved)
            except CheckpointError:
                self._kept, self.best, self._batch = before
                raise
            old = self._forget_old(outdated)
            if Processes.current().is_main:
                self._replace(old, saved.info["run"])

        # The parts of several processes are written together, between their steps.
        if not self.settings.background or together:
            self._settle(lambda: write(saved))
            return
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing = self._thread.submit(write, saved.copied())

    def _replace(self, old: Sequence[str], run: str) -> None:
        """Delete checkpoints of a run, after the newer one was written, and copy it to the URL."""
        from composable.checkpoint.files import delete  # on use: it is slow to import

        remote = self._remote
        for name in old:
            if remote is None:
                delete(self.settings.folder / name, run)
            else:
                remote.drop(name, run)
        if remote is not None:
            remote.push(self._kept)

    def _describe_best(self) -> dict[str, Any] | None:
        if self.best is None:
            return None
        name, value = self.best
        exact = value if math.isfinite(value) else str(value)  # JSON has no infinities
        return {
            "metric": self.settings.metric,
            "mode": self.settings.mode,
            "checkpoint": name,
            "value": exact,
        }

    def write(self, name: str, saved: Saved) -> Path:
        """Write one checkpoint."""
        target, own = self.settings.folder / name, self.settings.overwrite
        if Processes.current().is_main and not own:
            hollow = self._remote is not None and name in self._remote.hollow
            own = hollow or _run_at(target) == saved.info["run"]
        return saved.write(target, overwrite=own)

    def _forget_old(self, outdated: str | None) -> list[str]:
        """Drop the names beyond the number to keep, and return them."""
        if self.settings.num_checkpoints_to_keep is None:
            return []
        best, newest = self.best[0] if self.best else None, self._kept[-1]
        old = [outdated] if outdated not in (None, best, newest) else []
        recent = [name for name in self._kept if name not in (best, *old)]
        old += recent[: -self.settings.num_checkpoints_to_keep]
        self._kept = [name for name in self._kept if name not in old]
        return old

    def finish(self) -> None:
        """Wait for the checkpoint that is being written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            self._settle(writing.result)

    def _settle(self, result: Callable[[], None]) -> None:
        try:
            result()
        except CheckpointError as error:
            if self.settings.on_error == "raise" or isinstance(error, TakenOverError):
                raise
            message = f"a checkpoint could not be saved, training continues: {error}"
            warn_user(message, UnsavedCheckpointWarning)

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and stop the thread."""
        try:
            self.finish()
            if self._remote is not None:
                self._settle(self._remote.finish)
        finally:
            if self._thread is not None:
                self._thread.shutdown()
                self._thread = None

    def state_dict(self) -> ManagerState:
        """Return the names of the kept checkpoints and the best one.

        What is not yet deleted from the store is among them: another machine deletes it then.
        """
        dropped = [] if self._remote is None else self._remote.dropped()
        return {
            "kept": [*(name for name in dropped if name not in self._kept), *self._kept],
            "batch": self._batch,
            "best": self.best,
            "measured": self.measured,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ValueError: A name is a path, or another value is not what `state_dict` returns.
        """
        check_type({name: state[name] for name in self.state_dict()}, ManagerState)
        self._kept, self._batch = list(state["kept"]), state["batch"]
        self.best, self.measured = state["best"], state["measured"]


def _run_at(target: Path) -> Any:
    """Return the id of the run that wrote a checkpoint, or None; rename a damaged one."""
    from composable.checkpoint import files  # on use: it is slow to import

    try:
        return files.verify(target).info.get("run")
    except DamagedCheckpointError as fault:
        if aside := files.put_aside(target):
            warn_user(
                f"{target} is damaged, and was renamed to {aside}, so that training continues: "
                f"{fault}",
                BrokenCheckpointWarning,
            )
    except CheckpointError:
        pass
    return None
