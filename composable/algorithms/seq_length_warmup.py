"""Sequence length warm-up, as an algorithm."""

import attrs

from composable.algorithms._validators import flag, integer, number
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import set_sequence_length, warmed_up_length

__all__ = ["SeqLengthWarmup"]


@attrs.frozen(repr=False)
class SeqLengthWarmup(Algorithm):
    """Begin on short sequences: see `composable.functional.set_sequence_length`.

    The length grows as `composable.functional.warmed_up_length` says. After the warm-up
    sequences longer than `max_seq_length` are still made shorter.

    Args:
        duration: The share of the training in which the length grows, in [0, 1].
        min_seq_length: The length at the start, at least 1.
        max_seq_length: The length after the warm-up.
        step_size: It grows by this many tokens at a time.
        truncate: Cut sequences off. Otherwise into pieces, and no token is lost.
        preserve_end_of_sequence: Let what is cut off end with its last real token. It needs an
            `attention_mask` in the batch.
    """

    duration: float = attrs.field(default=0.3, validator=number(0, 1))
    min_seq_length: int = attrs.field(default=8, validator=integer(1))
    max_seq_length: int = attrs.field(default=1024, validator=integer(1))
    step_size: int = attrs.field(default=8, validator=integer(1))
    truncate: bool = attrs.field(default=True, validator=flag)
    preserve_end_of_sequence: bool = attrs.field(default=False, validator=flag)

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.RESIZE
    reads = frozenset({"batch", "timestamp", "max_duration", "epoch_length"})
    writes = frozenset({"batch"})

    def __attrs_post_init__(self) -> None:
        if self.max_seq_length < self.min_seq_length:
            raise ValueError(
                f"max_seq_length={self.max_seq_length!r} must not be below "
                f"min_seq_length={self.min_seq_length!r}."
            )

    def apply(self, event: Event, state: State) -> State:
        """Make the sequences of this batch as short as it is early."""
        length = warmed_up_length(
            state.elapsed,
            duration=self.duration,
            min_seq_length=self.min_seq_length,
            max_seq_length=self.max_seq_length,
            step_size=self.step_size,
        )
        batch = set_sequence_length(
            state.batch,
            length,
            truncate=self.truncate,
            preserve_end_of_sequence=self.preserve_end_of_sequence,
        )
        return state if batch is state.batch else state.evolve(batch=batch)
