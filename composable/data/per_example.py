"""Random numbers that belong to an example."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset

from composable.core.key import Key
from composable.data.fetching import epoch_at_work
from composable.utils.reproducibility import seed_example

__all__ = ["PerExample"]


class PerExample(Dataset[Any]):
    """A map-style data set whose random numbers depend on the seed, the epoch and the index alone.

    Before each example the global generators of Python, NumPy (where it is loaded) and PyTorch's
    CPU are seeded. So the noise of an example is the same in any process, for any number of
    workers, batch size and number of processes, and after a resume. Seeding takes some tens of
    microseconds an example. The generators stay where the example leaves them.

    The epoch comes from `seeded_batches`, and so from the `Trainer`. In a loop without it call
    `set_epoch`, which reaches workers that persist too.

    Args:
        dataset: What has the examples, by index.
        seed: What the random numbers are derived from, or its `Key`.
        transform: A function of the example; by default the example is given as it is.

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
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise TypeError(
                f"dataset={dataset!r} has no examples by index: give one with __getitem__ and "
                "__len__."
            )
        if transform is not None and not callable(transform):
            raise TypeError(f"transform={transform!r} must be a function of an example.")
        self.dataset = dataset
        self.transform = transform
        self._key = (seed if isinstance(seed, Key) else Key(seed)).fold("example")
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # so that workers see it change

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch it is, where nobody else does."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        index = range(len(self))[index]  # -1 is the last one, and has its numbers
        epoch = epoch_at_work()
        seed_example(self._key.fold(int(self._epoch) if epoch is None else epoch, index))
        example = self.dataset[index]
        return example if self.transform is None else self.transform(example)
