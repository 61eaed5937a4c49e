"""What MixUp and CutMix share: pairs of examples are mixed, and then their targets or losses."""

from collections.abc import Callable
from types import MappingProxyType
from typing import ClassVar

import attrs

from composable._support.checks import with_fields
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import MixedBatch, MixedTargets
from composable.functional.mixed import soften
from composable.losses.classes import InterpolatedLoss, for_probabilities, per_example

_ADVICE = "pass nn.CrossEntropyLoss(...) itself as loss_fn, or use interpolate_loss=True."
_MIXED_ONCE = "both mix the batch, and the pairs of targets of a mixed batch can't be mixed again"


@attrs.frozen(repr=False)
class PairMixing(Algorithm):
    """Mix pairs of examples; a subclass has the `mixing`, and its options as fields."""

    mixing: ClassVar[Callable[..., MixedBatch]]
    """A function of inputs and targets, with arguments by the names of the fields."""
    events = frozenset({Event.BEFORE_TRAIN_BATCH, Event.BEFORE_LOSS})
    stage = Stage.MIX
    reads = frozenset({"batch", "outputs", "loss_fn", "key", "timestamp"})
    writes = frozenset({"batch", "loss_fn"})
    incompatible_with = MappingProxyType(dict.fromkeys(("MixUp", "CutMix"), _MIXED_ONCE))

    def apply(self, event: Event, state: State) -> State:
        """Mix the batch; before the loss, interpolate its pairs of targets, or the loss."""
        if event is Event.BEFORE_LOSS:
            return self._blend_pairs(state)
        mixing, generator = with_fields(self, type(self).mixing), state.generator(self.name)
        mixed = mixing(state.inputs, state.targets, generator=generator)
        return state.with_batch(inputs=mixed.inputs, targets=mixed.mixed_targets)

    def _blend_pairs(self, state: State) -> State:
        """Interpolate the `MixedTargets` of the batch, or make the loss interpolate its values."""
        pair: MixedTargets = state.targets
        if self.interpolate_loss:  # type: ignore[attr-defined]  # a field of each subclass
            state = per_example(state, pair) if pair.weight.ndim else state
            return state.evolve(loss_fn=InterpolatedLoss(state.loss_fn, state.batch_spec))
        if pair.targets.is_floating_point():
            return state.with_batch(targets=pair.soft())
        loss_fn, pair, layout = for_probabilities(state, pair, _ADVICE)
        batch = state.batch_spec.replace(state.batch, targets=soften(pair, **layout._asdict()))
        return state.evolve_unchecked(batch=batch, loss_fn=loss_fn)
