"""Prefix tokens, as an algorithm."""

from types import MappingProxyType
from typing import Any

import attrs
import torch
from torch import Tensor

from composable._support.devices import send
from composable.algorithms._validators import in_range, passes
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import MixedTargets, prefix_targets
from composable.functional.prefix_tokens import check_prefixes
from composable.losses.classes import InterpolatedLoss
from composable.losses.loss import OutputLoss

_TWO_TARGETS = "both give each example two targets"


@attrs.frozen(repr=False)
class PrefixTokens(Algorithm):
    """Predict the prefixes of target tokens, too: see `composable.functional.prefix_token_loss`.

    The run's loss is computed a second time, for the prefixes. So it may shift labels or skip
    positions without a label; and it is a mean over the same positions. The weight of the prefixes
    falls linearly to 0.

    Args:
        prefixes: The result of `composable.functional.prefix_tokens`.
        weight: The weight at the start, 0 or more.
        end: The share of training at which the weight is 0, in (0, 1].
    """

    prefixes: Tensor = attrs.field(
        validator=passes(check_prefixes),
        eq=attrs.cmp_using(eq=lambda one, other: one.equal(other)),
    )
    weight: float = attrs.field(default=0.25, validator=in_range(0, ends="[)"))
    end: float = attrs.field(default=2 / 3, validator=in_range(0, 1, ends="(]"))

    events = frozenset({Event.BEFORE_TRAIN_BATCH, Event.BEFORE_LOSS, Event.AFTER_LOSS})
    stage = Stage.MIX
    reads = frozenset({"batch", "loss", "loss_fn", "timestamp", "max_duration", "epoch_length"})
    writes = frozenset({"batch", "loss", "loss_fn"})
    incompatible_with = MappingProxyType(dict.fromkeys(("MixUp", "CutMix"), _TWO_TARGETS))

    def match(self, event: Event, state: State) -> bool:
        """Match while the weight is above 0."""
        return self.weight > 0 and state.elapsed < self.end

    def apply(self, event: Event, state: State) -> State:
        """Add the prefixes to the targets; interpolate the two losses; and scale their mean."""
        weight = self.weight * (1 - state.elapsed / self.end)
        if event is Event.BEFORE_TRAIN_BATCH:
            return self._with_prefixes(state, 1 / (1 + weight))
        if event is Event.BEFORE_LOSS:
            return state.evolve(loss_fn=InterpolatedLoss(state.loss_fn, state.batch_spec))
        return state.evolve(loss=state.loss * (1 + weight))  # type: ignore[operator]

    def _with_prefixes(self, state: State, share: float) -> State:
        loss_fn: Any = state.loss_fn
        if isinstance(loss_fn, OutputLoss):
            raise TypeError(loss_fn.needs_logits(self.name))
        targets = state.targets
        shorter = prefix_targets.unchecked(targets, send(self.prefixes, targets.device))
        return state.with_batch(targets=MixedTargets(targets, shorter, torch.tensor(share)))
