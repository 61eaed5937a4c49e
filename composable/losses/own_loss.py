"""A loss that a model computes in its forward pass, and how it is computed there."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import attrs
import torch
from torch import nn

from composable.core.evaluation_mode import evaluation_mode
from composable.core.state import State
from composable.losses.confirmation import (
    UNKNOWN,
    Seen,
    compare_parts,
    refusing_effects,
    select,
    slices,
    without_effects,
)
from composable.losses.loss import check_scalar
from composable.losses.part_weights import Count, refused, weigh
from composable.losses.terms import Terms
from composable.losses.watch import LossWatch, eagerly

_MOST = 16
"""The most examples of a batch with which a model is called to find how it computes its loss."""


@attrs.frozen(eq=False)
class OwnLoss:
    """A loss that a model computes itself."""

    model: nn.Module
    form: tuple[Any, ...]
    """How it is computed."""
    is_sum: bool
    count: Count | None = None
    """Computes the weight of a batch from its targets, if these determine it."""

    def is_of(self, model: nn.Module) -> bool:
        """Return whether a model is this one, or a copy of it."""
        if model is self.model:
            return True
        kinds = ([type(module) for module in root.modules()] for root in (model, self.model))
        return next(kinds) == next(kinds)

    @classmethod
    def find(cls, state: State, agree: Callable[[bool], bool]) -> "OwnLoss":
        """Find how the loss is computed, and confirm that it can be split.

        Args:
            state: The state with a batch, of which some examples are used.
            agree: Returns whether a flag is true on any process.

        Raises:
            SplitLossError: It can't be split.
        """
        count = min(state.batch_spec.count(state.batch), _MOST)
        state = state.evolve(batch=select(state, state.batch, [*range(count)]))
        refusing = nullcontext() if state.update is None else refusing_effects(state)
        with without_effects(state), evaluation_mode(state.model), torch.enable_grad(), refusing:
            whole = own_loss(state, state.batch)
            terms = whole[1]
            if terms is None:
                raise refused(state, UNKNOWN)
            weigh(terms, state)
            seen, confirmed = [(state.batch, terms)], False
            if count > 1:
                halves = [select(state, state.batch, rows) for rows in slices(state)[1:]]
                parts = [own_loss(state, half) for half in halves]
                confirmed = compare_parts(state, whole, parts, terms)
                seen += [(h, p[1]) for h, p in zip(halves, parts, strict=True) if p[1] is not None]
            if agree(not confirmed):
                twice = select(state, state.batch, [*range(count), *range(count)])
                compare_parts(state, own_loss(state, twice), [whole, whole], terms)
            return cls(state.model, terms.form, terms.is_sum, _count_of(state, seen))


def own_loss(state: State, batch: Any) -> Seen:
    """Compute the loss of a batch by a model, and its terms."""
    precision, cast = state.precision, state.precision.cast(batch)
    watch = LossWatch(cast)
    with eagerly(), precision.autocast(state.device):
        with watch.around_forward():
            outputs = state.evolve(batch=cast).forward()
        with watch:
            loss = state.loss_fn(outputs, batch)  # type: ignore[misc]
    if loss is None:
        raise refused(
            state, "is None in evaluation mode, in which it is found what it is a mean over"
        )
    return check_scalar(loss).detach(), watch.terms_of(loss)


def _count_of(state: State, seen: list[tuple[Any, Terms]]) -> Count | None:
    """Return a function of a batch that is its weight, for all batches seen."""
    first = seen[0][1]
    if first.is_sum or not first.single:
        return None
    divisor, source = first.terms[0].divisor, first.terms[0].divisor.source
    if divisor.sum_may_remain:  # the loss of a part without weight is seen in the forward pass only
        return None
    counts = [divisor.of_batch if source is not None and source.is_of_any_size else None]
    if isinstance(divisor.value, int):
        counts.insert(0, state.batch_spec.count)
    for count in counts:
        if count is not None and all(
            float(count(batch)) == float(terms.terms[0].divisor.value) for batch, terms in seen
        ):
            return count
    return None
