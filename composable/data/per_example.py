"""A dataset with reproducible random numbers for each example."""

from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset

from composable.core.key import Key, as_key
from composable.data.fetching import SharedEpoch, check_map_style
from composable.utils.reproducibility import seed_example


class PerExample(Dataset[Any]):
    """A map-style dataset whose random numbers depend only on the seed, the epoch and the index.

    The global generators of Python, NumPy (if it is loaded) and PyTorch's CPU are seeded before
    each example. The noise of an example is therefore the same in any process, for any number of
    workers, batch size and number of processes, and after resuming. Seeding takes some tens of
    microseconds per example. The state of the generators is not restored afterwards.

    `seeded_batches`, and so the `Trainer`, sets the epoch. In other loops call `set_epoch`, which
    reaches persistent workers too.

    Args:
        dataset: A map-style dataset: an object with `__getitem__` and `__len__`.
        seed: The seed of the random numbers, or its `Key`.
        transform: A function that is applied to each example. Default: none.

    Example:
        >>> from composable.data import PerExample
        >>> noisy = PerExample([1.0, 2.0], 17, transform=lambda x: x + torch.rand(()))
        >>> once = noisy[1]
        >>> torch.equal(noisy[1], once)
        True
        >>> noisy.set_epoch(1)
        >>> torch.equal(noisy[1], once)
        False
    """

    def __init__(
        self, dataset: Any, seed: int | Key, transform: Callable[[Any], Any] | None = None
    ) -> None:
        check_map_style(dataset)
        if transform is not None and not callable(transform):
            raise TypeError(f"transform={transform!r} must be a function of an example.")
        self.dataset = dataset
        self.transform = transform
        self._key = as_key(seed).fold("example")
        self._epoch = SharedEpoch()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, in a loop that does not use `seeded_batches`."""
        self._epoch.set(epoch)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        index = range(len(self))[index]  # -1 is the last example, with the same random numbers
        seed_example(self._key.fold(self._epoch.current(), index))
        example = self.dataset[index]
        return example if self.transform is None else self.transform(example)
