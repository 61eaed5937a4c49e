"""The checkpoints of an external loop: what `t.save` writes, and `t.resume` reads."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import Any, NoReturn
from weakref import finalize

import attrs
import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import TypedDict

from composable._support.dtensors import is_sharded, local_part
from composable._support.tree import tensors_of
from composable.callbacks.checkpoint_saver import CheckpointSaver
from composable.checkpoint.errors import CheckpointError, MismatchError, UnsavableError
from composable.checkpoint.filters import check_patterns, expanded, replaced
from composable.core.logger import Logger
from composable.core.state import State
from composable.data.dead_workers import LOADER_ERRORS
from composable.data.order import is_stateful
from composable.distributed.processes import Processes
from composable.distributed.signals import Signals
from composable.integrations._position import LoaderPosition
from composable.optim.multi import base_optimizers
from composable.plan.plan import Plan
from composable.resume.best import Best, find_best
from composable.resume.changes import entry, warn_of_changes
from composable.resume.lock import RunLock
from composable.resume.optimizers import parameter_names
from composable.resume.parts import ALL, Parts
from composable.resume.select import (
    check_folder_is_ours,
    latest_valid,
    looks_like_checkpoint,
    refresh_folder,
)
from composable.resume.verify import Reader, ResumePoint
from composable.runs.environment import describe_environment
from composable.storage.folders import as_folder
from composable.trainer.description import describe_value
from composable.trainer.run_part import RunEntries, RunPart
from composable.trainer.undo import Undo, restore_attributes, restore_tensors, undone_on_error

_LOGGER = Logger(())


class LoopRun(RunPart):
    """The model, the optimizers and the state of an external loop."""

    @property
    def plan(self) -> Plan:
        """The plan of the algorithms."""
        return self.run.plan  # type: ignore[no-any-return]

    def state_dict(self) -> RunEntries:
        """Return the entries of a run; the sums of train_metrics are among the metrics."""
        entries, measures = RunPart.state_dict(self), self.run.measures
        if measures is not None:
            entries["metrics"] = {**entries["metrics"], **measures.states(Processes.current())}
        return entries

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        metrics, measures = dict(saved["metrics"]), self.run.measures
        # A name that no metrics have begins new averages.
        sums = {one: metrics.pop(one, {"names": None}) for one in ("train", "train_epoch")}
        RunPart.load_state_dict(self, {**saved, "metrics": metrics})
        if measures is not None:
            measures.load_state_dict(sums)

    def timestamp(self, saved: Mapping[str, Any]) -> Any:
        """Return the saved time; whether the loader fits it is known at the next epoch."""
        return saved["timestamp"]

    def duration(self, saved: Mapping[str, Any]) -> Any:
        """Return the length of training that was passed to `adapt_loop`."""
        return self.state.max_duration


# --- the user's values


class ExtraState(TypedDict):
    """The states of the user's objects, and plain values."""

    states: dict[str, Any]
    values: dict[str, Any]


@attrs.define(eq=False)
class Extra:
    """The user's values, by name: those with a `state_dict` are restored in place."""

    held: dict[str, Any]

    def objects(self) -> dict[str, Any]:
        """Return the entries that have a state."""
        return {name: value for name, value in self.held.items() if is_stateful(value)}

    def state_dict(self) -> ExtraState:
        """Return the states of objects, and the plain values."""
        objects = self.objects()
        return {
            "states": {name: value.state_dict() for name, value in objects.items()},
            "values": {name: value for name, value in self.held.items() if name not in objects},
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
        for name, value in objects.items():
            with entry(name):
                value.load_state_dict(saved[name])
        self.held.update(state["values"])


# --- saving and resuming


class SaverState(TypedDict):
    """The folder of the checkpoints, and which of them are kept."""

    folder: str
    kept: dict[str, Any]


@attrs.define(eq=False)
class LoopCheckpoints:
    """The checkpoints of an external loop, and the part that names the kept ones.

    Args:
        adapter: The external loop.
        extra: The user's values.
    """

    adapter: Any
    extra: dict[str, Any]
    saver: CheckpointSaver | None = None
    """Says when to save and where, and which checkpoints to keep."""
    _others: dict[Path, CheckpointSaver] = attrs.field(factory=dict)
    """The savers of further folders, to which only `t.save(folder)` saves."""
    position: LoaderPosition = attrs.field(init=False)
    run: str = attrs.field(factory=partial(token_hex, 8))
    """The id of the run; with several processes, rank 0 saves its id."""
    _signals: Signals = attrs.field(factory=Signals)
    _saved_at: Any = None
    _owned: set[Path] = attrs.field(factory=set)
    """The folders that this process has checked and locked."""

    def __attrs_post_init__(self) -> None:
        self.position = LoaderPosition(self.adapter)

    def use(self, folder: Any, save_interval: Any = None) -> None:
        """Save to a folder from now on, a path or a `CheckpointSaver`."""
        if not isinstance(folder, CheckpointSaver):
            folder = CheckpointSaver(folder, save_interval=save_interval)
        folder.declare_modes({})
        self.saver = folder

    # --- saving

    def save(self, folder: Any = None, metrics: Mapping[str, Any] | None = None) -> Path:
        """Save a checkpoint, and delete old ones beyond the number to keep."""
        adapter, processes = self.adapter, Processes.current()
        saver: Any = self._saver_of(folder)
        self.own_folder(saver)
        if metrics is not None:
            metrics = {**adapter.state.metrics, "eval": _as_numbers(metrics)}
            adapter.state = adapter.state.evolve(metrics=metrics)
            saver.eval_end(adapter.state, _LOGGER)
        state, tree = adapter.state, self.parts().capture()
        run = {"id": self.run, **self.describe()}
        together = is_sharded(state.model)

        def take(weights_only: bool) -> Mapping[str, Any]:
            if weights_only:
                return LoopRun(adapter, state).weights()
            return {**tree, "checkpoints": self.state_dict()}  # with the name of this one

        def save() -> None:
            _check_complete(state, tree["extra"], self.extra)
            saver.manager.save(state, run, take, together=together)

        with _naming("t.save(folder)"):
            processes.together(save)
        saver.manager.measured = None
        if saver is self.saver:
            self._saved_at = state.timestamp
        return saver.manager.latest  # type: ignore[no-any-return]

    def _saver_of(self, folder: Any) -> CheckpointSaver:
        """Return the saver of a folder; the first one is where the loop saves from now on."""
        if self.saver is None:
            self.use(folder)
        saver: Any = self.saver
        if folder is None or (path := as_folder("folder", folder)) == saver.folder:
            return saver  # type: ignore[no-any-return]
        return self._others.setdefault(path, CheckpointSaver(path, save_interval=None))

    def own_folder(self, saver: CheckpointSaver) -> None:
        """Create the folder, once, and lock it, after a check that no other run trains in it.

        Raises:
            CheckpointExistsError: It has checkpoints of another run.
            FolderInUseError: Another process trains in it.
        """
        if saver.folder in self._owned:
            return

        def prepare() -> None:
            if not saver.overwrite:
                check_folder_is_ours(
                    saver.folder,
                    self.run,
                    "call t.resume(folder), or pass autoresume=True, to resume that run, pass "
                    "CheckpointSaver(folder, overwrite=True)",
                )
            saver.manager.make_folder()
            lock = RunLock(saver.folder)
            lock.acquire()
            finalize(self, lock.release)

        with _naming("t.save(folder)"):
            Processes.current().on_main(prepare)
        self._owned.add(saver.folder)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Let SIGTERM and Ctrl-C end the loop after a batch, and save, if it has a folder."""
        self._signals = signals = Signals(shared=Processes.current().several)
        if self.saver is None:
            yield
            return
        self.own_folder(self.saver)
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
        if ends_epoch and ended.max_duration is not None and ended.elapsed >= 1:
            self.finish()

    def _end(self) -> NoReturn:
        self._save_changes()
        self.finish()
        raise self._signals.interruption()

    def _save_changes(self) -> None:
        if self._saved_at != self.adapter.state.timestamp:
            self.save()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written in the background."""
        if self.saver is not None:
            with _naming("t.save(folder)"):
                self.saver.manager.close()

    # --- resuming

    def resume(self, folder: Any, ignored: Sequence[str]) -> bool:
        """Restore the latest whole checkpoint of a folder, or a checkpoint; all of it or nothing.

        Returns:
            Whether there was one.
        """
        path, adapter = as_folder("folder", folder), self.adapter
        ignored = check_patterns("load_ignore_keys", ignored)
        processes, state = Processes.current(), adapter.state
        reader = Reader(state.device, processes, sharded=is_sharded(state.model))
        self.finish()
        with _naming(f"t.resume({str(folder)!r})"):
            refresh_folder(path, resume=True)
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
        kept = state.optimizers, base_optimizers(state.optimizers), Extra(held).objects().values()
        saver = () if self.saver is None else (self.saver, self.saver.manager)
        own = (adapter, adapter.weights, adapter.loss_shares, self.position, adapter.measures)
        own = (*own, *saver, *chain.from_iterable(kept))
        undo = [
            restore_tensors(state),
            *map(_restore_by_state, Extra(held).objects().values()),
            *map(restore_attributes, own),
        ]

        def restore_extra() -> None:
            held.clear()
            held.update(before)

        adapter.weights.forget()
        with undone_on_error(chain(undo, [restore_extra])):
            Processes.current().together(lambda: parts.restore(tree, path))
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
        if self.saver is None:
            return {"folder": "", "kept": {}}
        return {"folder": str(self.saver.folder.absolute()), "kept": self.saver.state_dict()}

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
            "optimizers": [type(optimizer).__name__ for optimizer in state.optimizers],
            "device": str(state.device),
            "torch": str(torch.__version__),
            **describe_environment(),
        }


def _as_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return results as numbers, also from tensors and values of NumPy."""
    try:
        return {name: float(value) for name, value in metrics.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise TypeError(
            f"t.save(folder): metrics={metrics!r} must have a number for each name: {error}."
        ) from None


def _restore_by_state(one: Any) -> Undo:
    """Return a function that loads the state of now again, if the object can load it."""
    saved = deepcopy(one.state_dict())

    def restore() -> None:
        with suppress(Exception):  # it may be what failed
            one.load_state_dict(saved)

    return restore


def _check_complete(state: State, saved: ExtraState, extra: Mapping[str, Any]) -> None:
    """Check that a checkpoint has all parameters that are trained, and can be read again.

    Raises:
        UnsavableError: An optimizer has another one, or a name in `extra` is not a string.
    """
    if wrong := [name for name in extra if not isinstance(name, str)]:
        raise UnsavableError(f"extra has the name {wrong[0]!r}: names must be strings.")
    names = parameter_names(state.model, state.loss_module)
    others = [one for one in extra.values() if isinstance(one, Optimizer)]
    groups = [group for one in (*state.optimizers, *others) for group in one.param_groups]
    unknown = [p for group in groups for p in group["params"] if id(p) not in names]
    held = {_memory(tensor) for tensor in tensors_of(saved["states"])} if unknown else set()
    if missing := [list(p.shape) for p in unknown if _memory(p) not in held]:
        raise UnsavableError(
            f"{len(missing)} parameters of the optimizers are not in the model, such as one of "
            f"shape {missing[0]}, so they would be lost; pass their module in extra= of adapt_loop."
        )


def _memory(tensor: Tensor) -> int:
    return local_part(tensor).untyped_storage().data_ptr()


_OF_LOOP = {
    "load_weights_only=True": "composable.checkpoint.load_weights(t.model, path)",
    "Build the Trainer": "Build the loop",
    "this Trainer": "this loop",
    "['optimizers', 'rates']": "['optimizers']",
}
"""Advice for the Trainer, and for loops."""


@contextmanager
def _naming(call: str) -> Iterator[None]:
    """Name the call in the errors of checkpoints, whose advice is that for the Trainer."""
    try:
        yield
    except CheckpointError as error:
        text = str(error)
        for theirs, ours in _OF_LOOP.items():
            text = text.replace(theirs, ours)
        raise type(error)(f"{call}: {text}") from error.__cause__
