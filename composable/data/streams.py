"""Loaders of iterable datasets: their position in an epoch, and their worker processes.

The workers of a `DataLoader` read ahead of training. So the state of the dataset travels with each
batch, and the position in an epoch counts the batches that were returned.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import attrs
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from composable._support.tree import tensors_of
from composable._support.warn import warn_user
from composable.data.fetching import Epoch, Fetch, copy_loader, current_fetch, enter_epoch
from composable.data.worker_shard import WorkerShard
from composable.utils.reproducibility import seed_epoch, seed_fetch


class UnshardedStreamWarning(UserWarning):
    """Several worker processes read an iterable dataset that is not divided among them."""


def stream_batches(dataloader: DataLoader[Any]) -> Iterator[Any]:
    """Iterate over a loader of which `is_stream` is true, with new workers.

    Warns:
        UnshardedStreamWarning: No worker read which one it is.
    """
    return _with_workers(dataloader) if dataloader.num_workers else iter(dataloader)


def _with_workers(dataloader: DataLoader[Any], turn: int = 0, **changes: Any) -> Iterator[Any]:
    """Iterate over a changed copy of a loader, whose first worker has the number `turn`."""
    asked: Tensor | None = None
    if dataloader.num_workers > 1 and dataloader not in _watched:  # report once for a loader
        _watched.add(dataloader)
        asked = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
    then, fetch = dataloader.worker_init_fn, current_fetch()
    init = partial(_init_worker, then=then, turn=turn, asked=asked, fetch=fetch)
    loader = copy_loader(dataloader, persistent_workers=False, worker_init_fn=init, **changes)
    return iter(loader) if asked is None else _reporting(iter(loader), dataloader, asked)


# --- the position ---


@attrs.define(eq=False)
class Position:
    """How far an epoch was read: the state of the dataset in each process."""

    dataset: Any
    num_workers: int
    """The number of workers that have a state; 0 if the main process has it."""
    turn: int
    """The worker that returns the next batch."""
    samples: int
    batches: list[int]
    """The number of batches that each worker has returned."""
    states: list[Any]
    """The state of each worker's dataset after them; None before its first batch."""
    begun: bool = False
    """Whether a batch was returned: before that, the dataset is not where it will begin."""

    @classmethod
    def of(cls, dataloader: DataLoader[Any], state: Mapping[str, Any] | None) -> "Position":
        """Return the position of a state, or the start of an epoch."""
        workers = _stateful_workers(dataloader)
        if state is not None:
            parts = {name: copy.deepcopy(state[name]) for name in _PARTS}
            return cls(dataloader.dataset, workers, **parts)
        return cls(dataloader.dataset, workers, 0, 0, [0] * workers, [None] * max(workers, 1))

    def record(self, fetched: "Fetched") -> None:
        """Count a batch of a worker."""
        self.states[fetched.worker] = fetched.state
        self.batches[fetched.worker] += 1
        self.turn = (fetched.worker + 1) % self.num_workers

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain values."""
        parts = {name: copy.deepcopy(getattr(self, name)) for name in _PARTS}
        if self.begun and not self.num_workers:
            given = (self.samples, True) if _counts_samples(self.dataset) else ()
            parts["states"] = [copy.deepcopy(self.dataset.state_dict(*given))]
        return {"num_workers": self.num_workers, **parts}


_PARTS = ("turn", "samples", "batches", "states")
_positions: WeakKeyDictionary[DataLoader[Any], Position] = WeakKeyDictionary()


def begin_stream(dataloader: DataLoader[Any], state: Mapping[str, Any] | None) -> Position:
    """Return the position of a loader in an epoch that begins at a state, and keep it."""
    position = _positions[dataloader] = Position.of(dataloader, state)
    return position


def read_stream_state(dataloader: DataLoader[Any]) -> dict[str, Any] | None:
    """Return the position in the epoch that was iterated over last, or None before the first."""
    position = _positions.get(dataloader)
    return None if position is None else position.state_dict()


def check_stream_state(dataloader: DataLoader[Any], state: Mapping[str, Any]) -> None:
    """Check that a state was read from a loader like this one.

    Raises:
        ValueError: It was read from another one.
    """
    if state.keys() != {"num_workers", *_PARTS}:
        raise ValueError(
            f"the loader's state has the entries {sorted(map(str, state))[:8]}; pass the value of "
            "read_loader_state for a DataLoader of an iterable dataset."
        )
    saved, own = state["num_workers"], _stateful_workers(dataloader)
    if saved != own:
        raise ValueError(
            f"the loader's state was read with num_workers={saved}, and this loader has "
            f"num_workers={own}: each worker has its own state. Build the loader with "
            f"num_workers={saved}."
        )
    lengths = {"batches": own, "states": max(own, 1)}
    for name, length in lengths.items():
        if not isinstance(state[name], list) or len(state[name]) != length:
            raise ValueError(f"{name} in the loader's state must be a list of {length}.")
    counts = [state["turn"], state["samples"], *state["batches"]]
    if any(type(count) is not int or count < 0 for count in counts) or state["turn"] >= max(own, 1):
        raise ValueError(
            "turn, samples and batches in the loader's state must be non-negative integers, and "
            f"turn must be less than {max(own, 1)}."
        )


def _stateful_workers(dataloader: DataLoader[Any]) -> int:
    return 0 if _counts_samples(dataloader.dataset) else dataloader.num_workers


def _counts_samples(dataset: Any) -> bool:
    """Return whether the state of a dataset is a function of the number of samples.

    So it is for MosaicML's `StreamingDataset`, whose workers read the position from shared memory.
    """
    return "num_samples" in inspect.signature(dataset.state_dict).parameters


# --- iterating from a position ---


def stateful_stream_batches(
    dataloader: DataLoader[Any], epoch: Epoch, skip: int, state: Mapping[str, Any] | None
) -> Iterator[Any]:
    """Iterate over an epoch of a loader of which `is_stateful_stream` is true.

    The global generators are seeded before each batch, in the workers too.

    Args:
        dataloader: The loader; it is not changed.
        epoch: What is fetched, from its first batch on.
        skip: The number of batches before `state`; 0 without one.
        state: What `read_stream_state` returned, or None to start with the first batch.
    """
    _check_shard(dataloader)
    key, step = epoch.key, epoch.step
    position = begin_stream(dataloader, state)
    counts = _counts_samples(dataloader.dataset)
    if position.num_workers:
        batches = _track_workers(dataloader, epoch, position)
    else:
        if state is not None:
            dataloader.dataset.load_state_dict(position.states[0])  # type: ignore[attr-defined]
        seed_epoch(key, epoch.number)
        batches = stream_batches(dataloader)
    if skip:
        seed_fetch(key, step + skip)
    for following, batch in enumerate(batches, step + skip + 1):
        if counts:
            position.samples += _count_samples(batch)
        position.begun = True
        yield batch
        seed_fetch(key, following)


def _check_shard(dataloader: DataLoader[Any]) -> None:
    shard = dataloader.dataset
    if not (isinstance(shard, WorkerShard) and dataloader.num_workers):
        return
    if dataloader.batch_size != shard.batch_size:
        raise ValueError(
            f"the DataLoader has batch_size={dataloader.batch_size}, and its WorkerShard has "
            f"batch_size={shard.batch_size}: pass the same, since workers take turns by batch."
        )


def _count_samples(batch: Any) -> int:
    return next((len(tensor) for tensor in tensors_of(batch) if tensor.ndim), 0) or len(batch)


def _track_workers(dataloader: DataLoader[Any], epoch: Epoch, position: Position) -> Iterator[Any]:
    """Iterate over the batches of workers that return the state of their dataset with each."""
    seed_epoch(epoch.key, epoch.number)
    stream = TrackedStream(dataloader.dataset, epoch, position, dataloader.generator is None)
    collate = partial(stream.fetched, dataloader.collate_fn)
    for fetched in _with_workers(dataloader, position.turn, dataset=stream, collate_fn=collate):
        position.record(fetched)
        yield fetched.batch


class Fetched:
    """A batch of a worker, and the state of the worker's dataset after it."""

    __slots__ = ("batch", "state", "worker")

    def __init__(self, batch: Any, state: Any, worker: int) -> None:
        self.batch, self.state, self.worker = batch, state, worker

    def pin_memory(self) -> "Fetched":
        """Pin the tensors of the batch; a `DataLoader` calls this if it has `pin_memory=True`."""
        batch = pin_memory(self.batch)  # type: ignore[no-untyped-call]
        return Fetched(batch, self.state, self.worker)


class TrackedStream(IterableDataset[Any]):
    """The dataset in a worker, which starts from a state and seeds each batch."""

    worker, workers = 0, 1  # set by _init_worker

    def __init__(self, dataset: Any, epoch: Epoch, begin: Position, after_a_draw: bool) -> None:
        self.dataset, self.epoch, self.after_a_draw = dataset, epoch, after_a_draw
        self.states, self.batches = list(begin.states), list(begin.batches)

    def __iter__(self) -> Iterator[Any]:
        seed_epoch(self.epoch.key, self.epoch.number)
        if self.after_a_draw:  # as without workers, where the DataLoader draws a seed first
            torch.empty((), dtype=torch.int64).random_()
        if self.states[self.worker] is not None:
            self.dataset.load_state_dict(self.states[self.worker])
        examples: Iterator[Any] = iter(self.dataset)
        self.seed()
        return examples

    def seed(self) -> None:
        """Seed the global generators for the next batch of this worker."""
        number = self.batches[self.worker] * self.workers + self.worker
        if number:  # seed_epoch seeds the first batch of an epoch
            seed_fetch(self.epoch.key, self.epoch.step + number)

    def fetched(self, collate: Callable[[Any], Any], examples: Any) -> Fetched:
        """Collate examples, read the state after them, and seed the next batch."""
        batch = collate(examples)
        state = copy.deepcopy(self.dataset.state_dict())  # it is pickled later, in a thread
        self.batches[self.worker] += 1
        self.seed()
        return Fetched(batch, state, self.worker)


# --- worker processes ---


def _init_worker(
    worker_id: int,
    *,
    then: Callable[[int], object] | None,
    turn: int,
    asked: Tensor | None,
    fetch: Fetch | None,
) -> None:
    """Set the number of a worker of a stream, and call the user's function.

    Args:
        worker_id: Its number in the loader.
        then: The user's function.
        turn: The number of the first worker: that whose batch is next.
        asked: A shared tensor that records whether anything reads which worker it is in.
        fetch: The fetch in progress, which a started worker may not inherit.
    """
    info: Any = get_worker_info()
    number = (worker_id + turn) % info.num_workers
    if isinstance(info.dataset, TrackedStream):
        info.dataset.worker, info.dataset.workers = number, info.num_workers
        object.__setattr__(info, "dataset", info.dataset.dataset)  # a WorkerInfo is frozen
    object.__setattr__(info, "id", number)
    if fetch is not None:
        enter_epoch(fetch.epoch)
    if asked is not None:
        _record_reads(info, asked)
    if then is not None:
        then(number)


def _record_reads(info: Any, asked: Tensor) -> None:
    """Let what `get_worker_info` returns record that it is read."""

    class WatchedInfo(type(info)):  # type: ignore[misc]
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name in ("id", "num_workers", "seed", "dataset"):
                asked.fill_(1)
            return super().__getattribute__(name)

    object.__setattr__(info, "__class__", WatchedInfo)


def _reporting(batches: Iterator[Any], dataloader: DataLoader[Any], asked: Tensor) -> Iterator[Any]:
    """Iterate, and report after a batch of each worker, or at the end of a shorter epoch."""
    pending = dataloader.num_workers
    for batch in batches:
        pending -= 1
        if not pending:
            _report_unshared(dataloader, asked)
        yield batch
    if pending > 0:
        _report_unshared(dataloader, asked)


def _report_unshared(dataloader: DataLoader[Any], asked: Tensor) -> None:
    """Warn if no worker has read which one it is."""
    if asked.item():
        return
    count, name = dataloader.num_workers, type(dataloader.dataset).__name__
    warn_user(
        f"{count} workers read the iterable dataset {name}, and none of them called "
        f"get_worker_info(): if each reads all examples, an epoch has every example {count} "
        "times. Divide them in __iter__, wrap the dataset in composable.data.WorkerShard, or "
        "ignore this warning if the examples are random.",
        UnshardedStreamWarning,
    )


_watched: WeakSet[DataLoader[Any]] = WeakSet()
