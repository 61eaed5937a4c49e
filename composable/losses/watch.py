"""The loss functions that a loss calls, and their divisors: by a mode that sees the calls.

A loss is followed from the calls of loss functions, by the identity of results: through constant
factors, casts, changes of the shape and sums. So it is a sum of terms, each a constant times the
result of a call. What is computed from parameters alone is a constant. What depends on a result in
any other way is not followed, nor is what a loss computes after it has read a value from a tensor:
numbers are then no constants, and the examples of a part may decide what it computes.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fractions import Fraction
from functools import cache, partial
from typing import Any, NamedTuple

import attrs
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

from composable.batches.divisors import LOSS_FUNCTIONS, Divisor, Same, divisor_of, nonzero, sum_of
from composable.batches.source import FOLLOWED, Noted, Source, Sources
from composable.losses.loss import divided_by
from composable.losses.terms import Factor, Term, Terms


class LossWatch(TorchFunctionMode):
    """Sees the loss functions that are called while it is active.

    It keeps the results of the calls, which are tensors without dimensions, their targets, and what
    is computed from the tensors of the batch alone, not the outputs of the model. Where a divisor
    may be 0, nothing is divided if it is: the result is the sum, and the gradient is not NaN.

    Args:
        batch: The batch of the loss.
        has_parameters: Whether the loss may have parameters, which would get the gradient NaN of a
            mean over no label.

    Example:
        >>> from torch.nn.functional import cross_entropy
        >>> from composable.losses.watch import LossWatch
        >>> outputs, targets = torch.zeros(3, 2), torch.tensor([0, 1, -100])
        >>> with LossWatch() as watch:
        ...     loss = 0.5 * cross_entropy(outputs, targets).float()
        >>> [(term.factor, term.divisor.value) for term in watch.terms_of(loss).terms]
        [(0.5, tensor(2))]
    """

    def __init__(self, batch: Any = None, *, has_parameters: bool = False) -> None:
        super().__init__()
        self._has_parameters = has_parameters
        self._has_read = self._forward = False
        self._terms, self._origins, self._of_parameters = Noted(), Noted(), Noted()
        self._sources = Sources(batch)
        if _has_compiler():
            _hide_from_compiler()

    @contextmanager
    def around_forward(self) -> Iterator[None]:
        """Return a context for a forward pass.

        Of the values that it reads before its first loss function, only sums and means matter.
        """
        self._forward = True
        try:
            with self:
                yield
        finally:
            self._forward = False

    def terms_of(self, loss: Any) -> Terms | None:
        """Return the terms of a result, or None if it is not the sum of any."""
        terms: Terms | None = self._terms.of(loss)
        return terms if terms is not None and terms.terms else None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of PyTorch, and record what its result is."""
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if self._has_read:
            return func(*args, **kwargs)
        follow = _FOLLOWED.get(name)
        if (
            not self._forward
            and (how := self._how((args, kwargs)))
            and _has_tensors([*args, *kwargs.values()])
        ):
            result = self._call_of_parameters(func, name, args, kwargs, (name, how))
        elif follow is not None:
            result = self._call_followed(follow, func, name, args, kwargs)
        elif func in LOSS_FUNCTIONS:
            self._forward = False
            result = self._call_loss(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if name in FOLLOWED:
            self._sources.follow(func, name, args, kwargs, result)
        if name in _TELLING and _tells(name, result, in_forward=self._forward):
            self._has_read = self._may_decide(args)
        return result

    def _call_of_parameters(self, func: Any, name: str, args: Any, kwargs: Any, how: Any) -> Any:
        """Call a function of parameters alone."""
        result = func(*args, **kwargs)
        found = [*result] if name == "__iter__" or isinstance(result, (tuple, list)) else [result]
        for i, one in enumerate(found):
            if isinstance(one, Tensor):
                self._of_parameters.note(one, (how, i))
        return iter(found) if name == "__iter__" else result

    def _how(self, value: Any) -> Any:
        """Return how a value is computed from parameters and constants alone, or None."""
        if isinstance(value, Tensor):
            return self._of_parameters.of(value) or (
                Same(value) if isinstance(value, nn.Parameter) else None
            )
        if isinstance(value, dict):
            value = [*value.items()]
        if not isinstance(value, (tuple, list)):
            return repr(value)
        found = []
        for one in value:
            found.append(self._how(one))
            if found[-1] is None:
                return None
        return tuple(found)

    def _may_decide(self, args: tuple[Any, ...]) -> bool:
        """Return whether what is read may decide what the loss computes next."""
        if self._forward:
            return bool(args) and self._terms.of(args[0]) is not None
        return not _is_called_by_torch()

    def _call_loss(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a loss function."""
        divisor = divisor_of(func, args, kwargs, self._sources)
        if divisor is None:
            return func(*args, **kwargs)
        if divisor.may_be_zero:
            total = sum_of(func, args, kwargs)
            result = (total / divisor.factor).to(total.dtype)
        else:
            result = func(*args, **kwargs)
            if self._has_parameters and isinstance(divisor.value, Tensor):
                result = torch.where(divisor.value == 0, 0.0, result)
        self._terms.note(result, Terms((Term(result, divisor),)))
        return result

    def _call_followed(
        self, follow: "Follow", func: Any, name: str, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Call a function of results of loss functions."""
        if name in _BINARY and (kwargs or len(args) != 2):
            return func(*args, **kwargs)
        before = [self._terms.of(argument) for argument in args]
        origins = [one if (of := self._origins.of(one)) is None else of for one in args]
        if args and before[0] is not None and name.endswith("_") and not name.startswith("_"):
            before[0] = before[0].before_change(args[0])
        if follow is _divided and _is_mean(*before):
            args = args[0], nonzero(args[1])
        if func is divided_by and args[2] is not None:
            result = divided_by(args[0], args[1], nonzero(args[2]))
        else:
            result = func(*args, **kwargs)
        if not isinstance(result, Tensor) or result.numel() != 1:
            return result
        constants = [self._how(one) if isinstance(one, Tensor) else None for one in args]
        terms = follow(LossCall(result, origins, kwargs, before, self._sources, constants))
        if terms is not None:
            self._terms.note(result, terms)
        elif follow is _unchanged and result.ndim == 0 and args and result is not args[0]:
            self._origins.note(result, origins[0])  # the tensor of which it is a cast
        return result


@cache
def _hide_from_compiler() -> None:
    """Let compiled functions, in a watch, call what it sees without compiling the watch itself."""
    watch: Any = LossWatch
    watch.__torch_function__ = torch.compiler.disable(watch.__torch_function__)  # type: ignore[no-untyped-call]


def eagerly() -> AbstractContextManager[Any]:
    """Return a context in which compiled functions run without their graphs."""
    return torch.compiler.set_stance("force_eager") if _has_compiler() else nullcontext()


def _has_compiler() -> bool:
    """Return whether the compiler has been imported, which takes seconds."""
    return "torch._dynamo" in sys.modules


def mean_like(mean: Tensor, loss: Tensor) -> Tensor:
    """Return a mean, and let a `LossWatch` know that it is divided by what a loss is divided by.

    Args:
        mean: A mean over the positions of the loss, with the same weights.
        loss: The loss.
    """
    if has_torch_function((loss,)):
        return handle_torch_function(mean_like, (loss,), mean, loss)
    return mean


# --- what ends the following ---

_READS = frozenset(
    (
        *("item", "tolist", "numpy", "__array__", "__contains__", "equal", "allclose"),
        *("__bool__", "__int__", "__float__", "__complex__", "__index__", "is_nonzero"),
        *("unique", "unique_consecutive"),
    )
)
"""Functions whose results are values, or depend on them in their number."""
_COMPARISONS = frozenset(("gt", "ge", "lt", "le"))
"""Functions whose results are read in a forward pass, as by max(1, count)."""
_SIZES = frozenset(("__len__", "size", "numel", "__get__"))
"""Functions that read a shape, among others: a 0 shows that it follows from values."""
_TELLING = _READS | _COMPARISONS | _SIZES


def _tells(name: str, result: Any, *, in_forward: bool) -> bool:
    """Return whether the result of a function tells a value."""
    if name in _COMPARISONS:
        return in_forward
    if name not in _SIZES:
        return True
    if isinstance(result, tuple):
        return 0 in result
    return name != "__get__" and type(result) is int and result == 0


def _is_called_by_torch() -> bool:
    """Return whether a module of PyTorch reads a value, which decides nothing by it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(_IN_BETWEEN):
        frame = frame.f_back
    return bool(frame.f_globals["__name__"].startswith("torch.nn.modules."))


_IN_BETWEEN = (__name__, "torch._dynamo", "torch._tensor", "torch.overrides")

# --- what is followed ---


class LossCall(NamedTuple):
    """A call of a function of PyTorch."""

    result: Tensor
    args: list[Any]
    kwargs: Mapping[str, Any]
    before: list[Terms | None]
    """The terms of the arguments."""
    sources: Sources
    constants: list[Any]
    """How the arguments are computed from parameters alone, or None."""


Follow = Callable[[LossCall], Terms | None]


def _unchanged(call: LossCall) -> Terms | None:
    return call.before[0] if call.before else None


def _reduced(call: LossCall, name: str) -> Terms | None:
    """Follow a sum or a mean over all elements, whose number is the divisor."""
    reduced = call.args[0] if call.args else None
    if not isinstance(reduced, Tensor):
        return None
    if call.before[0] is not None:
        return call.before[0]
    if reduced.ndim == 0 or call.result.ndim:
        return None
    value = reduced.numel() if name == "mean" else None
    # A sum of these may be a divisor.
    counted = None if reduced.requires_grad else reduced
    source = call.sources.of(reduced)
    return Terms((Term(call.result, Divisor(value, (name,), counted, source=source)),))


def _negated(call: LossCall) -> Terms | None:
    return _scaled(call.before[0], -1.0, call) if call.before else None


def _multiplied(call: LossCall) -> Terms | None:
    (left, right), (first, second) = call.before, call.args
    if left is not None:
        return _scaled(left, second, call, call.constants[1]) if right is None else None
    return _scaled(right, first, call, call.constants[0])


def _divided(call: LossCall) -> Terms | None:
    above, below = call.before
    if above is not None and below is not None and _is_mean(above, below):
        count: Term = below.terms[0]
        of_targets = count.divisor.targets, Tensor.sum, count.divisor.source
        options = "mean", *above.form
        divisor = Divisor(count.result, options, *of_targets, sum_may_remain=True)
        return Terms((Term(call.result, divisor),))
    number, how = _number(call.args[1]), call.constants[1]
    if how is not None:
        return _scaled(above, 1 / call.args[1], call, ("1 /", how))
    return _scaled(above, 1 / number, call) if number else None


def _is_mean(above: Terms | None, below: Terms | None) -> bool:
    """Return whether a quotient divides a sum by a count."""
    if above is None or below is None or not (above.is_sum and below.is_sum):
        return False
    if len(above.terms) != 1 or len(below.terms) != 1:
        return False
    count = below.terms[0]
    return not count.tensors and count.factor == 1 and not count.result.requires_grad


def _added(call: LossCall, first: float = 1.0, second: float = 1.0) -> Terms | None:
    both: list[Terms] = []
    for arg, known, how, factor in zip(
        call.args, call.before, call.constants, (first, second), strict=True
    ):
        if known is None and how is not None and not arg.ndim:
            known = Terms((), 0.0, (Term(arg, Divisor(None, (how,))),))
        elif known is None and (number := _number(arg)) is not None:
            known = Terms((), number)
        if known is None:
            return None
        both.append(_scaled(known, factor, call))  # type: ignore[arg-type]
    left, right = both
    of_parameters = (*left.of_parameters, *right.of_parameters)
    return Terms((*left.terms, *right.terms), left.constant + right.constant, of_parameters)


def _interpolated(call: LossCall) -> Terms | None:
    """Follow `start * (1 - weight) + end * weight`."""
    if call.kwargs or len(call.args) != 3:
        return None
    (start, end, _), weight = call.before, call.args[2]
    if start is None or end is None or start.of_parameters or end.of_parameters:
        return None
    kept = start.constant if start.constant == end.constant else 0.0
    start, end = (attrs.evolve(terms, constant=terms.constant - kept) for terms in (start, end))
    start, end = _scaled(start, weight, call, from_one=True), _scaled(end, weight, call)
    if start is None or end is None:
        return None
    return Terms((*start.terms, *end.terms), start.constant + end.constant + kept)


def _divided_again(call: LossCall) -> Terms | None:
    terms, count, total = call.before[0], call.args[1], call.args[2]
    if terms is None or terms.has_constants:
        return None
    values = {term.divisor.value for term in terms.terms}
    if len(values) != 1 or not isinstance(value := values.pop(), int):
        return None
    form = "mean", Fraction(count, value or 1), *terms.form
    return Terms((Term(call.result, Divisor(total, form, sum_may_remain=total is not None)),))


def _alike(call: LossCall) -> Terms | None:
    terms = call.before[1]
    if terms is None or not terms.terms or not terms.single:
        return None
    return Terms((Term(call.result, terms.terms[0].divisor),))


def _constant(call: LossCall) -> Terms | None:
    """Follow a new tensor of zeros, to which losses are added."""
    return None if call.result.requires_grad else Terms()


def _scaled(
    terms: Terms | None, factor: Any, call: LossCall, how: Any = None, *, from_one: bool = False
) -> Terms | None:
    """Return terms times a factor or 1 minus it, given how parameters determine it, if they do."""
    if terms is None:
        return None
    number = _number(factor)
    if number is not None:
        number = 1 - number if from_one else number
        constant = terms.constant * number
        return terms.map(lambda one: attrs.evolve(one, factor=one.factor * number), constant)
    if not isinstance(factor, Tensor) or factor.ndim or terms.constant:
        return None
    if how is None and terms.of_parameters:
        return None
    source = how or call.sources.of(factor)
    if isinstance(source, Source) and (source.steps or source.reshaped):  # of some examples
        source = None
    by = Factor(factor, from_one, source)
    return terms.map(lambda one: attrs.evolve(one, tensors=(*one.tensors, by)))


def _has_tensors(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_tensors, value))
    return isinstance(value, Tensor)


def _number(value: Any) -> float | None:
    """Return a number; None for a tensor, whose value may depend on the batch."""
    return float(value) if isinstance(value, (int, float)) else None


_UNCHANGED = (
    *("to", "float", "double", "half", "bfloat16", "type", "type_as", "cpu", "cuda"),
    *("squeeze", "reshape", "view", "flatten", "contiguous", "clone"),
)
_BINARY: dict[str, Follow] = {
    **dict.fromkeys(("mul", "mul_", "multiply", "multiply_"), _multiplied),
    **dict.fromkeys(("div", "div_", "divide", "true_divide"), _divided),
    **dict.fromkeys(("add", "add_"), _added),
    **dict.fromkeys(("sub", "sub_", "subtract"), partial(_added, second=-1.0)),
    **dict.fromkeys(("rsub", "__rsub__"), partial(_added, first=-1.0)),
}
"""Functions of two arguments, which are followed without options."""
_FOLLOWED: dict[str, Follow] = {
    **dict.fromkeys(_UNCHANGED, _unchanged),
    **{name: partial(_reduced, name=name) for name in ("mean", "sum")},
    **dict.fromkeys(("neg", "negative", "neg_"), _negated),
    **_BINARY,
    **dict.fromkeys(("lerp", "lerp_"), _interpolated),
    "divided_by": _divided_again,
    "mean_like": _alike,
    **dict.fromkeys(("zeros", "new_zeros", "zeros_like"), _constant),
}
