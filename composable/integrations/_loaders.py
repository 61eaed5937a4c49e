"""The batches of loaders that Accelerate and Fabric have prepared."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count as numbers
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from composable.core.key import Key
from composable.data.fetching import is_map_style
from composable.data.order import seeded_batches
from composable.distributed.processes import Processes

_PREPARED = {
    "DataLoaderShard": ("base_dataloader", "iteration"),  # of Accelerate
    "_FabricDataLoader": ("_dataloader", "_num_iter_calls"),
}
"""Classes of loaders, with the names of the `DataLoader` inside and of the count of epochs."""


def base_loader(loader: Any) -> Any:
    """Return the `DataLoader` inside a prepared loader; any other loader as it is."""
    inner, _ = _PREPARED.get(type(loader).__name__, ("", ""))
    return getattr(loader, inner, loader)


def iterate_batches(
    loader: Any,
    key: Key,
    *,
    epoch: int,
    first_step: int = 0,
    skip: int = 0,
    accumulate_batches: int = 1,
    fetched: dict[int, list[Any]] | None = None,
    **position: Any,
) -> Iterator[Any]:
    """Iterate over an epoch as `seeded_batches` does, also inside a prepared loader.

    A prepared loader fetches ahead, and moves batches to its device. Only the `DataLoader` in it
    knows when the batch of a step is fetched, so that datasets draw the step's random numbers.

    Args:
        loader: The loader.
        key: The key of the run.
        epoch: The epoch, from 0.
        first_step: The number of batches that were fetched in earlier epochs.
        skip: The number of batches of this epoch to skip.
        accumulate_batches: The number of batches of a step.
        fetched: What gets all batches of a step before the first one is returned, by the number
            of the step in the epoch. It stays empty for a loader of Accelerate without a
            map-style dataset, which tells Accelerate when it returns its last batch.
        position: The state of the loader there, and of its generators when the epoch began.
    """
    where = {"seed": key, "epoch": epoch, "first_step": first_step, "skip": skip, **position}
    batches: Callable[[Any], Iterator[Any]] = partial(
        _own_batches, ahead=(accumulate_batches, fetched), **where
    )
    inner, count = _PREPARED.get(type(loader).__name__, ("", ""))
    if not (inner and is_map_style(base_loader(loader))):
        return batches(loader)
    copy = object.__new__(type(loader))  # the given loader is not changed
    vars(copy).update(vars(loader))
    vars(copy).update({inner: _Seeded(getattr(loader, inner), batches), count: epoch})
    return iter(copy)


def _own_batches(loader: Any, *, ahead: tuple[int, Any], **place: Any) -> Iterator[Any]:
    """Iterate like `seeded_batches`, with random numbers of this process where it fetches."""
    rank = Processes.current().rank
    parts = None if rank == 0 or not is_map_style(loader) else lambda indices: [(rank, indices)]
    batches = seeded_batches(loader, parts=parts, **place)
    count, fetched = ahead
    if fetched is None or count == 1 or hasattr(loader, "end_of_dataloader"):
        return batches
    return _by_steps(batches, count, place["skip"] // count, fetched)


def _by_steps(
    batches: Iterator[Any], count: int, first: int, fetched: dict[int, list[Any]]
) -> Iterator[Any]:
    """Fetch the batches of a step before the first one is returned."""
    for step in numbers(first):
        fetched.clear()
        fetched[step] = list(islice(batches, count))
        if not fetched[step]:
            return
        yield from fetched[step]


class _Seeded:
    """A `DataLoader` that iterates as `seeded_batches` does."""

    def __init__(
        self, loader: DataLoader[Any], batches: Callable[[DataLoader[Any]], Iterator[Any]]
    ) -> None:
        self.loader, self.batches = loader, batches

    def __iter__(self) -> Iterator[Any]:
        return self.batches(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class SeededLoader(_Seeded):
    """A loader that begins where an adapter is: see `LoopAdapter.seeded`."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing, so that Lightning takes the loader for one that can be resumed."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignore the state: the clock of the adapter is restored."""
