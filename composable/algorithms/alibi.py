"""ALiBi, as an algorithm."""

from math import floor

import attrs

from composable.algorithms._validators import in_range, integer_at_least
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import alibi, sequence_length, set_sequence_length


@attrs.frozen(repr=False)
class Alibi(Algorithm):
    """Train on short sequences, extrapolate to longer ones: see `composable.functional.alibi`.

    The model is converted once, before training. The sequences of each training batch are split
    into segments, each of which becomes an example: see `set_sequence_length` with
    `truncate=False`. Evaluation uses full sequences.

    Args:
        max_sequence_length: Maximum sequence length in evaluation.
        train_sequence_length_scaling: Length of a segment as a share of the sequence length of the
            batch, in (0, 1], rounded down, and one token more, which segments share. 1 keeps
            batches unchanged.
    """

    max_sequence_length: int = attrs.field(validator=integer_at_least(1))
    train_sequence_length_scaling: float = attrs.field(
        default=0.25, validator=in_range(0, 1, ends="(]")
    )

    stage = Stage.RESIZE  # the stage matters for batches; this surgery commutes with all others
    reads = frozenset({"model", "batch"})
    writes = frozenset({"model", "batch"})
    replaces = frozenset({"attention", "position embedding"})

    @property
    def events(self) -> frozenset[Event]:
        """`INIT`, and `AFTER_DATALOADER` if sequences are split."""
        cuts = {Event.AFTER_DATALOADER} if self.train_sequence_length_scaling < 1 else set()
        return frozenset({Event.INIT, *cuts})

    def apply(self, event: Event, state: State) -> State:
        """Convert the model before training, and split the sequences of each batch."""
        if event is Event.INIT:
            model = alibi(state.model, max_sequence_length=self.max_sequence_length)
            return state if model is state.model else state.evolve(model=model)
        # 1e-9: a rounding error of the product must not cost a token.
        share = self.train_sequence_length_scaling * sequence_length(state.batch) + 1e-9
        length, labels = floor(share) + 1, state.batch_spec.targets_or_none(state.batch)
        batch = set_sequence_length(state.batch, length, truncate=False, labels=labels)
        return state if batch is state.batch else state.evolve(batch=batch)
