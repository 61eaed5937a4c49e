"""Sequence length warm-up, as an algorithm."""

import attrs

from composable._support.checks import check_order, with_fields
from composable.algorithms._validators import boolean, in_range, integer_at_least
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import HasTime, elapsed
from composable.functional import set_sequence_length, warmed_up_length


@attrs.frozen(repr=False)
class SeqLengthWarmup(Algorithm):
    """Start training on short sequences: see `composable.functional.set_sequence_length`.

    `composable.functional.warmed_up_length` is the schedule of the length. After the warm-up,
    sequences longer than `max_seq_length` are still shortened.

    Args:
        duration: Share of training in which the length grows, in [0, 1].
        min_seq_length: Length at the start, at least 1.
        max_seq_length: Length after the warm-up, at least `min_seq_length`.
        step_size: Number of tokens by which the length grows at a time.
        truncate: Truncate sequences. Otherwise split them into segments, so that no token is lost.
        preserve_end_of_sequence: Let a truncated sequence end with its last token that is not
            padding. It needs an `attention_mask` in the batch.
    """

    duration: float = attrs.field(default=0.3, validator=in_range(0, 1))
    min_seq_length: int = attrs.field(default=8, validator=integer_at_least(1))
    max_seq_length: int = attrs.field(default=1024, validator=integer_at_least(1))
    step_size: int = attrs.field(default=8, validator=integer_at_least(1))
    truncate: bool = attrs.field(default=True, validator=boolean)
    preserve_end_of_sequence: bool = attrs.field(default=False, validator=boolean)

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.RESIZE
    reads = frozenset({"batch", "timestamp", "max_duration", "epoch_length"})
    writes = frozenset({"batch"})

    def __attrs_post_init__(self) -> None:
        low, high = self.min_seq_length, self.max_seq_length
        check_order("min_seq_length", low, "max_seq_length", high)

    def length_at(self, clock: HasTime) -> int:
        """Return the length of the sequences at the time of a clock."""
        return with_fields(self, warmed_up_length)(elapsed(clock))

    def apply(self, event: Event, state: State) -> State:
        """Shorten the sequences of the batch to the length of this time of training."""
        labels = state.batch_spec.targets_or_none(state.batch)
        length = self.length_at(state)
        batch = with_fields(self, set_sequence_length)(state.batch, length, labels=labels)
        return state if batch is state.batch else state.evolve(batch=batch)
