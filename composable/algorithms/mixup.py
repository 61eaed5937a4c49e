"""MixUp, as an algorithm."""

from collections.abc import Callable
from types import MappingProxyType
from typing import ClassVar

import attrs

from composable.algorithms._validators import boolean, in_range, with_fields
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import MixedBatch, MixedTargets, mixup
from composable.functional.mixed import soften
from composable.losses.classes import InterpolatedLoss, for_probabilities, per_example

__all__ = ["MixUp"]

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
            return with_fields(self, blend_pairs)(state)
        mixing, generator = with_fields(self, type(self).mixing), state.generator(self.name)
        mixed = mixing(state.inputs, state.targets, generator=generator)
        return state.with_batch(inputs=mixed.inputs, targets=mixed.mixed_targets)


@attrs.frozen(repr=False)
class MixUp(PairMixing):
    """Mix each batch with a permutation of itself: see `composable.functional.mixup`.

    The whole batch is mixed at once, before it is split into microbatches.

    Args:
        alpha: Both parameters of the Beta distribution of the weights, above 0.
        per_sample: Draw one weight per example instead of one per batch.
        interpolate_loss: Interpolate the losses of the two targets instead of the targets. This
            works for any loss, and computes it twice; interpolated targets need a loss that takes
            class probabilities, such as cross entropy.
    """

    alpha: float = attrs.field(default=0.2, validator=in_range(0, ends="()"))
    per_sample: bool = attrs.field(default=False, validator=boolean)
    interpolate_loss: bool = attrs.field(default=False, validator=boolean)

    mixing = staticmethod(mixup)


def blend_pairs(state: State, *, interpolate_loss: bool) -> State:
    """Interpolate the `MixedTargets` of the batch, or make the loss interpolate its values."""
    pair: MixedTargets = state.targets
    if interpolate_loss:
        state = per_example(state, pair) if pair.weight.ndim else state
        return state.evolve(loss_fn=InterpolatedLoss(state.loss_fn, state.batch_spec))
    if pair.targets.is_floating_point():
        return state.with_batch(targets=pair.soft())
    state, pair, layout = for_probabilities(state, pair, _ADVICE)
    return state.with_batch(targets=soften(pair, **layout._asdict()))
