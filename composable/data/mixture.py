"""A mixture of loaders, whose order can be resumed at any batch."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain, count, repeat
from typing import Any

from torch.utils.data import DataLoader, Dataset, Sampler

from composable._support.checks import check_one_of, check_range, check_same_names
from composable.data.fetching import is_map_style
from composable.data.order import get_generators, is_stateful, tell_epoch

Index = tuple[str, Any]
"""The name of a loader, and an index of its dataset."""


class Mixture(DataLoader[Any]):
    """A loader whose batches come from several loaders, in fixed shares.

    Batch $t$ comes from the loader that is the furthest behind its share $w_i t$ of the batches, so
    that each has its share to within one batch at any time, and the length of an epoch is known.
    Each loader keeps its batch size, order and `collate_fn`; the options of the workers come from
    the loader with the most workers. A run resumes at any batch and on any number of processes, as
    with one `DataLoader`.

    Args:
        loaders: The loaders by name: each a `DataLoader` of a map-style dataset.
        weights: How many batches come from each, relative to the others. Default: the lengths of
            the loaders, so that an epoch has each batch of each loader once.
        mode: When an epoch ends: "shortest" before a loader would begin again; "longest" when all
            have been read, and shorter ones begin again, in another order each time.

    Raises:
        TypeError: A loader does not fetch by index, such as one of an iterable dataset.
        ValueError: There is no loader or an empty one, `weights` has other names or is not
            positive, `mode` does not exist, or a loader has a generator or a state.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from composable.data import Mixture
        >>> loaders = {"text": DataLoader(range(6), 2), "code": DataLoader(range(10, 13))}
        >>> mixture = Mixture(loaders, weights={"text": 2, "code": 1})
        >>> mixture.sources
        ('text', 'code', 'text', 'text', 'code')
        >>> [batch.tolist() for batch in mixture]
        [[0, 1], [10], [2, 3], [4, 5], [11]]
    """

    def __init__(
        self,
        loaders: Mapping[str, DataLoader[Any]],
        *,
        weights: Mapping[str, float] | None = None,
        mode: str = "shortest",
    ) -> None:
        check_one_of("mode", mode, ("shortest", "longest"))
        given = (
            {"loaders": loaders} if weights is None else {"loaders": loaders, "weights": weights}
        )
        for argument, value in given.items():
            if not isinstance(value, Mapping) or not value:
                raise ValueError(f"{argument}={value!r} must be a dictionary by names of loaders.")
        for name, loader in loaders.items():
            _check_loader(name, loader)
        lengths = {name: len(loader) for name, loader in loaders.items()}
        weights = lengths if weights is None else weights
        check_same_names("loaders", loaders, "weights", weights)
        for name, weight in weights.items():
            check_range(f"weights[{name!r}]", weight, 0, ends="()")
        self.sources = tuple(_schedule(weights, lengths, mode))
        """The name of the loader of each batch of an epoch."""
        most = max(loaders.values(), key=lambda one: one.num_workers)
        super().__init__(
            _Datasets({name: loader.dataset for name, loader in loaders.items()}),
            batch_sampler=MixtureSampler(loaders, self.sources),
            collate_fn=partial(_collate, {n: loader.collate_fn for n, loader in loaders.items()}),
            **{name: getattr(most, name) for name in _WORKERS},
        )


_WORKERS = (
    *("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"),
    *("prefetch_factor", "persistent_workers"),
)


def _check_loader(name: str, loader: Any) -> None:
    if not is_map_style(loader) or not loader._auto_collation:
        raise TypeError(
            f"loaders[{name!r}]={loader!r} must be a DataLoader of a map-style dataset with a "
            "batch size; join streams in one iterable dataset instead."
        )
    if not len(loader):
        raise ValueError(f"loaders[{name!r}] has no batch; pass a dataset that is not empty.")
    samplers = loader.sampler, loader.batch_sampler
    parts = [getattr(sampler, n, 1) for sampler in samplers for n in ("num_replicas", "world_size")]
    if max(parts) > 1 or get_generators(loader) or is_stateful(loader):
        raise ValueError(
            f"loaders[{name!r}] has a generator or a state, or reads the part of a process, by "
            "which a mixture can't be resumed; omit it: order and parts follow from the run."
        )


def _schedule(weights: Mapping[str, float], lengths: Mapping[str, int], mode: str) -> Iterator[str]:
    """Yield the name of the loader of each batch."""
    counts, total = dict.fromkeys(weights, 0), sum(weights.values())
    for batch in count(1):
        name = max(counts, key=lambda one: weights[one] * batch / total - counts[one])
        if mode == "shortest" and counts[name] == lengths[name]:
            return
        yield name
        counts[name] += 1
        if mode == "longest" and all(counts[one] >= lengths[one] for one in counts):
            return


class MixtureSampler(Sampler[list[Index]]):
    """The batches of indices of a `Mixture`.

    Args:
        loaders: The loaders by name.
        sources: The name of the loader of each batch.
    """

    def __init__(self, loaders: Mapping[str, DataLoader[Any]], sources: tuple[str, ...]) -> None:
        self.loaders, self.sources = loaders, sources

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the loaders."""
        for loader in self.loaders.values():
            tell_epoch(loader, epoch)

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[list[Index]]:
        samplers = {name: loader._index_sampler for name, loader in self.loaders.items()}
        again = {name: chain.from_iterable(repeat(sampler)) for name, sampler in samplers.items()}
        for name in self.sources:
            yield [(name, index) for index in next(again[name])]


class _Datasets(Dataset[Any]):
    """The examples of several datasets, with the names of their loaders."""

    def __init__(self, datasets: Mapping[str, Any]) -> None:
        self.datasets = datasets

    def __getitems__(self, indices: list[Index]) -> list[tuple[str, Any]]:
        """Return the examples of a batch, all of one dataset."""
        name, dataset = indices[0][0], self.datasets[indices[0][0]]
        chosen = [index for _, index in indices]
        together = getattr(dataset, "__getitems__", None)
        found = together(chosen) if together else [dataset[index] for index in chosen]
        return [(name, one) for one in found]

    def __getitem__(self, index: Index | int) -> tuple[str, Any]:
        if isinstance(index, int):  # of all examples, one dataset after another
            for name, dataset in self.datasets.items():
                if index < len(dataset):
                    return name, dataset[index]
                index -= len(dataset)
            raise IndexError("index out of range")
        name, inner = index
        return name, self.datasets[name][inner]

    def __len__(self) -> int:
        return sum(map(len, self.datasets.values()))


def _collate(functions: Mapping[str, Any], examples: list[tuple[str, Any]]) -> Any:
    """Collate examples as the loader that they come from."""
    return functions[examples[0][0]]([one for _, one in examples])
