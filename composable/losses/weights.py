"""How much the loss of a part counts in the batch's: declared, or recognized and confirmed.

A part is a microbatch, a batch of several in one step, a shard, or a batch of an evaluation. Its
loss is a sum, divided by something: a number of examples, of labels, a sum of weights. That divisor
is the weight of the part. It is declared by `loss_mean_over` or by a `loss_weight` of the loss or
the model, or else found by a `LossWatch`. A loss for which it is unknown is refused.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor

from composable.core.state import State
from composable.functional.mixed import MixedTargets
from composable.losses.confirmation import (
    UNKNOWN,
    Confirmed,
    LossOf,
    compare_declared,
    has_divisor,
    if_it_computes,
    innermost,
    terms_of,
    without_effects,
)
from composable.losses.loss import ModelLoss, OutputLoss, TargetLoss, function_of
from composable.losses.mean import Declared, ExampleCounter, check_weight
from composable.losses.own_loss import OwnLoss
from composable.losses.part_weights import (
    Count,
    SplitLossError,
    TermWeights,
    Weight,
    name_of,
    refused,
    weigh,
)
from composable.losses.watch import LossWatch, eagerly

log = logging.getLogger("composable")


@attrs.define(eq=False)
class LossWeights:
    """The weights of the parts of the batches of a run.

    Args:
        declared: What `loss_mean_over` declares, or None.
        compiled: Whether the model is compiled, so that its forward pass is not watched.
    """

    declared: Declared | None = None
    compiled: bool = False
    agree: Callable[[bool], bool] = bool
    """Returns whether a flag is true on any process, if they must call the model alike."""
    _confirmed: Confirmed = attrs.field(factory=Confirmed)
    _own: OwnLoss | None = None
    _compared: bool = False

    def of_batches(self, state: State) -> Count | None:
        """Return what computes the weight of a batch without its loss, if anything does."""
        if self.declared is not None:
            return self.declared.by_batch
        own = self._own_loss(state)
        return None if own is None else own.count

    def declares(self, state: State) -> bool:
        """Return whether a function of the user returns the weights."""
        declared = self.declared
        return _declared_by(state) is not None if declared is None else not declared.by_name

    def watches_forward(self, state: State) -> bool:
        """Return whether the forward pass is watched, since the loss may be computed there."""
        if self._declared_weight(state) is not None:
            return False
        own = self._own_loss(state)
        if own is not None:
            return own.count is None and not own.is_sum
        unknown = isinstance(state.loss_fn, ModelLoss) and not self._confirmed.knows(state)
        return unknown and not self.compiled

    def watch(self, state: State, batch: Any) -> LossWatch | None:
        """Return a mode for the loss of a part; None if its weight is declared.

        Args:
            state: The state with the loss.
            batch: The part, before algorithms replace it for the loss.
        """
        if self.declared is not None:
            return None
        plain = isinstance(state.loss_fn, TargetLoss) and state.loss_module is None
        return LossWatch(batch, has_parameters=not plain)

    def around_loss(self, state: State, watch: LossWatch | None) -> AbstractContextManager[Any]:
        """Return a context for computing the loss of a part: eagerly, if the loss is watched."""
        if watch is None:
            return nullcontext()
        return _watched_eagerly(watch) if _is_compiled(state.loss_fn) else watch

    def weigh(
        self,
        state: State,
        outputs: Any,
        loss: Tensor,
        watch: LossWatch | None,
        loss_of: LossOf,
        batch: Any,
        parts: int = 1,
    ) -> Weight | TermWeights:
        """Return the weight of a part, given its loss.

        Args:
            state: The state with the batch of the part, as the loss got it.
            outputs: The outputs of the model.
            loss: The loss of the part.
            watch: The mode in which it was computed.
            loss_of: Computes the loss of a state and outputs.
            batch: The part, before algorithms replaced it for the loss.
            parts: The number of parts of the batch, about.

        Raises:
            SplitLossError: It is unknown, or the loss is not a mean of its parts' losses.
            TypeError: What is declared is not a number.
            ValueError: It is negative, not a number, or on another device.
        """
        terms = None if watch is None else watch.terms_of(loss)
        if terms is not None and self._confirmed.holds(state, terms):
            return weigh(terms, state)
        weight_of = self._declared_weight(state)
        if weight_of is not None:
            weight = weight_of(outputs, batch)
            self.compare_declared(state, outputs, loss_of, batch)
            return Weight(weight)
        own = self._own_loss(state) or self._found_in_forward(state, outputs, loss_of)
        if own is not None and own.is_sum:
            return Weight(None, own.form)
        if own is not None and own.count is not None:
            return Weight(own.count(state.batch))
        if terms is None or (own is not None and terms.form != own.form):
            raise refused(state, UNKNOWN)
        if own is None:
            self._confirmed.confirm(state, outputs, loss_of, terms, parts)
        return weigh(terms, state)

    def _declared_weight(self, state: State) -> Callable[[Any, Any], Any] | None:
        """Return the declared weight as a function of outputs and a batch, if there is one."""
        if self.declared is not None:
            return partial(self.declared.weight, device=state.device)
        own = _declared_by(state)
        if own is None:
            return None
        return lambda *part: check_weight("loss_weight", own(*part), state.device)

    def compare_declared(self, state: State, outputs: Any, loss_of: LossOf, batch: Any) -> None:
        """Compare a loss of outputs once with two halves' losses, given their declared weights.

        Args:
            state: The state with the batch of a part, as the loss got it.
            outputs: The outputs of the model.
            loss_of: Computes the loss of a state and outputs.
            batch: The part, before algorithms replaced it for the loss.

        Raises:
            SplitLossError: It is a sum, or not their mean; a mean of examples may be approximate.
        """
        if self._compared or state.batch_spec.count(batch) < 2:
            return
        self._compared = True
        weight_of, base = self._declared_weight(state), innermost(state.loss_fn)
        if not isinstance(base, TargetLoss):
            return
        if has_divisor(state.loss_fn):  # a part's, for targets that were replaced
            targets = state.batch_spec.targets(batch)
            if isinstance(targets, MixedTargets):
                batch = state.batch_spec.replace(batch, targets=targets.targets)
            state = state.evolve_unchecked(loss_fn=base, batch=batch)
        with without_effects(state):
            seen = if_it_computes(lambda: terms_of(state, outputs, loss_of))
        if seen is not None and seen[1] is not None and seen[1].is_sum:
            raise SplitLossError(
                f"{name_of(state)} is a sum, and loss_mean_over or loss_weight declares a mean. "
                "Omit the declaration: sums are added up."
            )
        if not isinstance(self.of_batches(state), ExampleCounter):  # which may be approximate
            self._compared = compare_declared(state, outputs, loss_of, weight_of, batch)  # type: ignore[arg-type]

    def weight_of_other(
        self, state: State, loss: Tensor, watch: LossWatch | None, own: Weight | TermWeights
    ) -> Weight | TermWeights:
        """Return the weight of a loss that an algorithm has computed: by default `own`.

        Args:
            state: The state with the batch of the part.
            loss: The loss of the algorithm.
            watch: The mode in which it was computed.
            own: The weight of the loss from which it was computed.

        Raises:
            SplitLossError: It is unknown, and the loss has several weights, or one that may be 0.
        """
        terms = None if watch is None else watch.terms_of(loss)
        if terms is not None:
            return weigh(terms, state)
        one = own.as_one() if isinstance(own, TermWeights) else own
        if one is None or one.sum_may_remain:
            raise refused(
                state,
                "is changed by an algorithm, and it is unknown what the result is a mean over",
            )
        return attrs.evolve(one, factor=one.value, constant=0.0)

    def _found_in_forward(self, state: State, outputs: Any, loss_of: LossOf) -> OwnLoss | None:
        """Find how a model with a method `loss` computes it, if it does so in its forward pass."""
        if not isinstance(state.loss_fn, ModelLoss) or self._confirmed.knows(state):
            return None
        with without_effects(state):
            outside = terms_of(state, outputs, loss_of)[1]
        if outside is not None:
            return None
        try:
            return self._find(state)
        except (SplitLossError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # detectors return no losses in evaluation mode, for example
            raise refused(
                state,
                "fails in evaluation mode, in which it is found what it is a mean over "
                f"({type(error).__name__}: {error})",
            ) from error

    def find_own_loss(self, state: State) -> None:
        """Find how a model of Transformers computes its loss, unless that is known.

        The model is called on examples of the batch, in evaluation mode and without effects: on all
        processes, before the first part.

        Args:
            state: The state with a batch.

        Raises:
            SplitLossError: The loss is not a mean of its parts' losses, or it is unknown what it is
                a mean over.
        """
        unknown = isinstance(state.loss_fn, OutputLoss) and self._own_loss(state) is None
        if unknown and self._declared_weight(state) is None:
            self._find(state)

    def _find(self, state: State) -> OwnLoss:
        own = OwnLoss.find(state, self.agree)
        if own.count is None and not own.is_sum:
            if self.compiled:
                raise refused(
                    state,
                    "is computed in its compiled forward pass, and its targets don't determine "
                    "what that is a mean over",
                )
            log.warning(
                "every forward pass of %s is watched to find what its loss is a mean over, which "
                "takes some microseconds for each operation; loss_mean_over= avoids it",
                type(state.model).__name__,
            )
        self._own = own
        return own

    def _own_loss(self, state: State) -> OwnLoss | None:
        own, computes = self._own, isinstance(state.loss_fn, (ModelLoss, OutputLoss))
        return own if own is not None and computes and own.is_of(state.model) else None


def _declared_by(state: State) -> Callable[[Any, Any], Any] | None:
    """Return the `loss_weight` of the loss, or of a model that computes it."""
    own = isinstance(state.loss_fn, (ModelLoss, OutputLoss))
    declared = getattr(state.model if own else function_of(state.loss_fn), "loss_weight", None)
    return declared if callable(declared) else None


@contextmanager
def _watched_eagerly(watch: LossWatch) -> Iterator[None]:
    with eagerly(), watch:
        yield


def _is_compiled(loss_fn: Any) -> bool:
    """Return whether a loss function is compiled by `torch.compile`."""
    marks = {"_torchdynamo_orig_callable", "dynamo_ctx", "_compiled_call_impl"}
    return not marks.isdisjoint(getattr(function_of(loss_fn), "__dict__", ()))
