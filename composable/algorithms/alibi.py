"""ALiBi, as an algorithm."""

from math import floor

import attrs

from composable.algorithms._validators import integer, number
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import alibi, sequence_length, set_sequence_length

__all__ = ["Alibi"]


@attrs.frozen(repr=False)
class Alibi(Algorithm):
    """Train on short sequences, evaluate on long ones: see `composable.functional.alibi`.

    The model is converted once, before training. The sequences of each batch to train on are cut
    into pieces, each of which becomes an example: see `set_sequence_length`, `truncate=False`.
    Evaluation sees whole sequences.

    Args:
        max_sequence_length: How long sequences are to be in evaluation.
        train_sequence_length_scaling: The length of a piece, as a share of that of the batch, above
            0, rounded down to 1 token or more. With 1 batches stay.
    """

    max_sequence_length: int = attrs.field(validator=integer(1))
    train_sequence_length_scaling: float = attrs.field(
        default=0.25, validator=number(0, 1, ends="(]")
    )

    stage = Stage.RESIZE  # for the sake of batches: this surgery gets in no other one's way
    reads = frozenset({"model", "batch"})
    writes = frozenset({"model", "batch"})
    replaces = frozenset({"attention", "position embedding"})

    @property
    def events(self) -> frozenset[Event]:
        """Sequences are cut where that makes them shorter."""
        cuts = {Event.AFTER_DATALOADER} if self.train_sequence_length_scaling < 1 else set()
        return frozenset({Event.INIT, *cuts})

    def apply(self, event: Event, state: State) -> State:
        """Convert the model before training, and cut the sequences of each batch."""
        if event is Event.INIT:
            model = alibi(state.model, max_sequence_length=self.max_sequence_length)
            return state if model is state.model else state.evolve(model=model)
        # What rounding took from the product must not take a token.
        share = self.train_sequence_length_scaling * sequence_length(state.batch) + 1e-9
        batch = set_sequence_length(state.batch, max(1, floor(share)), truncate=False)
        return state if batch is state.batch else state.evolve(batch=batch)
