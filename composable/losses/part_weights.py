"""The weight of a part of a batch: what its loss is divided by.

A loss with a single divisor has one weight. In a sum of terms with different divisors, each term
has one.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeAlias

import attrs
from torch import Tensor

from composable.core.state import State
from composable.losses.loss import ModelLoss, OutputLoss, function_of
from composable.losses.terms import Term, Terms

Count: TypeAlias = Callable[[Any], Any]


class SplitLossError(ValueError):
    """A loss of a batch that can't be computed from the losses of its parts."""


ADVICE = "Add WholeLoss() to algorithms, or declare by loss_mean_over= what it is a mean over."


def refused(
    state: State, reason: str, kind: type[SplitLossError] = SplitLossError
) -> SplitLossError:
    """Return the error for a loss that can't be split."""
    return kind(f"{name_of(state)} {reason}. {ADVICE}")


def name_of(state: State) -> str:
    """Name the loss in a message."""
    if isinstance(state.loss_fn, (ModelLoss, OutputLoss)):
        return f"the loss of {type(state.model).__name__}"
    function = function_of(state.loss_fn)
    return f"loss_fn={getattr(function, '__name__', type(function).__name__)}"


@attrs.frozen(eq=False)
class Weight:
    """The weight of a part with a single divisor."""

    value: Any
    """A number, or a tensor without dimensions; None for a loss that is a sum."""
    form: tuple[Any, ...] = ()
    """What the losses of all parts of a whole have in common; nothing for a declared weight."""
    of_batch: Count | None = None
    """Computes the weight of another part from its batch, if that determines it."""
    origin: Any = None
    """How the batch determines it: equal for all parts of a whole."""
    sum_may_remain: bool = False
    """Whether the loss times its factor may be other than 0 where the weight is 0."""
    constant: Any = 0.0
    """A constant in the loss: a number, or a tensor."""
    factor: Any = attrs.Factory(lambda self: self.value, takes_self=True)
    """The weight that turns the mean into a sum: 1 for 0, because nothing was divided."""

    def of_weight(self, loss: Tensor) -> Tensor:
        """Return the loss without its constant where the weight is 0."""
        if isinstance(self.constant, float) and not self.constant:
            return loss
        return loss - self.constant * (self.value == 0)  # type: ignore[no-any-return]


@attrs.frozen(eq=False)
class TermWeights:
    """The weights of a part whose loss is a sum of terms with different divisors."""

    terms: Terms
    weights: tuple[Weight, ...]
    """The weight of each term."""
    name: str
    """The name of the loss, for messages."""

    @property
    def form(self) -> tuple[Any, ...]:
        """What the losses of all parts of a whole have in common."""
        return self.terms.form

    @property
    def values(self) -> list[tuple[Tensor, Weight]]:
        """The value and the weight of each term, with the constant in the first mean."""
        values = [term.value for term in self.terms.terms]
        mean = next(i for i, weight in enumerate(self.weights) if weight.value is not None)
        constant = self.terms.sum_of_constants
        values[mean] = values[mean] + constant * (self.weights[mean].value != 0)
        return list(zip(values, self.weights, strict=True))

    def as_one(self) -> Weight | None:
        """Return a single weight if the divisors are numbers: in one ratio, for all parts."""
        values = [weight.value for weight in self.weights]
        if not all(isinstance(value, int) for value in values):
            return None
        ratios = tuple(Fraction(value, values[0] or 1) for value in values)
        return Weight(values[0], (*self.form, ratios))

    def unknown(self, where: str) -> SplitLossError:
        """Return the error for a place in which the totals of the weights are unknown."""
        return SplitLossError(
            f"{self.name} is a sum of terms with different divisors, and their totals are unknown "
            f"{where}. {ADVICE}"
        )


def weigh(terms: Terms, state: State) -> Weight | TermWeights:
    """Return the weight of a part from the terms of its loss.

    Raises:
        SplitLossError: A term was changed in place, or a constant is added to sums.
    """
    divisors = [term.divisor for term in terms.terms]
    first = divisors[0]
    if terms.is_sum:
        return Weight(None, terms.form)
    if terms.single and first.value is not None:
        source = first.source
        follows = source is not None and source.by_rows and source.is_of_any_size
        of_batch = first.of_batch if follows else None
        remains, constant = any(one.sum_may_remain for one in divisors), terms.sum_of_constants
        return Weight(first.value, terms.form, of_batch, source, remains, constant, first.factor)
    if all(divisor.value is None for divisor in divisors):
        raise refused(state, "is a sum and a constant, which is not one for each of its parts")
    if not all(term.is_intact for term in terms.terms):
        raise refused(state, "has terms that are changed in place after they were added")
    weights = tuple(_of_term(term, state) for term in terms.terms)
    return TermWeights(terms, weights, name_of(state))


def _of_term(term: Term, state: State) -> Weight:
    divisor, count = term.divisor, state.batch_spec.count
    value, of_batch, origin = divisor.value, divisor.of_batch, divisor.source
    if of_batch is None and isinstance(value, int):  # a multiple of the number of examples
        ratio = Fraction(value, max(count(state.batch), 1))
        return Weight(value, term.form, lambda other: float(ratio * count(other)), ratio)
    return Weight(value, term.form, of_batch, origin, factor=divisor.factor)
