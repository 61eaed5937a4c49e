"""Streams that say how they are divided among processes."""

import inspect
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, IterDataPipe

from composable._support.warn import warn_user
from composable.data.fetching import copy_loader
from composable.data.order import is_stream
from composable.distributed.processes import Processes

_DIVIDE_THEMSELVES = ("streaming", "webdataset")
"""Packages whose streams have the part of their process."""
_sharded: WeakSet[DataLoader[Any]] = WeakSet()


def is_local_stream(loader: DataLoader[Any]) -> bool:
    """Return whether a loader has the part of its process of a stream.

    These are what `shard_stream` returned; streams of WebDataset and MosaicML Streaming; data
    pipes with a `sharding_filter`, which PyTorch divides; and what `datasets.distributed` returns.
    """
    if loader in _sharded or getattr(loader.dataset, "_distributed", None) is not None:
        return True
    packages = {kind.__module__.partition(".")[0] for kind in type(loader.dataset).__mro__}
    if not packages.isdisjoint(_DIVIDE_THEMSELVES):
        return isinstance(loader.dataset, IterableDataset)
    return isinstance(loader.dataset, IterDataPipe) and _is_filtered(loader.dataset)


def shard_stream(loader: Any, processes: Processes, has_shards: bool = False) -> Any:
    """Return a loader of the part of this process, if its stream says how it is divided.

    A stream has a method `shard(num_shards, index)` for this, as in `datasets`. The batches of all
    processes together have the size of the given loader's.

    Args:
        loader: The loader; it is not changed.
        processes: The processes of the run.
        has_shards: Whether the user has passed a number of shards.

    Warns:
        UnshardedStreamWarning: Each process reads all of the stream.
        UserWarning: A number of shards has been passed, but other processes read other examples.
    """
    if not (processes.several and is_stream(loader)):
        return loader
    if is_local_stream(loader):
        _warn_of_shards(loader, processes, has_shards)
        return loader
    size, batch_size = processes.size, loader.batch_size
    shard = _shard_of(loader.dataset)
    if shard is None or batch_size is None or batch_size % size:
        if processes.is_main:
            from composable.data.streams import UnshardedStreamWarning  # on use

            warn_user(_advice(loader, size, divides=shard is not None), UnshardedStreamWarning)
        return loader
    batch_size //= size
    divided = copy_loader(
        loader,
        dataset=shard(size, processes.rank),
        batch_size=batch_size,
        batch_sampler=BatchSampler(loader.sampler, batch_size, loader.drop_last),
    )
    _sharded.add(divided)
    _warn_of_shards(loader, processes, has_shards)
    return divided


def _warn_of_shards(loader: Any, processes: Processes, has_shards: bool) -> None:
    if has_shards and processes.is_main:
        warn_user(
            f"the parts of {type(loader.dataset).__name__} follow the {processes.size} processes, "
            "not shards=: on another number of processes its batches have other examples, so "
            "losses and weights differ. Data that is read by index has no such limit."
        )


def _shard_of(dataset: Any) -> Callable[[int, int], Any] | None:
    """Return a function from the number of parts and one of them to that part of a stream."""
    if type(dataset).__module__.partition(".")[0] == "datasets":
        from datasets.distributed import split_dataset_by_node

        return lambda size, rank: split_dataset_by_node(dataset, rank=rank, world_size=size)
    method = getattr(dataset, "shard", None)
    if not callable(method):
        return None
    try:
        inspect.signature(method).bind(num_shards=2, index=0)
    except (TypeError, ValueError):
        return None
    return lambda size, rank: method(num_shards=size, index=rank)


def _advice(loader: DataLoader[Any], size: int, *, divides: bool) -> str:
    name = type(loader.dataset).__name__
    reads = f"each of {size} processes reads all of the stream {name}, and uses its part of a batch"
    if divides:
        return (
            f"{reads}, since batch_size={loader.batch_size} of the DataLoader is not a multiple of "
            f"{size}; pass one that is."
        )
    return (
        f"{reads}. Give the stream a method shard(num_shards, index) that returns a part; or pass "
        "DDP(data='local') if it has the part of its process already, or DDP(data='global') to "
        "keep this."
    )


def _is_filtered(pipe: Any) -> bool:
    """Return whether a data pipe has a `sharding_filter`."""
    from torch.utils.data.graph import traverse_dps

    todo = [traverse_dps(pipe)]
    while todo:
        for one, inputs in todo.pop().values():
            if hasattr(type(one), "apply_sharding"):
                return True
            todo.append(inputs)
    return False
