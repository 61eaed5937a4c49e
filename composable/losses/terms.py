"""A loss as a sum of terms, each a constant times the result of a loss function."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import attrs
from torch import Tensor

from composable.batches.divisors import Divisor, Same


@attrs.frozen(eq=False)
class Factor:
    """A tensor without dimensions that multiplies a result."""

    tensor: Tensor
    from_one: bool = False
    """Whether the factor is 1 minus the tensor."""
    source: Any = None
    """Where the tensor comes from, if it is a part of the batch or computed from parameters."""

    @property
    def form(self) -> tuple[Any, ...]:
        """What the factors of all parts of a batch have in common."""
        return self.from_one, Same(self.tensor) if self.source is None else self.source

    @property
    def value(self) -> Tensor:
        """The factor."""
        return 1 - self.tensor if self.from_one else self.tensor


@attrs.frozen(eq=False)
class Term:
    """A constant times the result of a loss function."""

    result: Tensor
    divisor: Divisor
    factor: float = 1.0
    tensors: tuple[Factor, ...] = ()
    version: int = attrs.Factory(lambda self: self.result._version, takes_self=True)

    def before_change(self) -> "Term":
        """Return this term with a copy of its result, which is about to be changed in place."""
        copied = self.result.clone()
        return attrs.evolve(self, result=copied, version=copied._version)

    @property
    def form(self) -> tuple[Any, ...]:
        """What the terms of the losses of all parts of a batch have in common."""
        tensors = tuple([tensor.form for tensor in self.tensors])
        return (*self.divisor.options, repr(self.factor), tensors)  # NaN equals nothing

    @property
    def is_intact(self) -> bool:
        """Whether the result is as the loss function has returned it."""
        return self.result._version == self.version

    @property
    def value(self) -> Tensor:
        """The term, computed again."""
        value = self.result * self.factor
        for factor in self.tensors:
            value = value * factor.value
        return value


@attrs.frozen(eq=False)
class Terms:
    """A loss as a sum of terms and a constant."""

    terms: tuple[Term, ...] = ()
    constant: float = 0.0
    of_parameters: tuple[Term, ...] = ()
    """Terms that are computed from parameters alone: constants, too."""

    @property
    def has_constants(self) -> bool:
        """Whether anything is added that is the same for all parts of a batch."""
        return bool(self.constant or self.of_parameters)

    @property
    def sum_of_constants(self) -> Any:
        """The constants: a number, or a tensor if any is computed from parameters."""
        return sum((term.value for term in self.of_parameters), self.constant)

    def map(self, function: Callable[[Term], Term], constant: float = 0.0) -> "Terms":
        """Return these terms, each changed by a function, with another constant."""
        both = self.terms, self.of_parameters
        terms, of_parameters = (tuple([function(term) for term in some]) for some in both)
        return Terms(terms, constant, of_parameters)

    @property
    def is_sum(self) -> bool:
        """Whether the loss of a batch is the sum of its parts' losses."""
        return not self.has_constants and all(term.divisor.value is None for term in self.terms)

    @cached_property
    def form(self) -> tuple[Any, ...]:
        """What the losses of all parts of a batch have in common."""
        of_parameters = tuple([term.form for term in self.of_parameters])
        return (repr(self.constant), of_parameters, *[term.form for term in self.terms])

    @property
    def single(self) -> bool:
        """Whether all terms have the same divisor, without reading a value from the device."""
        first = self.terms[0].divisor
        return all(_same(first, term.divisor) for term in self.terms[1:])

    def before_change(self, tensor: Tensor) -> "Terms":
        """Return these terms for a tensor that is about to be changed in place."""
        return self.map(lambda t: t.before_change() if t.result is tensor else t, self.constant)


def _same(one: Divisor, other: Divisor) -> bool:
    """Return whether two divisors are the same for every part of a batch."""
    if one.value is other.value:
        return True
    if isinstance(one.value, Tensor) and isinstance(other.value, Tensor):
        same = one.source is not None and one.source == other.source
        same = same or _is_view_of_all(one.targets, other.targets)
        return same and one.options == other.options
    return isinstance(one.value, int) and bool(one.value == other.value)


def _is_view_of_all(one: Tensor | None, other: Tensor | None) -> bool:
    """Return whether two tensors have the same elements in memory, in the same order."""
    if one is None or other is None:
        return False
    return one is other or (
        one.dtype == other.dtype
        and one.numel() == other.numel()
        and one.data_ptr() == other.data_ptr()
        and one.is_contiguous()
        and other.is_contiguous()
    )
