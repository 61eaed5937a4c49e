"""MixUp, as an algorithm."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import attrs
import torch
from torch import Tensor

from composable.algorithms._validators import boolean, in_range
from composable.core.algorithm import Algorithm, Stage
from composable.core.batch import BatchSpec
from composable.core.event import Event
from composable.core.state import State
from composable.functional import MixedTargets, mixup
from composable.functional._checks import kind_of

__all__ = ["MixUp"]

_MIXED_ONCE = "both mix the batch, and the pairs of targets of a mixed batch can't be mixed again"


@attrs.frozen(repr=False)
class MixUp(Algorithm):
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

    events = frozenset({Event.BEFORE_TRAIN_BATCH, Event.BEFORE_LOSS})
    stage = Stage.MIX
    reads = frozenset({"batch", "outputs", "loss_fn", "key", "timestamp"})
    writes = frozenset({"batch", "loss_fn"})
    incompatible_with = MappingProxyType(dict.fromkeys(("MixUp", "CutMix"), _MIXED_ONCE))

    def apply(self, event: Event, state: State) -> State:
        """Mix the batch; before the loss, interpolate its pairs of targets, or the loss."""
        if event is Event.BEFORE_LOSS:
            return blend_pairs(state, interpolate_loss=self.interpolate_loss)
        mixed = mixup(
            state.inputs,
            state.targets,
            alpha=self.alpha,
            per_sample=self.per_sample,
            generator=state.generator(self.name),
        )
        return state.with_batch(inputs=mixed.inputs, targets=mixed.mixed_targets)


def blend_pairs(state: State, *, interpolate_loss: bool) -> State:
    """Interpolate the `MixedTargets` of the batch, or make the loss interpolate its values."""
    if interpolate_loss:
        return state.evolve(loss_fn=InterpolatedLoss(state.loss_fn, state.batch_spec))
    return state.with_batch(targets=state.targets.soft(classes_of(state.outputs)))


@attrs.frozen
class InterpolatedLoss:
    """A loss for batches whose targets are `MixedTargets`."""

    loss_fn: Any
    spec: BatchSpec

    def __call__(self, outputs: Any, batch: Any) -> Tensor:
        """Interpolate the losses of the two targets."""
        pair: MixedTargets = self.spec.targets(batch)
        loss_fn = self.loss_fn if pair.weight.ndim == 0 else self.loss_fn.per_example
        return pair.loss(self._of_targets(loss_fn, batch), outputs)

    def _of_targets(self, loss_fn: Callable[..., Tensor], batch: Any) -> Callable[..., Tensor]:
        return lambda outputs, targets: loss_fn(outputs, self.spec.replace(batch, targets=targets))


def classes_of(outputs: Any) -> int:
    """Return the number of classes of the outputs of a model.

    Raises:
        TypeError: The outputs are not one tensor of logits.
    """
    if not isinstance(outputs, torch.Tensor) or outputs.ndim < 2:
        raise TypeError(
            "outputs must be logits of shape [batch, classes, ...], to get the number of classes, "
            f"not {_shown(outputs)}; return logits from the model, or use interpolate_loss=True "
            "if the algorithm has it."
        )
    return outputs.shape[1]


def _shown(outputs: Any) -> str:
    if isinstance(outputs, torch.Tensor):
        return f"a tensor of shape {tuple(outputs.shape)}"
    return kind_of(outputs)
