"""A dataset whose examples have their indices, for methods that follow each example."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from composable.batches.batch import describe_batch
from composable.data.fetching import check_map_style


class Indexed(Dataset[Any]):
    """A map-style dataset whose examples have their index.

    An example that is a mapping gets the entry `"index"`. Any other example gets a further part:
    `(image, label)` becomes `(image, label, index)`. In a batch, this is a tensor of integers.

    Args:
        dataset: A map-style dataset: an object with `__getitem__` and `__len__`.

    Raises:
        TypeError: It is something else.

    Example:
        >>> from composable.data import Indexed
        >>> Indexed([("a", 0), ("b", 1)])[1]
        ('b', 1, 1)
        >>> Indexed([{"text": "a"}])[0]
        {'text': 'a', 'index': 0}
    """

    def __init__(self, dataset: Any) -> None:
        check_map_style(dataset)
        self.dataset = dataset

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the dataset, if it has one; `seeded_batches` calls this."""
        inner = getattr(self.dataset, "set_epoch", None)
        if inner is not None:
            inner(epoch)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        index = range(len(self))[index]  # -1 is the last example
        example = self.dataset[index]
        if isinstance(example, Mapping):
            return {**example, "index": index}
        parts = example if isinstance(example, (tuple, list)) else (example,)
        return (*parts, index)


def indices_of(batch: Any, key: int | str | None, owner: str) -> Tensor:
    """Return the indices of the examples of a batch.

    Args:
        batch: The batch.
        key: Where they are. None is where `Indexed` puts them: the entry "index" of a mapping, and
            the last part of any other batch of three parts or more.
        owner: The algorithm that needs them, for errors.

    Raises:
        ValueError: There are none.
    """
    if key is None:
        several = isinstance(batch, (tuple, list)) and len(batch) > 2
        key = "index" if isinstance(batch, Mapping) else -1 if several else None
    try:
        found = batch[key]
    except (KeyError, IndexError, TypeError):
        found = None
    integers = isinstance(found, Tensor) and found.ndim == 1 and not found.is_floating_point()
    if not integers:
        raise ValueError(
            f"{owner} needs the index of each example, an integer tensor [batch], and the batch is "
            f"{describe_batch(batch)}. Pass composable.data.Indexed(dataset) to the DataLoader, or "
            "index_key=, the place of the indices in the batch."
        )
    return found  # type: ignore[no-any-return]


def check_index_key(_: Any, attribute: Any, value: Any) -> None:
    """Check the place of the indices in a batch."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, str))):
        raise TypeError(
            f"{attribute.name}={value!r} must be an index (2), a name ('index'), or None, where "
            "composable.data.Indexed puts the indices."
        )
