"""Iterate over batches in an order that depends only on the seed and the epoch."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, count, islice
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from composable._support.checks import check_count
from composable._support.warn import warn_user
from composable.core.key import Key, as_key
from composable.data.fetching import (
    Epoch,
    Parts,
    draws_during_iteration,
    fetch_by_workers,
    fetch_in_process,
    function_arity,
    has_own_iteration,
    in_epoch,
    is_map_style,
    until,
    uses_workers,
    with_new_workers,
)
from composable.data.streams import (
    begin_stream,
    check_stream_state,
    read_stream_state,
    stateful_stream_batches,
    stream_batches,
)
from composable.utils.reproducibility import seed_epoch, seed_fetch

T = TypeVar("T")
log = logging.getLogger("composable")


class ReplayedBatchesWarning(UserWarning):
    """Batches are fetched and discarded, because the loader cannot start in mid-epoch."""


class MovedGeneratorWarning(UserWarning):
    """An epoch is resumed with a loader whose generator may have advanced since it began."""


def seeded_batches(  # noqa: PLR0913 (public options)
    dataloader: Iterable[T] | Callable[..., Any],
    seed: int | Key,
    *,
    epoch: int,
    first_step: int = 0,
    skip: int = 0,
    loader_state: Mapping[str, Any] | None = None,
    generators: Sequence[Tensor] | None = None,
    parts: Parts | None = None,
    stop: int | None = None,
) -> Iterator[T]:
    """Iterate over an epoch of a loader, from any batch on, with seeded global generators.

    The order depends only on `(seed, epoch)`, and the random numbers of a batch only on
    `(seed, step)`: not on earlier draws and, for a `DataLoader` of a map-style dataset, not on the
    number of workers. A dataset, sampler or batch sampler with a `set_epoch` method receives the
    epoch. A loader with a generator keeps using it. The loader is not changed. Workers of an
    iterable dataset are started for each epoch, also with `persistent_workers=True`: otherwise
    their random numbers would depend on earlier epochs, and their copies would miss `set_epoch`.
    The samplers and datasets of `composable.data` know the epoch inside of other iterables too, but
    not in persistent or spawned workers of a loader inside of them: let such an iterable have a
    `set_epoch` that passes it on.

    With `skip`, iteration starts at that batch. A list, a `DataLoader` of a map-style dataset and a
    function of a key and the number of a batch start there directly, without loading the skipped
    batches. A loader with a `state_dict` (torchdata's `StatefulDataLoader`) starts from
    `loader_state`. Any other loader fetches and discards the skipped batches, with a warning before
    and a line in the log `composable` after, which has the seconds.

    The `Trainer` iterates over its loader in this way; use the function to get the same batches in
    your own loop.

    Args:
        dataloader: Any iterable of batches, a function that returns an iterator over batches, or a
            function of a key and the number of a batch in the run that returns the batch.
        seed: The seed of the run, or its `Key`.
        epoch: The epoch, from 0.
        first_step: Number of batches that the run trained on before this epoch.
        skip: Number of batches of this epoch to skip, at least 0.
        loader_state: The value of `read_loader_state(dataloader)` after `skip` batches, if known.
            It is ignored if `skip` is 0, because it would belong to the previous epoch.
        generators: The value of `get_generator_states(dataloader)` at the start of this epoch, for
            a loader with a generator. The generator is set to it.
        parts: A function from the indices of a batch to its parts and their numbers, for a
            `DataLoader` of a map-style dataset: each part is fetched as a batch, with random
            its numbers. `skip`, `stop` and `first_step` still count whole batches.
        stop: Number of batches after which the epoch ends. Default: all of the loader.

    Raises:
        ValueError: `skip` is negative or `stop` not positive, `loader_state` is given for a loader
            without a state or does not match it, or `generators` does not match the loader.

    Warns:
        ReplayedBatchesWarning: Skipped batches are fetched and discarded.
        MovedGeneratorWarning: The loader has a generator, `skip` is not 0, and `generators` is not
            given.
        UnshardedStreamWarning: Several workers read an iterable dataset, and none asks which
            worker it is.
        UserWarning: The loader ends before `stop`.

    Example:
        >>> from torch.utils.data import DataLoader, IterableDataset
        >>> from composable.data import seeded_batches
        >>> loader = DataLoader(range(6), batch_size=2, shuffle=True)
        >>> first = [batch.tolist() for batch in seeded_batches(loader, 17, epoch=0)]
        >>> first == [batch.tolist() for batch in seeded_batches(loader, 17, epoch=0)]
        True
        >>> first[2:] == [batch.tolist() for batch in seeded_batches(loader, 17, epoch=0, skip=2)]
        True
    """
    wanted = Epoch(as_key(seed), epoch, first_step, skip, parts, stop)
    # A generator, which can be closed.
    return (batch for batch in read_epoch(dataloader, wanted, loader_state, generators))


def read_epoch(
    dataloader: Any, epoch: Epoch, state: Any = None, generators: Sequence[Tensor] | None = None
) -> Iterator[Any]:
    """Do what `seeded_batches` does, for a loop that reads all or drops the iterator."""
    _check(dataloader, epoch.skip, state)
    if epoch.stop is not None:
        check_count("stop", epoch.stop, 1)
    if generators is not None:
        _set_generators(dataloader, generators, "generators")
    elif epoch.skip and state is None:
        _report_generator(dataloader, epoch.skip)
    if epoch.skip and state is not None and is_stateful_stream(dataloader):
        begin_stream(dataloader, state)  # its position can be read before the first batch
    return chain.from_iterable(_reported_batches(dataloader, epoch, state))


def read_loader_state(dataloader: Any) -> Mapping[str, Any] | None:
    """Return the state of a loader after the last batch, or None if it has none.

    A loader with a `state_dict` returns that. For a `DataLoader` of an iterable dataset with a
    `state_dict`, it is the state of the dataset after the last batch that `seeded_batches`
    returned, in each worker process.

    Example:
        >>> from composable.data.order import read_loader_state
        >>> loader = torch.utils.data.DataLoader(range(4))  # resumes by index
        >>> print(read_loader_state(loader))
        None
    """
    if is_stateful_stream(dataloader):
        return read_stream_state(dataloader)
    return dataloader.state_dict() if _has_state(dataloader) else None


def get_generator_states(dataloader: object) -> list[Tensor]:
    """Return the states of the loader's generators: for a checkpoint.

    Example:
        >>> from torch.utils.data import DataLoader, IterableDataset
        >>> from composable.data import get_generator_states, seeded_batches
        >>> own = torch.Generator().manual_seed(0)
        >>> loader = DataLoader(range(6), batch_size=2, shuffle=True, generator=own)
        >>> began = get_generator_states(loader)
        >>> first = [batch.tolist() for batch in seeded_batches(loader, 17, epoch=0)]
        >>> rest = seeded_batches(loader, 17, epoch=0, skip=1, generators=began)
        >>> first[1:] == [batch.tolist() for batch in rest]
        True
    """
    return [generator.get_state() for generator in get_generators(dataloader)]


def set_generator_states(dataloader: object, states: Sequence[Tensor]) -> None:
    """Set the loader's generators to the states that `get_generator_states` returned.

    Raises:
        ValueError: The number of states is not the number of generators.
    """
    _set_generators(dataloader, states, "states")


def _set_generators(dataloader: object, states: Sequence[Tensor], name: str) -> None:
    own = get_generators(dataloader)
    if not isinstance(states, (list, tuple)) or not all(isinstance(s, Tensor) for s in states):
        raise TypeError(f"{name}={states!r} must be a list of tensors, of get_generator_states.")
    if len(own) != len(states):
        raise ValueError(
            f"{name} has {len(states)} states, but dataloader has {len(own)} generators: "
            "build the loader with the generators it had when the states were read."
        )
    for generator, state in zip(own, states, strict=True):
        generator.set_state(state)


def _reported_batches(dataloader: Any, epoch: Epoch, state: Any) -> Iterator[Iterator[Any]]:
    """Yield the only iterator over the batches of a loader that knows the epoch."""
    tell_epoch(dataloader, epoch.number)
    _seed_torchdata(dataloader, epoch)
    if isinstance(dataloader, (list, tuple)):  # the batches exist already: nothing is drawn
        seed_epoch(epoch.key, epoch.number)
        yield until(epoch.stop, islice(dataloader, epoch.skip, None), epoch.skip)
    else:
        batches: Iterator[Any] = chain.from_iterable(_batches(dataloader, epoch, state))
        if epoch.stop is not None and epoch.parts is None:  # parts are counted by their indices
            batches = until(epoch.stop, batches, epoch.skip)
        yield in_epoch(batches, epoch.number)


def _batches(dataloader: Any, epoch: Epoch, state: Any) -> Iterator[Iterator[Any]]:
    """Yield the only iterator over the batches of a loader that fetches."""
    key, number, step, skip, *_ = epoch
    if function_arity(dataloader) == 2:
        seed_fetch(key, step + skip)
        batches = map(partial(dataloader, key.fold("batches")), count(step + skip))
        yield _seeded(batches, key, step + skip)
    elif is_stateful_stream(dataloader):
        if skip and state is None:
            _report_replay(dataloader, skip)
        begin, state = (skip, state) if skip and state is not None else (0, None)
        whole = Epoch(key, number, step)  # workers receive it, and no parts of a stream are fetched
        yield _after(stateful_stream_batches(dataloader, whole, begin, state), skip - begin)
    elif skip and state is not None:
        dataloader.load_state_dict(state)
        seed_epoch(key, number)
        batches = iter(dataloader)
        seed_fetch(key, step + skip)
        yield _seeded(batches, key, step + skip)
    elif is_map_style(dataloader):
        fetch = fetch_by_workers if uses_workers(dataloader) else fetch_in_process
        yield fetch(dataloader, epoch)
    else:
        if skip:
            _report_replay(dataloader, skip)
        seed_epoch(key, number)
        yield _after(_seeded(_begin(dataloader), key, step), skip)


def _after(batches: Iterator[T], skip: int) -> Iterator[T]:
    """Yield the batches after the first ones, and log what it took to fetch these."""
    began = time.perf_counter()
    skipped = sum(1 for _ in islice(batches, skip))
    if skip:
        log.warning("skipped %d batches in %.1f s", skipped, time.perf_counter() - began)
    yield from batches


def _begin(dataloader: Any) -> Iterator[Any]:
    if function_arity(dataloader) is not None:
        return iter(dataloader())
    if hasattr(dataloader, "_initial_iter_for_state_dict"):
        # torchdata's loader: its workers, which may persist, began before the epoch was set.
        dataloader._iterator, dataloader._initial_iter_for_state_dict = None, False
    if _has_state(dataloader) or not isinstance(dataloader, DataLoader):
        return iter(dataloader)
    return (
        stream_batches(dataloader) if is_stream(dataloader) else iter(with_new_workers(dataloader))
    )


def _seeded(batches: Iterator[T], key: Key, step: int) -> Iterator[T]:
    """Yield batches, and seed the global generators before each further one is fetched."""
    for following, batch in enumerate(batches, step + 1):
        yield batch
        seed_fetch(key, following)


def _check(dataloader: object, skip: int, state: Mapping[str, Any] | None) -> None:
    if isinstance(skip, bool) or not isinstance(skip, int) or skip < 0:
        raise ValueError(
            f"skip={skip!r} must be a non-negative integer: the number of batches to skip."
        )
    if state is not None and skip:
        check_loader_state(dataloader, state)
    elif state is not None and not is_stateful(dataloader):
        raise ValueError(_no_state(dataloader))


def check_loader_state(dataloader: Any, state: Mapping[str, Any]) -> None:
    """Check that a state was read from a loader like this one, as far as that can be seen.

    Raises:
        ValueError: It was not.
    """
    if not is_stateful(dataloader):
        raise ValueError(_no_state(dataloader))
    if is_stateful_stream(dataloader):
        check_stream_state(dataloader, state)


def _no_state(dataloader: object) -> str:
    return (
        f"loader_state requires a loader with load_state_dict, and {type(dataloader).__name__} "
        "has none: omit loader_state, or pass the loader that it was read from."
    )


def fetches_are_seeded(dataloader: Any) -> bool:
    """Return whether `seeded_batches` seeds the global generators of this process at each fetch.

    It does not where batches exist already, or come from worker processes.
    """
    if is_map_style(dataloader):
        return not uses_workers(dataloader) or draws_during_iteration(dataloader._index_sampler)
    return not isinstance(dataloader, (list, tuple))


def is_stream(dataloader: object) -> bool:
    """Return whether `dataloader` is a `DataLoader` of an iterable dataset."""
    return (
        isinstance(dataloader, DataLoader)
        and isinstance(dataloader.dataset, IterableDataset)
        and not has_own_iteration(dataloader)
    )


def is_stateful_stream(dataloader: Any) -> bool:
    """Return whether `dataloader` is a `DataLoader` of an iterable dataset that has a state."""
    if not is_stream(dataloader) or hasattr(dataloader, "state_dict"):
        return False
    return all(hasattr(dataloader.dataset, name) for name in ("state_dict", "load_state_dict"))


def is_stateful(dataloader: object) -> bool:
    """Return whether a loader, or the iterable dataset of a `DataLoader`, has a state."""
    return _has_state(dataloader) or is_stateful_stream(dataloader)


def _has_state(dataloader: object) -> bool:
    own = hasattr(dataloader, "state_dict") and hasattr(dataloader, "load_state_dict")
    return own and not isinstance(dataloader, type)


def _samplers(dataloader: object) -> list[Any]:
    """List the objects that may choose the indices, including the loader itself."""
    batch_sampler = getattr(dataloader, "batch_sampler", None)
    inner = [getattr(one, "sampler", None) for one in (dataloader, batch_sampler)]
    return [dataloader, batch_sampler, *inner]


def tell_epoch(dataloader: object, epoch: int) -> None:
    """Give the epoch to the dataset and the samplers of a loader."""
    owners = [*_samplers(dataloader), getattr(dataloader, "dataset", None)]
    for owner in {id(owner): owner for owner in owners}.values():
        set_epoch = getattr(owner, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


def _seed_torchdata(dataloader: object, epoch: Epoch) -> None:
    """Seed the generator that torchdata's sampler creates if it is given none."""
    if _makes_its_generator(dataloader):
        sampler: Any = dataloader.sampler  # type: ignore[attr-defined]
        sampler.generator.manual_seed(epoch.key.fold("order", epoch.number).seed)


def _makes_its_generator(dataloader: object) -> bool:
    sampler = getattr(dataloader, "sampler", None)
    return (
        type(sampler).__module__.startswith("torchdata.")
        and getattr(dataloader, "generator", None) is None
        and isinstance(getattr(sampler, "generator", None), torch.Generator)
    )


def get_generators(dataloader: object) -> list[torch.Generator]:
    """List the generators that the user passed to the loader; they are not seeded."""
    if _makes_its_generator(dataloader):
        return []
    own = [getattr(sampler, "generator", None) for sampler in _samplers(dataloader)]
    return list({id(one): one for one in own if isinstance(one, torch.Generator)}.values())


def _report_generator(dataloader: object, skip: int) -> None:
    if get_generators(dataloader):
        warn_user(
            f"the epoch resumes at batch {skip}, but the loader shuffles with its own generator, "
            "whose state may have changed since the epoch began: examples may be skipped or "
            "repeated. Build the loader without generator= to shuffle by the seed, or pass "
            "generators=, the value of get_generator_states(loader) at the start of the epoch.",
            MovedGeneratorWarning,
        )


def _report_replay(dataloader: object, skip: int) -> None:
    remedy = (
        "save the value of read_loader_state(loader), and pass it as loader_state"
        if is_stateful(dataloader)
        else "use a DataLoader of a map-style dataset, a list, a loader with a state_dict, or a "
        "function (key, step) that returns a batch"
    )
    warn_user(
        f"the first {skip} batches of the epoch are fetched and discarded, because a "
        f"{type(dataloader).__name__} cannot start in the middle of an epoch. To avoid this, "
        f"{remedy}.",
        ReplayedBatchesWarning,
    )
