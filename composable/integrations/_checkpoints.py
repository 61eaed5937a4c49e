"""The checkpoints of an external loop: what `t.save` writes, and `t.resume` reads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import Any, NoReturn
from weakref import finalize

import attrs
import torch
from typing_extensions import TypedDict

from composable._support.checks import as_path
from composable._support.dtensors import is_sharded
from composable.callbacks.checkpoint_saver import CheckpointSaver
from composable.checkpoint.errors import CheckpointError, MismatchError
from composable.checkpoint.filters import expanded, replaced
from composable.core.logger import Logger
from composable.data.dead_workers import LOADER_ERRORS
from composable.data.order import is_stateful
from composable.distributed.processes import Processes
from composable.distributed.signals import Signals
from composable.integrations._position import Position
from composable.optim.multi import base_optimizers
from composable.plan.plan import Plan
from composable.resume.best import Best, find_best
from composable.resume.changes import entry, warn_of_changes
from composable.resume.lock import RunLock
from composable.resume.parts import ALL, Parts
from composable.resume.select import check_folder_is_ours, latest_valid, looks_like_checkpoint
from composable.resume.verify import Reader, ResumePoint
from composable.runs.environment import describe_environment
from composable.trainer.description import describe_value
from composable.trainer.run_part import RunPart
from composable.trainer.undo import restore_attributes, restore_tensors, undone_on_error

__all__ = ["LoopCheckpoints"]

_LOGGER = Logger(())


class LoopRun(RunPart):
    """The model, the optimizers and the state of an external loop."""

    @property
    def plan(self) -> Plan:
        """The plan of the algorithms."""
        return self.run.plan  # type: ignore[no-any-return]

    def timestamp(self, saved: Mapping[str, Any]) -> Any:
        """Return the saved time; whether the loader fits it is known at the next epoch."""
        return saved["timestamp"]

    def duration(self, saved: Mapping[str, Any]) -> Any:
        """Return the length of training that was passed to `adapt_loop`."""
        return self.state.max_duration


# --- the user's own values


class ExtraState(TypedDict):
    """The states of the user's objects, and plain values."""

    states: dict[str, Any]
    values: dict[str, Any]


@attrs.define(eq=False)
class Extra:
    """The user's own values, by name: those with a `state_dict` are restored in place."""

    held: dict[str, Any]

    def objects(self) -> dict[str, Any]:
        """Return the entries that have a state."""
        return {name: one for name, one in self.held.items() if is_stateful(one)}

    def state_dict(self) -> ExtraState:
        """Return the states of objects, and the plain values."""
        objects = self.objects()
        return {
            "states": {name: one.state_dict() for name, one in objects.items()},
            "values": {name: one for name, one in self.held.items() if name not in objects},
        }

    def load_state_dict(self, state: ExtraState) -> None:
        """Restore the objects in place, and set the plain values.

        Raises:
            MismatchError: The objects have other names.
        """
        objects, saved = self.objects(), state["states"]
        if differing := sorted(objects.keys() ^ saved.keys()):
            raise MismatchError(
                f"states: {', '.join(differing)} must be objects with a state_dict in extra= of "
                "adapt_loop, both when a checkpoint is saved and when it is resumed."
            )
        for name, one in objects.items():
            with entry(name):
                one.load_state_dict(saved[name])
        self.held.update(state["values"])


# --- saving and resuming


class SaverState(TypedDict):
    """The folder of the checkpoints, and which of them are kept."""

    folder: str
    kept: dict[str, Any]


@attrs.define(eq=False)
class LoopCheckpoints:
    """The checkpoints of an external loop, and the part of them that names those that are kept.

    Args:
        adapter: The external loop.
        extra: The user's own values.
    """

    adapter: Any
    extra: dict[str, Any]
    saver: CheckpointSaver | None = None
    """Says when to save and where, and which checkpoints to keep."""
    position: Position = attrs.field(init=False)
    run: str = attrs.field(factory=partial(token_hex, 8))
    """The id of the run; with several processes, that of rank 0 is saved."""
    _signals: Signals = attrs.field(factory=Signals)
    _saved_at: Any = None
    _owned: Path | None = None
    """The folder that this process has checked and locked."""
    _release: Callable[[], object] = lambda: None
    """Unlocks the folder."""

    def __attrs_post_init__(self) -> None:
        self.position = Position(self.adapter)

    def use(self, folder: Any, save_interval: Any = None) -> None:
        """Save to a folder from now on, a path or a `CheckpointSaver`."""
        if isinstance(folder, CheckpointSaver):
            self.saver = folder
            self.saver.declare_modes({})
            return
        path = as_path("folder", folder)
        if self.saver is None or self.saver.folder != path:
            self.saver = CheckpointSaver(path, save_interval=save_interval)

    # --- saving

    def save(self, metrics: Mapping[str, Any] | None = None) -> Path:
        """Save a checkpoint, and delete old ones beyond the number to keep."""
        adapter, processes = self.adapter, Processes.current()
        saver: Any = self.saver
        self.own_folder()
        if metrics is not None:
            adapter.state = adapter.state.evolve(
                metrics={**adapter.state.metrics, "eval": dict(metrics)}
            )
            saver.eval_end(adapter.state, _LOGGER)
        state, tree = adapter.state, self.parts().capture()
        run = {"id": self.run, **self.describe()}
        together = is_sharded(state.model)

        def take(weights_only: bool) -> Mapping[str, Any]:
            if weights_only:
                return LoopRun(adapter, state).weights()
            return {**tree, "checkpoints": self.state_dict()}  # with the name of this one

        def save() -> None:
            saver.manager.save(state, run, take, together=together)

        with _naming("t.save(folder)"):
            processes.together(save)
        saver.manager.measured = None
        self._saved_at = state.timestamp
        return saver.manager.latest  # type: ignore[no-any-return]

    def own_folder(self) -> None:
        """Create the folder, once, and lock it, after a check that no other run trains in it.

        Raises:
            CheckpointExistsError: It has checkpoints of another run.
            FolderInUseError: Another process trains in it.
        """
        saver: Any = self.saver
        if self._owned == saver.folder:
            return

        def own() -> None:
            if not saver.overwrite:
                check_folder_is_ours(
                    saver.folder,
                    self.run,
                    "call t.resume(folder), or pass autoresume=True, to resume that run, pass "
                    "CheckpointSaver(folder, overwrite=True)",
                )
            saver.manager.make_folder()
            self._release()
            lock = RunLock(saver.folder)
            lock.acquire()
            self._release = finalize(self, lock.release)

        with _naming("t.save(folder)"):
            Processes.current().on_main(own)
        self._owned = saver.folder

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Let SIGTERM and Ctrl-C end the loop after a batch, and save, if it has a folder."""
        self._signals = signals = Signals(shared=Processes.current().several)
        if self.saver is None:
            yield
            return
        self.own_folder()
        with signals.handled(saves=True):
            try:
                yield
            except LOADER_ERRORS:  # the signal has ended the workers of the loader too
                if signals.received is None:
                    raise
                self._end()

    def after_batch(self, *, ends_epoch: bool = False) -> None:
        """Save if that is due, or if a signal arrived; in that case, end the loop.

        At the end of an epoch, the clock is still at its last batch: what the loop does after it,
        such as a step of a scheduler, is done again after a resume.

        Raises:
            Preempted: SIGTERM arrived. The checkpoint is saved.
            KeyboardInterrupt: Ctrl-C was pressed. The checkpoint is saved.
        """
        saver, state, signals = self.saver, self.adapter.state, self._signals
        if saver is None:
            return
        if ends_epoch:
            ended = state.evolve(timestamp=state.timestamp.next_epoch())
            due = saver.epoch_checkpoint(ended, _LOGGER)
        else:
            due = saver.batch_checkpoint(state, _LOGGER)
        (number,) = Processes.current().maximum([signals.arrived or 0])
        signals.received = number or None
        if signals.received:
            self._end()
        if due:
            self._save_changes()

    def _end(self) -> NoReturn:
        saver: Any = self.saver
        self._save_changes()
        saver.manager.finish()
        raise self._signals.interruption()

    def _save_changes(self) -> None:
        if self._saved_at != self.adapter.state.timestamp:
            self.save()

    # --- resuming

    def resume(self, folder: Any, ignored: Sequence[str]) -> bool:
        """Restore the latest whole checkpoint of a folder, or a checkpoint; all of it or nothing.

        Returns:
            Whether there was one.
        """
        path, adapter = as_path("folder", folder), self.adapter
        processes, state = Processes.current(), adapter.state
        reader = Reader(state.device, processes, sharded=is_sharded(state.model))
        with _naming(f"t.resume({str(folder)!r})"):
            single = processes.on_main(lambda: looks_like_checkpoint(path))
            point = reader.point(path, ignored) if single else latest_valid(path, reader)
            if not single and self.saver is None:
                self.use(path)
            if point is None:
                return False
            self._restore(point, ignored)
        self.run = point.run
        before = point.description
        warn_of_changes(point.path, before, {**self.describe(), "hyperparameters": {}}, {})
        return True

    def _restore(self, point: ResumePoint, ignored: Sequence[str]) -> None:
        adapter, path = self.adapter, str(point.path)
        tree, parts, state = point.load(adapter.state).tree, self.parts(), adapter.state
        if ignored:
            tree = replaced(tree, parts.capture(), expanded(ignored))
        parts.check(tree, path)
        held, before = self.extra, dict(self.extra)
        kept = (
            *state.optimizers,
            *base_optimizers(state.optimizers),
            *Extra(held).objects().values(),
        )
        saver = () if self.saver is None else (self.saver, self.saver.manager)
        own = (adapter, adapter.weights, adapter.loss_shares, self.position, *saver, *kept)
        undo = [restore_tensors(state), *map(restore_attributes, own)]

        def restore_extra() -> None:
            held.clear()
            held.update(before)

        adapter.weights.forget()
        with undone_on_error(chain(undo, [restore_extra])):
            parts.restore(tree, path)
        adapter.return_to({})
        for optimizer in state.optimizers:  # a scheduler of torch may be the next to step
            optimizer._opt_called = True

    def parts(self) -> Parts:
        """Return the parts of a checkpoint, in the order in which they are restored."""
        adapter = self.adapter
        return Parts(
            {
                ALL: LoopRun(adapter, adapter.state),
                "weights": adapter.weights,
                "loss_shares": adapter.loss_shares,
                "extra": Extra(self.extra),
                "checkpoints": self,
                "position": self.position,
            }
        )

    def state_dict(self) -> SaverState:
        """Return the names of the kept checkpoints and the best one."""
        saver: Any = self.saver
        return {"folder": str(saver.folder.absolute()), "kept": saver.state_dict()}

    def load_state_dict(self, state: SaverState) -> None:
        """Restore the names of the kept checkpoints, if they are in the folder of this run."""
        if self.saver is not None and state["folder"] == str(self.saver.folder.absolute()):
            self.saver.load_state_dict(state["kept"])

    @property
    def best(self) -> Best | None:
        """The best checkpoint so far."""
        return find_best([] if self.saver is None else [self.saver.manager], None)

    def describe(self) -> dict[str, Any]:
        """Describe the run as plain values."""
        adapter, state = self.adapter, self.adapter.state
        return {
            "seed": state.key.seed,
            "max_duration": str(state.max_duration),
            "requested_duration": str(state.max_duration),
            "model": type(state.model).__name__,
            "algorithms": {one.name: describe_value(one) for one in adapter.plan.algorithms},
            "callbacks": {},
            "optimizers": [type(one).__name__ for one in state.optimizers],
            "device": str(state.device),
            "torch": str(torch.__version__),
            **describe_environment(),
        }


_OF_TRAINER = "load_weights_only=True"
_OF_LOOP = "composable.checkpoint.load_weights(t.model, path)"


@contextmanager
def _naming(call: str) -> Iterator[None]:
    """Name the call in the errors of checkpoints, whose advice is that for the Trainer."""
    try:
        yield
    except CheckpointError as error:
        text = str(error).replace(_OF_TRAINER, _OF_LOOP)
        raise type(error)(f"{call}: {text}") from error.__cause__
