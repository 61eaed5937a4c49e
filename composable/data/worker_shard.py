"""An iterable dataset whose batches are divided among the worker processes of a loader."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from composable._support.checks import check_count


class WorkerShard(IterableDataset[Any]):
    """A stream of which each worker yields every n-th batch, in the order without workers.

    A `DataLoader` takes batches from its workers in turn, so batches and their order are the same
    for any number of workers. Every worker reads the whole stream: put what is expensive, such as
    decoding and augmentation, into `transform`, which is applied to the worker's examples only.

    The state is `dataset`'s, if it has `state_dict` and `load_state_dict`, and otherwise the number
    of examples that were read; a resume then reads them again, without `transform`.

    Args:
        dataset: An iterable of examples, the same in every worker. Random numbers that determine
            the examples or their order must come from a separate generator, seeded by the epoch.
        batch_size: The batch size of the `DataLoader`.
        transform: A function that is applied to each example. Default: none.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from composable.data import WorkerShard
        >>> stream = WorkerShard(range(7), batch_size=2, transform=float)
        >>> [batch.tolist() for batch in DataLoader(stream, batch_size=2)]
        [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0]]
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        batch_size: int,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        if not hasattr(dataset, "__iter__") or hasattr(dataset, "__next__"):
            raise TypeError(
                f"dataset={dataset!r} must be an iterable of examples that can be iterated over "
                "in each epoch."
            )
        check_count("batch_size", batch_size, 1)
        if transform is not None and not callable(transform):
            raise TypeError(f"transform={transform!r} must be a function of an example.")
        self.dataset = dataset
        self.batch_size = batch_size
        self.transform = transform
        self._read = 0
        self._begin = 0

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch to the dataset; `seeded_batches` and the `Trainer` call this."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        begin, self._begin = self._begin, 0
        examples: Iterator[Any] = iter(self.dataset)
        if begin and not self._has_state:
            examples = islice(examples, begin, None)
        self._read = begin
        for example in examples:
            number, self._read = self._read // self.batch_size, self._read + 1
            if number % workers == worker:
                yield example if self.transform is None else self.transform(example)

    @property
    def _has_state(self) -> bool:
        return all(hasattr(self.dataset, name) for name in ("state_dict", "load_state_dict"))

    def state_dict(self) -> dict[str, Any]:
        """Return the number of examples that were read, and the state of the dataset."""
        inner = self.dataset.state_dict() if self._has_state else None  # type: ignore[attr-defined]
        return {"read": self._read, "dataset": inner}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start the next iteration from what `state_dict` returned."""
        self._begin = state["read"]
        if self._has_state:
            self.dataset.load_state_dict(state["dataset"])  # type: ignore[attr-defined]
