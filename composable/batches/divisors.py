"""Divisors: what the mean of each loss function of PyTorch is divided by.

The loss of a part, times its divisor, is a sum. So the losses of the parts of a batch are added,
each multiplied by its divisor, and divided by the sum of the divisors, and the result is the loss
of the batch. The divisor of a function is documented, and differs: a cross entropy of class indices
divides by the sum of their classes' weights, one of class probabilities by the number of rows.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs
import torch
from torch import Tensor
from torch.nn import _reduction
from torch.nn import functional as F

from composable._support.targets import IGNORE_INDEX
from composable.batches.source import Noted, Source

Arguments: TypeAlias = Mapping[str, Any]
_UNKNOWN = Noted()


@attrs.frozen(eq=False)
class Divisor:
    """What a call of a loss function divides a sum by."""

    value: Any
    """A number, or a tensor without dimensions; None for a sum, which is not divided."""
    options: tuple[Any, ...]
    """The function and its options, which the calls for all parts of a batch have in common."""
    targets: Tensor | None = None
    """The targets of the call, or another tensor that determines the divisor."""
    count: Callable[[Tensor], Any] | None = None
    """Computes the divisor from targets like the call's, if they determine it."""
    source: Source | None = None
    """Where the targets come from in the batch, if that is known."""
    sum_may_remain: bool = False
    """Whether the sum may be other than 0 where the divisor is 0."""

    @property
    def may_be_zero(self) -> bool:
        """Whether the divisor may be 0 where the gradient of the call is then NaN."""
        # PyTorch's own count of labels is an exception: ignored rows have the gradient 0.
        counts_labels = isinstance(self.value, Tensor) and self.value.dtype == torch.int64
        return isinstance(self.value, Tensor) and not (counts_labels and callable(self.options[0]))

    @property
    def factor(self) -> Any:
        """The divisor that turns the mean into a sum: 1 for 0, because nothing was divided."""
        return nonzero(self.value) if self.may_be_zero else self.value

    @property
    def of_batch(self) -> Callable[[Any], Any] | None:
        """A function that computes the divisor for another batch, if anything does."""
        count, source = self.count, self.source
        if count is None or source is None:
            return None
        return lambda batch: count(source.of(batch))


class Same:
    """A tensor among the options of a call: equal to itself alone."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.tensor is other.tensor

    def __hash__(self) -> int:
        return id(self.tensor)


def divisor_of(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], sources: Noted = _UNKNOWN
) -> Divisor | None:
    """Return the divisor of a call, or None if the function is unknown, or has not reduced.

    Args:
        function: A function of `torch.nn.functional`.
        args: The arguments of the call.
        kwargs: Its keyword arguments.
        sources: Where its targets come from, if that is known.

    Example:
        >>> from torch.nn.functional import cross_entropy
        >>> from composable.batches.divisors import divisor_of
        >>> outputs, targets = torch.zeros(3, 2), torch.tensor([0, 1, -100])
        >>> divisor_of(cross_entropy, (outputs, targets), {}).value
        tensor(2)
    """
    if function not in _TABLE:
        return None
    rule, defaults = _TABLE[function]
    given = _given(defaults, args, kwargs)
    reduction = given["reduction"]
    if given.get("size_average") is not None or given.get("reduce") is not None:
        reduction = _reduction.legacy_get_string(
            given["size_average"], given["reduce"], emit_warning=False
        )
    if reduction == "none":
        return None
    options = _options(function, given)
    if reduction == "sum":
        return Divisor(None, options)
    targets = given.get("target")
    if reduction == "batchmean":
        return Divisor(given["input"].size(0), options, targets, None, sources.of(targets))
    value, count = rule(given)
    smooths = given.get("weight") is not None and bool(given.get("label_smoothing"))
    return Divisor(value, options, targets, count, sources.of(targets), smooths)


def sum_of(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Call a loss function, and return its sum in place of its mean."""
    given = _given(_TABLE[function][1], args, kwargs)
    legacy = dict.fromkeys(given.keys() & {"size_average", "reduce"})
    return function(**{**given, **legacy, "reduction": "sum"})  # type: ignore[no-any-return]


def nonzero(divisor: Tensor) -> Tensor:
    """Return a divisor, or 1 where it is 0."""
    return torch.where(divisor == 0, 1, divisor)


def class_weight_sum(
    targets: Tensor, weight: Tensor | None = None, ignore_index: int = IGNORE_INDEX
) -> Tensor:
    """Sum the weights of the classes of targets, or count them; without those that are ignored."""
    labeled = targets != ignore_index
    if weight is None:
        return labeled.sum()
    known = torch.where(labeled, targets, 0).long()
    return torch.where(labeled, weight.detach().double()[known], 0.0).sum()


# --- the rules: the divisor of the mean, and how it follows from targets ---

Rule: TypeAlias = Callable[[Arguments], tuple[Any, Callable[[Tensor], Any] | None]]


def _classes(given: Arguments) -> Any:
    """Sum the class weights of class indices; count the rows of class probabilities."""
    targets, weight = given["target"], given["weight"]
    if targets.is_floating_point():
        classes = targets.size(1 if targets.ndim > 1 else 0)

        def count_rows(targets: Tensor) -> int:
            return int(targets.numel()) // int(classes)

        return count_rows(targets), count_rows
    ignored = given["ignore_index"]
    ignored = IGNORE_INDEX if ignored is None else ignored

    def count(targets: Tensor) -> Tensor:
        return class_weight_sum(targets, weight, ignored)

    return count(targets), count


def _elements(given: Arguments) -> Any:
    """Count the elements of the loss: of the inputs and targets, broadcast together."""
    named = [given.get(name) for name in ("input", "input1", "input2", "target", "var")]
    shape = _broadcast(*[one.shape for one in named if isinstance(one, Tensor)])
    same = given["target"].shape == shape
    return shape.numel(), Tensor.numel if same else None


def _broadcast(*shapes: torch.Size) -> torch.Size:
    return torch.Size(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def _weighted_elements(given: Arguments) -> Any:
    """Sum the weights of the elements, or count them."""
    weight = given["weight"]
    if weight is None:
        return _elements(given)
    shape = _broadcast(given["input"].shape, given["target"].shape)
    return weight.detach().double().expand(shape).sum(), None


def _rows(name: str) -> Rule:
    """Count the rows of an argument: its elements without the last dimension."""
    return lambda given: (given[name].shape[:-1].numel(), None)


def _sequences(given: Arguments) -> Any:
    """Count the sequences of a connectionist temporal classification."""
    shape = given["log_probs"].shape
    return shape[1] if len(shape) == 3 else 1, None


_RULES: dict[Any, Rule] = {
    **dict.fromkeys((F.cross_entropy, F.nll_loss), _classes),
    **dict.fromkeys((F.mse_loss, F.l1_loss), _weighted_elements),
    **dict.fromkeys((F.binary_cross_entropy, F.binary_cross_entropy_with_logits), _elements),
    **dict.fromkeys((F.smooth_l1_loss, F.huber_loss, F.kl_div, F.poisson_nll_loss), _elements),
    **dict.fromkeys((F.gaussian_nll_loss, F.soft_margin_loss), _elements),
    **dict.fromkeys((F.hinge_embedding_loss, F.margin_ranking_loss), _elements),
    F.cosine_embedding_loss: lambda given: (given["target"].numel(), Tensor.numel),
    **dict.fromkeys((F.multi_margin_loss, F.multilabel_margin_loss), _rows("input")),
    F.multilabel_soft_margin_loss: _rows("input"),
    **dict.fromkeys((F.triplet_margin_loss, F.triplet_margin_with_distance_loss), _rows("anchor")),
    F.ctc_loss: _sequences,
}
if hasattr(F, "linear_cross_entropy"):  # torch >= 2.13
    _RULES[F.linear_cross_entropy] = _classes


def _defaults(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {one.name: None if one.default is one.empty else one.default for one in parameters}


_TABLE = {function: (rule, _defaults(function)) for function, rule in _RULES.items()}
LOSS_FUNCTIONS = _TABLE.keys()
"""The functions whose divisors are known."""
_DATA = {
    *("input", "input1", "input2", "target", "targets", "anchor", "positive", "negative", "var"),
    *("log_probs", "input_lengths", "target_lengths", "linear_weight", "linear_bias"),
}


def _given(
    defaults: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    return {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}


def _options(function: Any, given: Arguments) -> tuple[Any, ...]:
    """Return the options of a call that hold for every part of a batch.

    A weight of each element belongs to the data. One of each class does not: computed from a batch,
    it would be another in each part.
    """
    data, weight, inputs = _DATA, given.get("weight"), given.get("input")
    if isinstance(weight, Tensor) and isinstance(inputs, Tensor) and weight.ndim == inputs.ndim:
        data = data | {"weight"} if weight.shape[:1] == inputs.shape[:1] else data
    named = [value for name, value in given.items() if name not in data]
    return function, *[Same(one) if isinstance(one, Tensor) else one for one in named]
