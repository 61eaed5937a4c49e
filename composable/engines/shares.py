"""The shares of the parts of a step in its loss, and in its gradients.

A part is a microbatch, a batch of several in one step, or one of a shard. The loss of the step is
the weighted mean of the parts' losses: the share of a part is its weight / total. It acts in one of
two ways:

1. Where the weights follow from the batches, the total is known before the first backward pass, and
   the loss of a part is multiplied by weight / total. In a sum of terms with different divisors,
   each term is multiplied by its share.
2. Else by weight / unit, where the unit is the largest power of two below the last total. After the
   last part, gradients and loss are multiplied by unit / total. A power of two changes no digits,
   so the result has the same bits whatever the unit was.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import attrs
import torch
from torch import Tensor

from composable._support.devices import compute_dtype
from composable._support.dtensors import local_part
from composable._support.foreach import foreach_, per_dtype
from composable._support.tree import map_tensors, tensors_of
from composable.core.state import State
from composable.core.stateful import Factor, SavedFields, saved
from composable.data.grouping import Examples, total_weight
from composable.losses.confirmation import LossOf, has_divisor, keeping_buffers
from composable.losses.part_weights import Count, SplitLossError, TermWeights, Weight
from composable.losses.weights import LossWeights

_NOTHING: AbstractContextManager[Any] = nullcontext()


@attrs.define(eq=False)
class LossShares(SavedFields):
    """The shares of the parts of all steps of a run.

    Args:
        weights: The weights of parts.
        loss_of: Computes the loss of a state and outputs.
    """

    weights: LossWeights
    loss_of: LossOf
    logged: bool = False
    """Whether weighted losses are logged, so that `unit` is the first weight times the parts."""
    unit: Any = saved(Factor, default=None)
    """A power of two near the last total: a number, or a tensor on the device of the losses."""
    factor: Any = 1.0
    """What the gradients of the last step were multiplied by after its last part."""


class StepShares:
    """The shares of the parts of one pass over a batch.

    Args:
        run: The shares of the run.
        state: The state with the whole batch, or the part of it that this process has.
        first: The first part.
        count: Number of parts, about.
        exchange: Returns the sum of a number or a tensor over all processes.
        known: The examples of the batch as it was loaded, if examples are counted.
        size: The number of processes, if gradients become means over them; in a loop that divides
            losses, times the number by which it does.
        ways: Which way is taken, unless `known` is the total: "either"; the "first", since
            gradients can't be changed afterwards; or the "second", in which the total is sent with
            the gradients.
    """

    unknown: str = ""
    """Why the batch is not known before its last part, if it is not."""

    def __init__(  # what differs between one process and several
        self,
        run: LossShares,
        state: State,
        first: Any,
        count: int,
        *,
        exchange: Callable[[Any], Any] | None = None,
        known: Examples | None = None,
        size: int = 1,
        ways: str = "either",
    ) -> None:
        self.run, self.whole = run, state.batch
        self.number_of_parts, self.size, self.ways = count, size, ways
        self.exchange = exchange or (lambda value: value)
        if not state.whole_loss:
            run.weights.find_own_loss(state.evolve_unchecked(batch=first))
        self.watches_forward = run.weights.watches_forward(state)
        self.count = None if state.whole_loss else run.weights.of_batches(state)
        self.declared = run.weights.declares(state)
        self.total: Any = None
        """The sum of the weights of all parts, or one sum for each term."""
        self.unit: Any = None
        self.omitted = 0.0
        """The examples of this process that algorithms have omitted since they were loaded."""
        self.restart()
        self.counts_examples = known is not None and self.count is not None
        """Whether the total is the number of examples as they were loaded."""
        if known is not None and self.count is not None:
            self.total = known.all
            self.omitted = known.own - total_weight(self.whole, self.count)
        elif self.count is not None and ways != "second":
            self.total = self._total_of(self.count)

    def restart(self) -> None:
        """Begin again with the first part."""
        self.form: tuple[Any, ...] | None = None
        """What the losses of the parts have in common."""
        self.origin: Any = None
        """How the batch determines the weights of the parts."""
        self.seen: Any = 0
        """The weight of the parts so far, if the second way is taken."""
        self.may_be_nothing = False
        """Whether the loss is 0 where its weight is 0."""

    def take(self, loss: Tensor) -> Tensor:
        """Return the weight of the parts since the last call, as a tensor like a loss."""
        seen, self.seen = self.seen, 0
        own = isinstance(seen, Tensor)
        return seen if own else torch.full_like(loss, seen, dtype=torch.float64)

    def compute(
        self,
        compute_loss: Callable[..., tuple[State, Any, Tensor, Tensor]],
        state: State,
        batch: Any,
        *,
        empty: bool,
    ) -> tuple[State, Any, Tensor, Any]:
        """Compute the loss of a part.

        Args:
            compute_loss: Computes outputs and loss.
            state: The state before the forward pass.
            batch: The part, as it is before algorithms replace it for the loss.
            empty: Whether it has the weight 0.

        Returns:
            The state, the outputs, the loss, and its share.
        """
        weights, count = self.run.weights, self.count
        if count is None:
            first = state.loss_module if self.form is None else None
            kept = _NOTHING if first is None else keeping_buffers(first.buffers(), unless_done=True)
            with kept:  # the buffers of a loss that is refused
                return self._compute_watched(compute_loss, state, batch, empty=empty)
        state, outputs, _, loss = compute_loss(state)
        share = self._share_of(Weight(count(batch)), empty=empty)
        if has_divisor(state.loss_fn):
            share = factor_of_gradients(share)
        if weights.declared is not None:
            weights.compare_declared(state, outputs, self.run.loss_of, batch)
            _clear_gradient(outputs, share)
        return state, outputs, loss, share

    def _compute_watched(
        self, compute_loss: Callable[..., Any], state: State, batch: Any, *, empty: bool
    ) -> tuple[State, Any, Tensor, Any]:
        weights = self.run.weights
        watch = weights.watch(state, batch)
        around = weights.around_loss(state, watch)
        watched = watch is not None and self.watches_forward
        forward = watch.around_forward() if watched else _NOTHING  # type: ignore[union-attr]
        state, outputs, own, loss = compute_loss(state, forward, around)
        self.may_be_nothing = has_divisor(state.loss_fn)
        weight = weights.weigh(
            state, outputs, own, watch, self.run.loss_of, batch, self.number_of_parts
        )
        if loss is not own:  # of an algorithm
            weight = weights.weight_of_other(state, loss, watch, weight)
        if self.form is None and (count := weights.of_batches(state)) is not None:
            self.count = count  # now that it is known
            if self.ways != "second":
                self.total = self._total_of(count)
            return state, outputs, loss, self._share_of(Weight(count(batch)), empty=empty)
        if isinstance(weight, TermWeights):
            one = weight.as_one()
            if one is None and state.update is not None and outputs:
                raise weight.unknown("for the terms that it returns")
            if one is None:
                weighted = self._loss_of_terms(weight)  # an empty part exchanges the totals too
                return state, outputs, *((loss, 0.0) if empty else (weighted, 1.0))
            weight = one
        share = self._share_of(weight, empty=empty)
        if not weight.form:  # it is declared, and the gradient of a mean over nothing may be NaN
            _clear_gradient(outputs, share)
        return state, outputs, weight.of_weight(loss), share

    def finish(
        self,
        parameters: Callable[[], Iterable[Tensor]],
        loss: Tensor,
        seen: Any,
        omitted: Any = 0.0,
        *,
        on_cpu: bool = False,
    ) -> Tensor:
        """Turn the gradients and the loss into the whole batch's, and return the loss.

        Args:
            parameters: Returns the parameters that have the gradients of all parts.
            loss: The sum of the weighted losses.
            seen: The weight of all parts on all processes, if the second way was taken.
            omitted: The examples of all processes that algorithms have omitted.
            on_cpu: Whether values can be read, so that gradients are not multiplied by 1.
        """
        factor: Any = None
        if self.unit is not None:
            total = _checked_total(seen, self.declared)
            total = float(total) if on_cpu else total  # a number takes a fraction of the time
            factor = _ratio(self.unit, total)
            if self.may_be_nothing:
                factor = factor_of_gradients(factor)
            self.run.unit = _power_of_two(total, self.unit)
        elif isinstance(omitted, Tensor) or omitted:
            factor = self.total / (self.total - omitted)
        if factor is None or (on_cpu and factor == 1):
            self.run.factor = 1.0
            return loss
        self.run.factor = factor_of_gradients(factor)
        _rescale(parameters(), self.run.factor)
        return times(loss, factor)

    def _share_of(self, weight: Weight, *, empty: bool) -> Any:
        """Return the share of a part with a weight that is known with its loss."""
        if self.form is None:
            self.form = weight.form
            if weight.of_batch is not None and self.ways != "second":
                self.total, self.origin = self._total_of_targets(weight.of_batch), weight.origin
        elif self.form != weight.form:
            raise other_form("the parts of a batch")
        if weight.value is None:
            return 0.0 if empty else float(self.size)
        if self.total is not None:
            self._check_origin(weight.origin)
            return 0.0 if empty else self._share(weight.factor, self.total)
        if self.ways == "first":
            raise SplitLossError(
                "the weights of the parts of a batch don't follow from its targets, and the engine "
                "has to know them before it computes gradients; pass loss_mean_over= what the loss "
                "is a mean over, as a function of the batch or a name."
            )
        value, factor = weight.value, weight.factor
        if empty:  # of the same type: processes send it to each other
            value = factor = torch.zeros_like(value) if isinstance(value, Tensor) else 0
        if self.unit is None:
            self.unit = self._unit_of(value)
        self.seen = self.seen + value
        return _ratio(factor * self.size, self.unit)

    def _unit_of(self, first: Any) -> Any:
        """Return the unit, given the weight of the first part."""
        unit, logged = self.run.unit, self.run.logged
        if unit is None or logged:
            total = self.exchange(first * self.number_of_parts)
            near = _unless_zero if logged else _power_of_two
            unit = near(total, 1.0 if unit is None else unit)
        return unit

    def _loss_of_terms(self, loss: TermWeights) -> Tensor:
        """Return the sum of the terms of a loss, each multiplied by its share."""
        if self.unknown:
            raise loss.unknown(self.unknown)
        origins = tuple([one.origin for one in loss.weights])
        if self.form is None:
            self.form, self.origin = loss.form, origins
            means = [one for one in loss.weights if one.value is not None]
            if any(one.of_batch is None for one in means):
                raise loss.unknown("before the first backward pass, since the batch lacks them")
            counts = [one.of_batch for one in loss.weights]
            self.total = [count and self._total_of_targets(count) for count in counts]
        elif self.form != loss.form:
            raise other_form("the parts of a batch")
        self._check_origin(origins)
        terms = []
        for (value, weight), total in zip(loss.values, self.total, strict=True):
            mean = weight.value is not None
            share = self._share(weight.factor, total) if mean else float(self.size)
            terms.append(without_nothing(times(value, share), share))
        return torch.stack(terms).sum()

    def _check_origin(self, origin: Any) -> None:
        if self.origin != origin:
            raise SplitLossError(
                "the parts of a batch get their targets in different ways: an algorithm has "
                "replaced the targets of some parts, or their shapes differ; pass loss_mean_over= "
                "to declare the weights of the parts."
            )

    def _share(self, weight: Any, total: Any) -> Any:
        return _ratio(weight, _ratio(total, self.size) if self.size > 1 else total)

    def _total_of(self, count: Count) -> Any:
        return _checked_total(self.exchange(total_weight(self.whole, count)), self.declared)

    def _total_of_targets(self, count: Count) -> Any:
        """Return the total of what is counted in the targets of a watched loss."""
        try:
            return self._total_of(count)
        except LookupError as error:
            raise SplitLossError(
                "the batches of a step have different structures, and the targets of the first "
                f"are not in the others ({error!r}); pass loss_mean_over= to declare their weights."
            ) from error


def other_form(parts: str) -> SplitLossError:
    """Return the error of parts whose losses have no common mean."""
    return SplitLossError(
        f"{parts} have losses that are computed in different ways, by other functions, options or "
        "factors; they have no common mean. Let loss_fn depend on nothing but the outputs and the "
        "batch, or declare its weight by loss_mean_over=."
    )


def _rescale(parameters: Iterable[Tensor], factor: Any) -> None:
    """Multiply the gradients of parameters by a factor, in place."""
    gradients = [local_part(tensor.grad) for tensor in parameters if tensor.grad is not None]

    def scale(group: list[Tensor]) -> list[Tensor]:  # which FSDP2(offload=True) has on the CPU
        return foreach_("mul", group, map_tensors(lambda x: x.to(group[0].device), factor))

    per_dtype(scale, gradients)


def factor_of_gradients(factor: Any) -> Any:
    """Return a factor, or 0 for the mean over nothing, whose gradients are 0, and 0 / 0 is NaN."""
    if isinstance(factor, Tensor):
        return torch.where(factor.isfinite(), factor, 0.0)
    return factor if math.isfinite(factor) else 0.0


def times(loss: Tensor, share: Any) -> Tensor:
    """Multiply a loss by a number, or by a tensor, which is rounded to its dtype."""
    if isinstance(share, Tensor):
        share = share.to(compute_dtype(loss.dtype))
    return torch.mul(loss, share)


def without_nothing(loss: Tensor, share: Any) -> Tensor:
    """Return a loss times its share, or 0 where the share is 0: the mean over nothing is NaN."""
    if isinstance(share, Tensor):
        return torch.where(share == 0, 0.0, loss)
    return loss if share else torch.zeros_like(loss)


def _clear_gradient(outputs: Any, share: Any) -> None:
    """Zero the gradient of a part with share 0, where 0 / 0 would give NaN."""

    def cleared(gradient: Tensor) -> Tensor:
        if isinstance(share, Tensor):
            return torch.where(share > 0, gradient, 0.0)
        return torch.zeros_like(gradient)

    if isinstance(share, Tensor) or not share > 0:
        for tensor in tensors_of(outputs):
            if tensor.requires_grad:
                tensor.register_hook(cleared)  # type: ignore[no-untyped-call]


def _checked_total(total: Any, declared: bool) -> Any:
    """Return the sum of weights; raise an error for a declared one of 0.

    A mean over nothing that is found in tensors is NaN, as without a split. The value of a tensor
    on a GPU is not read, since the host would wait for it.
    """
    known = not isinstance(total, Tensor) or (declared and total.device.type == "cpu")
    if known and not total > 0:
        raise ValueError(
            f"the weights of all parts of a batch add up to {float(total):g}; loss_mean_over and "
            "loss_weight must return a number above 0 for at least one of them."
        )
    return total


def _ratio(above: Any, below: Any) -> Any:
    """Divide; the mean over nothing is NaN."""
    if isinstance(above, Tensor):
        return above.double() / below  # a quotient of integers would be of float32
    if isinstance(below, Tensor):
        return above / below.double()
    return above / below if below else math.nan


def _unless_zero(value: Any, otherwise: Any) -> Any:
    return (
        torch.where(value > 0, value, otherwise)
        if isinstance(value, Tensor)
        else value or otherwise
    )


def _power_of_two(value: Any, otherwise: Any = 1.0) -> Any:
    """Return the largest power of two that a number is at least, or another number for 0."""
    if not isinstance(value, Tensor):
        return 2.0 ** (math.frexp(value)[1] - 1) if value > 0 else otherwise
    power = torch.ldexp(torch.ones_like(value.double()), torch.frexp(value.double()).exponent - 1)
    return torch.where(value > 0, power, otherwise)
