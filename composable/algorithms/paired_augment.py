"""Paired augmentation, as an algorithm."""

from collections.abc import Callable
from typing import Any

import attrs
from attrs.validators import optional
from torch import Tensor

from composable._support.checks import check_is_callable
from composable.algorithms._by_example import draw_of_examples
from composable.algorithms._normalization import Augmentation
from composable.algorithms._validators import passes
from composable.core.event import Event
from composable.core.state import State
from composable.data.indexed import check_index_key
from composable.functional import draw_paired_augment


@attrs.frozen(repr=False)
class PairedAugment(Augmentation):
    """Augment by opposite amounts in alternate epochs: see `composable.functional.paired_augment`.

    Batches must have the indices of their examples: see `composable.data.Indexed`.

    Args:
        transform: A function of the inputs and an amount for each example, in (-1, 1): opposite
            amounts must give opposite changes. It must be deterministic.
        target_transform: The same for the targets. By default they don't change.
        index_key: The place of the indices in the batch, an index or a name. Default: as in
            `Indexed`.
        name: Distinguishes it from other instances, which draw other amounts.
    """

    transform: Callable[[Any, Tensor], Any] = attrs.field(validator=passes(check_is_callable))
    target_transform: Callable[[Any, Tensor], Any] | None = attrs.field(
        default=None, validator=optional(passes(check_is_callable))
    )
    index_key: int | str | None = attrs.field(default=None, validator=check_index_key)

    def apply(self, event: Event, state: State) -> State:
        """Augment the inputs of the batch, and its targets if there is a function for them."""
        amount = draw_paired_augment(**draw_of_examples(state, self.name, self.index_key))
        parts = {"inputs": self.transform(state.inputs, amount)}
        if self.target_transform is not None:
            parts["targets"] = self.target_transform(state.targets, amount)
        return state.with_batch(**parts)
