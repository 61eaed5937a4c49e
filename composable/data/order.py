"""Batches in an order that depends on the seed and the epoch alone."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor

from composable.core.key import Key
from composable.data.fetching import Ticket, is_indexed, ticketed
from composable.utils.reproducibility import seed_epoch, seed_fetch

__all__ = [
    "MovedGeneratorWarning",
    "ReplayedBatchesWarning",
    "get_generator_states",
    "read_loader_state",
    "seeded_batches",
    "set_generator_states",
]

T = TypeVar("T")


class ReplayedBatchesWarning(UserWarning):
    """Batches are fetched to be thrown away, since the loader can't begin in mid-epoch."""


class MovedGeneratorWarning(UserWarning):
    """A loader goes on in mid-epoch, and its order is that of a generator that has moved on."""


def seeded_batches(
    dataloader: Iterable[T],
    seed: int | Key,
    *,
    epoch: int,
    first_step: int = 0,
    skip: int = 0,
    loader_state: Mapping[str, Any] | None = None,
    generators: Sequence[Tensor] | None = None,
) -> Iterator[T]:
    """Go through an epoch of a loader, from any batch on, with the global generators seeded.

    The order depends on `(seed, epoch)`, and what is drawn for a batch on `(seed, step)`: on
    nothing that was drawn before, and for a `DataLoader` of a map-style data set not on the number
    of its workers. A data set, a sampler or a batch sampler that has `set_epoch` is told the
    epoch. A loader that was given a generator of its own keeps using it. The loader is not
    changed.

    With `skip`, the epoch goes on at that batch. A list and a `DataLoader` of a map-style data set
    begin there: nothing is loaded to be thrown away. A loader with a `state_dict` (torchdata's
    `StatefulDataLoader`) goes on from `loader_state`. Any other fetches what it skips, and warns.

    This is how the `Trainer` reads its loader; use it to get the same batches in your own loop.

    Args:
        dataloader: Any iterable of batches.
        seed: The seed of the run, or its `Key`.
        epoch: The epoch, from 0.
        first_step: The number of batches that the run has trained on before this epoch.
        skip: How many batches of this epoch to leave out, from 0.
        loader_state: What `read_loader_state(dataloader)` was after `skip` batches, where that is
            known. Where `skip` is 0 it is not used: it would be a state of the epoch before.
        generators: What `get_generator_states(dataloader)` was when this epoch began, for a loader that
            was given a generator of its own; that is set to it.

    Raises:
        ValueError: `skip` is negative, `loader_state` is given for a loader that takes none, or
            `generators` is of another loader.

    Warns:
        ReplayedBatchesWarning: Batches are fetched to be thrown away.
        MovedGeneratorWarning: The loader has a generator of its own, `skip` is not 0, and
            `generators` is not given.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from composable.data import seeded_batches
        >>> loader = DataLoader(range(6), batch_size=2, shuffle=True)
        >>> first = [batch.tolist() for batch in seeded_batches(loader, 17, epoch=0)]
        >>> first == [batch.tolist() for batch in seeded_batches(loader, 17, epoch=0)]
        True
        >>> first[2:] == [batch.tolist() for batch in seeded_batches(loader, 17, epoch=0, skip=2)]
        True
    """
    _check(dataloader, skip, loader_state)
    if generators is not None:
        set_generator_states(dataloader, generators)
    elif skip and loader_state is None:
        _report_generator(dataloader, skip)
    return _batches(dataloader, seed, epoch, first_step, skip, loader_state)


def read_loader_state(dataloader: object) -> Mapping[str, Any] | None:
    """What a loader needs to go on from here, where it can tell: for a checkpoint in mid-epoch.

    Example:
        >>> from composable.data.order import read_loader_state
        >>> print(
        ...     read_loader_state(torch.utils.data.DataLoader(range(4)))
        ... )  # which goes on by index
        None
    """
    state: Mapping[str, Any] | None
    state = dataloader.state_dict() if _is_stateful(dataloader) else None  # type: ignore[attr-defined]
    return state


def get_generator_states(dataloader: object) -> list[Tensor]:
    """The states of the generators that a loader was given: for a checkpoint.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from composable.data import get_generator_states, seeded_batches
        >>> own = torch.Generator().manual_seed(0)
        >>> loader = DataLoader(range(6), batch_size=2, shuffle=True, generator=own)
        >>> began = get_generator_states(loader)
        >>> first = [batch.tolist() for batch in seeded_batches(loader, 17, epoch=0)]
        >>> rest = seeded_batches(loader, 17, epoch=0, skip=1, generators=began)
        >>> first[1:] == [batch.tolist() for batch in rest]
        True
    """
    return [generator.get_state() for generator in _generators(dataloader)]


def set_generator_states(dataloader: object, states: Sequence[Tensor]) -> None:
    """Set the generators that a loader was given to what `get_generator_states` returned.

    Raises:
        ValueError: The loader has more of them, or fewer.
    """
    own = _generators(dataloader)
    if len(own) != len(states):
        raise ValueError(
            f"the loader has {len(own)} generators of its own, but generators has {len(states)} "
            "states: give the loader what it had when they were read."
        )
    for generator, state in zip(own, states, strict=True):
        generator.set_state(state)


def _batches(
    dataloader: Any, seed: int | Key, epoch: int, first_step: int, skip: int, state: Any
) -> Iterator[Any]:
    _tell_epoch(dataloader, epoch)
    _seed_torchdata(dataloader, seed, epoch)
    if isinstance(dataloader, (list, tuple)):  # whose batches are there: nothing is drawn
        seed_epoch(seed, epoch)
        yield from islice(dataloader, skip, None)
    elif skip and state is not None:
        dataloader.load_state_dict(state)
        seed_epoch(seed, epoch)
        batches = iter(dataloader)
        seed_fetch(seed, first_step + skip)
        yield from _seeded(batches, seed, first_step + skip)
    elif is_indexed(dataloader):
        number = seed.seed if isinstance(seed, Key) else seed
        yield from ticketed(dataloader, Ticket(number, epoch, first_step), skip)
    else:
        if skip:
            _report_replay(dataloader, skip)
        seed_epoch(seed, epoch)
        yield from islice(_seeded(iter(dataloader), seed, first_step), skip, None)


def _seeded(batches: Iterator[T], seed: int | Key, step: int) -> Iterator[T]:
    """Batches with the global generators seeded between two of them."""
    for following, batch in enumerate(batches, step + 1):
        yield batch
        seed_fetch(seed, following)


def _check(dataloader: object, skip: int, state: Mapping[str, Any] | None) -> None:
    if isinstance(skip, bool) or not isinstance(skip, int) or skip < 0:
        raise ValueError(f"skip={skip!r} must be a number of batches: an integer from 0 on.")
    if state is not None and not _is_stateful(dataloader):
        raise ValueError(
            f"loader_state was given for a {type(dataloader).__name__}, which has no "
            "load_state_dict: leave it out, or give the loader from which it came."
        )


def _is_stateful(dataloader: object) -> bool:
    return hasattr(dataloader, "state_dict") and hasattr(dataloader, "load_state_dict")


def _samplers(dataloader: object) -> list[Any]:
    """What chooses the indices, the loader itself included."""
    batch_sampler = getattr(dataloader, "batch_sampler", None)
    inner = [getattr(one, "sampler", None) for one in (dataloader, batch_sampler)]
    return [dataloader, batch_sampler, *inner]


def _tell_epoch(dataloader: object, epoch: int) -> None:
    owners = [*_samplers(dataloader), getattr(dataloader, "dataset", None)]
    for owner in {id(owner): owner for owner in owners}.values():
        set_epoch = getattr(owner, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


def _seed_torchdata(dataloader: object, seed: int | Key, epoch: int) -> None:
    """Seed the generator that torchdata's sampler makes itself, where it was given none."""
    if _makes_its_generator(dataloader):
        key = seed if isinstance(seed, Key) else Key(seed)
        sampler: Any = dataloader.sampler  # type: ignore[attr-defined]
        sampler.generator.manual_seed(key.fold("order", epoch).seed)


def _makes_its_generator(dataloader: object) -> bool:
    sampler = getattr(dataloader, "sampler", None)
    return (
        type(sampler).__module__.startswith("torchdata.")
        and getattr(dataloader, "generator", None) is None
        and isinstance(getattr(sampler, "generator", None), torch.Generator)
    )


def _generators(dataloader: object) -> list[torch.Generator]:
    """Those that a loader was given, and that nobody seeds."""
    if _makes_its_generator(dataloader):
        return []
    own = [getattr(one, "generator", None) for one in _samplers(dataloader)]
    return list({id(one): one for one in own if isinstance(one, torch.Generator)}.values())


def _report_generator(dataloader: object, skip: int) -> None:
    if _generators(dataloader):
        warnings.warn(
            f"the loader goes on at batch {skip} of an epoch, and its order is that of a "
            "generator of its own, which moves on from run to run: examples may be missed or "
            "repeated. Give the loader no generator=, and the order is that of the seed; or give "
            "generators= what get_generator_states(it) was when the epoch began.",
            MovedGeneratorWarning,
            stacklevel=3,
        )


def _report_replay(dataloader: object, skip: int) -> None:
    way = (
        "save what read_loader_state(it) returns, and give that as loader_state"
        if _is_stateful(dataloader)
        else "use a DataLoader of a map-style data set, a list, or a loader with a state_dict"
    )
    warnings.warn(
        f"the first {skip} of the epoch's batches are fetched to be thrown away, since a "
        f"{type(dataloader).__name__} can't begin in mid-epoch. To go on without: {way}.",
        ReplayedBatchesWarning,
        stacklevel=4,
    )
