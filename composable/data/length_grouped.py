"""Global batches of examples of similar length."""

from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from composable._support.checks import check_count, kind_of
from composable.data.sampler import GlobalBatchSampler
from composable.functional import group_by_length


def _numbers(lengths: Sequence[float] | Tensor) -> Tensor:
    """Return a copy of the lengths as a tensor on the CPU."""
    if isinstance(lengths, IterableDataset):
        raise TypeError(
            f"lengths={type(lengths).__name__} is an iterable dataset, whose order is its own: "
            "pass the lengths of a map-style dataset, or sort a buffer of examples in its __iter__."
        )
    try:
        numbers = torch.as_tensor(lengths).detach().cpu().clone()
    except (TypeError, ValueError, RuntimeError):
        numbers = None
    if numbers is None or numbers.ndim != 1 or numbers.is_complex():
        raise TypeError(
            "lengths must be a list of numbers, or a tensor of one dimension, not "
            f"{kind_of(lengths)}: pass the length of each example, [len(one) for one in dataset]."
        )
    if not len(numbers):
        raise ValueError("lengths must not be empty: pass the length of each example.")
    if not numbers.isfinite().all():
        raise ValueError("lengths must be finite: the order of others is not defined.")
    return numbers


@attrs.define(eq=False, repr=False, slots=False)
class LengthGroupedBatchSampler(GlobalBatchSampler):
    """A batch sampler whose batches have similar lengths: see `functional.group_by_length`.

    The order starts from `GlobalBatchSampler`'s with the same seed: each window of it has the same
    examples, in other batches. The order of an epoch is stored, also for large datasets.

    Args:
        lengths: The length of each example of the dataset, or another size: finite numbers.
        batch_size: Number of examples in a global batch: a multiple of `world_size`.
        seed: The seed of the order, or its `Key`.
        window: Number of batches whose examples are sorted together. 1 changes nothing.
        shuffle: Draw a new order for each epoch; otherwise start from the order of the dataset.
        last_batch: How to handle an incomplete last batch, which is not sorted: see
            `GlobalBatchSampler`.
        rank: The rank of this process, from 0.
        world_size: Number of processes.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of range, or a process would get no example of the last
            batch.

    Example:
        >>> from composable.data import LengthGroupedBatchSampler
        >>> lengths = [9, 2, 7, 1, 8, 3, 5]
        >>> sampler = LengthGroupedBatchSampler(lengths, batch_size=2, seed=17)
        >>> [[lengths[i] for i in batch] for batch in sampler]
        [[2, 1], [5, 3], [9, 7], [8]]
    """

    lengths: Tensor = attrs.field(converter=_numbers)
    length: int = attrs.field(
        init=False, default=attrs.Factory(lambda self: len(self.lengths), True)
    )
    window: int = attrs.field(default=50, kw_only=True)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_count("window", self.window, 1)

    def _order(self) -> Callable[[Tensor], Tensor]:
        drawn = super()._order()(torch.arange(self.total))
        key = self.key.fold("batches", self.epoch if self.shuffle else 0)
        grouped = drawn[
            group_by_length(
                self.lengths[drawn],
                self.batch_size,
                window=self.window,
                generator=key.generator(),
            )
        ]
        return lambda positions: grouped[positions]
