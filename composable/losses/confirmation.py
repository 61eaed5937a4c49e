"""Confirm that a loss can be split: the loss of a batch follows from its two halves' losses.

The calls of a loss function don't show that their arguments are of one example each: a contrastive
loss calls a cross entropy, too. So a loss is compared once with the losses of two halves of the
same outputs.
"""

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import attrs
import torch
from torch import Tensor

from composable._support.devices import compute_dtype
from composable._support.generators import default_generator, preserving_generators
from composable._support.tree import map_tensors, tensors_of
from composable.batches.batch import select_examples
from composable.batches.divisors import Divisor
from composable.batches.layouts import is_list
from composable.batches.source import Source
from composable.core.state import State
from composable.losses.loss import ModelLoss, TargetLoss, check_scalar, function_of
from composable.losses.part_weights import ADVICE, SplitLossError, refused
from composable.losses.terms import Term, Terms
from composable.losses.watch import LossWatch, eagerly

T = TypeVar("T")
Change: TypeAlias = Callable[..., Tensor]
LossOf: TypeAlias = Callable[[State, Any], Any]
Seen: TypeAlias = tuple[Tensor, Terms | None]

UNKNOWN = (
    "is split, and it is unknown what it is a mean over: it reads a value from a tensor, by "
    ".item(), max(1, count), an if or an assert, or is not a sum of results of PyTorch's loss "
    "functions times constants"
)


class ByIdentity:
    """What is kept of functions, which may be equal and need not be hashable, while they live."""

    def __init__(self, new: Callable[[], Any]) -> None:
        self._new, self._held = new, {}  # type: ignore[var-annotated]

    def of(self, function: Any, *more: Any) -> Any:
        """Return what is kept of a function, and of more that is hashable."""
        key = id(function), *more
        if key not in self._held:
            try:
                held = weakref.ref(function, lambda _: self._held.pop(key, None))
            except TypeError:  # so that no other one gets its number
                held = function
            self._held[key] = held, self._new()
        return self._held[key][1]


class Confirmed:
    """The forms of losses that were confirmed, for each loss function in each mode.

    Functions are told apart by identity: another one may make the same calls with arguments that
    depend on the whole batch.
    """

    def __init__(self) -> None:
        self._forms = ByIdentity(dict)
        self._last: tuple[Any, ...] = (None,)

    def holds(self, state: State, terms: Terms) -> bool:
        """Return whether the last loss to be confirmed was this one, in this epoch."""
        loss_fn, *last = self._last
        now = [state.model.training, state.timestamp.epoch, terms.form]
        return loss_fn is state.loss_fn and last == now

    def confirm(
        self, state: State, outputs: Any, loss_of: LossOf, terms: Terms, parts: int = 1
    ) -> None:
        """Confirm a loss unless one with this form was, and check it again once an epoch.

        Args:
            state: The state with a part of a batch.
            outputs: The outputs for this part.
            loss_of: Computes the loss of a state and outputs.
            terms: The terms of the loss of the part.
            parts: The number of parts of the batch, about.

        Raises:
            SplitLossError: It can't be split.
        """
        forms, form, epoch = self._of(state), terms.form, state.timestamp.epoch
        if forms.get(form) != epoch:
            compared = _base_of(_Comparison(state, outputs, loss_of, terms))
            if compared is not None and not _confirm(compared, parts, again=form in forms):
                return
            forms[form] = epoch
        self._last = state.loss_fn, state.model.training, epoch, form

    def knows(self, state: State) -> bool:
        """Return whether a form of the loss function of a state was confirmed."""
        return bool(self._of(state))

    def _of(self, state: State) -> dict[tuple[Any, ...], int]:
        """Return the forms of the loss function of a state, and the epoch of the last check."""
        own = isinstance(state.loss_fn, ModelLoss)
        function = type(state.model) if own else function_of(innermost(state.loss_fn))
        return self._forms.of(function, state.model.training)  # type: ignore[no-any-return]


def innermost(loss_fn: Any) -> Any:
    """Return the loss function on which an algorithm's is based."""
    while not isinstance(loss_fn, TargetLoss) and hasattr(loss_fn, "loss_fn"):
        loss_fn = loss_fn.loss_fn
    return loss_fn


def has_divisor(loss_fn: Any) -> bool:
    """Return whether a loss has the divisor of its part, and is 0 where that is 0."""
    return hasattr(loss_fn, "divisor") or hasattr(getattr(loss_fn, "loss_fn", None), "divisor")


def terms_of(state: State, outputs: Any, loss_of: LossOf) -> Seen:
    """Compute a loss, without a graph, and its terms."""
    with torch.no_grad(), eagerly(), LossWatch(state.batch) as watch:
        loss = loss_of(state, outputs)
    return check_scalar(loss), watch.terms_of(loss)


@attrs.frozen(eq=False)
class _Comparison:
    """What is compared: the loss of outputs for a batch, or for some of its examples."""

    state: State
    outputs: Any
    loss_of: LossOf
    terms: Terms

    @property
    def count(self) -> int:
        """The number of examples."""
        return self.state.batch_spec.count(self.state.batch)

    def rows(self, indices: list[int]) -> "_Comparison":
        """Return this comparison for some examples, which may be repeated."""
        batch = select(self.state, self.state.batch, indices)
        outputs = _select_rows(self.state, self.outputs, indices, self.count)
        return attrs.evolve(self, state=self.state.evolve_unchecked(batch=batch), outputs=outputs)

    def repeated(self, times: int) -> "_Comparison":
        """Return this comparison for all examples, several times."""
        return self.rows([*range(self.count)] * times)

    def changed(self, change: Change | None) -> "_Comparison":
        """Return this comparison for other outputs."""
        if change is None:
            return self
        outputs = map_tensors(partial(change, rows=self.count), self.outputs)
        return attrs.evolve(self, outputs=outputs)

    def seen(self) -> Seen:
        """Compute the loss and its terms."""
        return terms_of(self.state, self.outputs, self.loss_of)

    def agrees(self, change: Change | None, number: int = 2) -> bool:
        """Compare the loss of outputs, after a change, with the losses of some slices."""
        of_all = self.changed(change)
        whole, *parts = (of_all.rows(rows).seen() for rows in slices(self.state, number))
        exact = self.loss_of is _compute_loss
        return compare_parts(self.state, whole, parts, self.terms, exact=exact)

    def agrees_joined(self) -> bool:
        """Compare the loss of two outputs for one batch, which can't be divided, with both losses.

        Such are flat targets of sequences of different lengths.
        """
        changed = self.changed(_mixed)
        pairs = zip(tensors_of(self.outputs), tensors_of(changed.outputs), strict=True)
        both = (torch.cat(pair) if pair[0].ndim else pair[0] for pair in pairs)
        batch = map_tensors(
            lambda one: torch.cat((one, one)) if one.ndim else one, self.state.batch
        )
        outputs = map_tensors(lambda _: next(both), self.outputs)
        whole = terms_of(self.state.evolve_unchecked(batch=batch), outputs, self.loss_of)
        return compare_parts(self.state, whole, [self.seen(), changed.seen()], self.terms)


def slices(state: State, number: int = 2) -> list[list[int]]:
    """Return the rows of a batch, and of some slices of it."""
    count = state.batch_spec.count(state.batch)
    ends = [count * i // number for i in range(number + 1)]
    return [[*range(*pair)] for pair in ((0, count), *pairwise(ends))]


def _base_of(compared: _Comparison) -> _Comparison | None:
    """Return the comparison of the loss on which a loss of an algorithm is based, or None."""
    state, loss_fn = compared.state, compared.state.loss_fn
    if getattr(loss_fn, "can_be_split", False):
        return None
    base = getattr(loss_fn, "base_loss", None)
    if base is None:
        return compared
    compared = attrs.evolve(compared, state=state.evolve_unchecked(loss_fn=base))
    terms = compared.seen()[1]
    if terms is None:
        raise refused(state, UNKNOWN)
    return attrs.evolve(compared, terms=terms)


def _confirm(compared: _Comparison, parts: int, *, again: bool) -> bool:
    """Confirm that a loss function is the weighted mean of its values for two halves of a batch.

    Return False if this can't be seen, since there is no weight in the batch. The outputs are
    changed a little, by numbers that differ between examples, since outputs that are all alike, as
    from a last layer of zeros, show nothing. In a reduced precision, the loss is computed without
    rounding first, if it can be. When it is checked again, the outputs are as they are.
    """
    state = compared.state
    failure: Exception | None = None
    undecided = False
    exactly = attrs.evolve(compared, loss_of=_compute_loss), partial(_mixed, exact=True)
    for one, change in (exactly, (compared, _mixed), (compared, None))[2 * again :]:
        try:
            with without_effects(state), torch.no_grad(), refusing_effects(state):
                if (one.count > 1 and one.agrees(change)) or one.repeated(2).agrees(change):
                    if not again:
                        _confirm_repeated(one, change or _mixed, parts)
                    return True
            undecided = True
        except _OtherFormError as error:  # such as class weights of the dtype of the outputs
            failure = error
        except SplitLossError:
            raise
        except Exception as error:  # a loss may raise anything for outputs that are not its own
            failure = error
    if failure is None or undecided or again:
        return False
    if isinstance(failure, SplitLossError):
        raise failure
    with without_effects(state), torch.no_grad():
        joined = if_it_computes(compared.agrees_joined)
    if joined is not None:
        return joined
    kind = type(failure).__name__
    raise refused(
        state,
        f"fails for half of a batch ({kind}: {failure}), so it is unknown what it is a mean over",
    ) from failure


def _confirm_repeated(compared: _Comparison, change: Change, parts: int) -> None:
    """Confirm for the outputs of a part, repeated to the size of the batch, and larger.

    A term of the whole batch may begin with its size, or be 0 for the outputs of the first batch.
    """
    size = sum(tensor.nbytes for tensor in tensors_of(compared.outputs))
    times = max(2, min(parts, _LARGEST // max(size, 1)))
    scaled = partial(_scaled, change=change)
    if_it_computes(lambda: compared.repeated(times).agrees(scaled, times))


def if_it_computes(function: Callable[[], T]) -> T | None:
    """Call a function; return None if a loss fails for outputs that are not its own."""
    try:
        return function()
    except SplitLossError:
        raise
    except Exception:
        return None


_LARGEST = 2**28
"""The most bytes to which outputs are repeated; above, they are repeated once."""


def _scaled(tensor: Tensor, rows: int, change: Change) -> Tensor:
    """Scale the rows of changed outputs up to 30 times, unless they are probabilities."""
    mixed = change(tensor, rows)
    if mixed is tensor or bool(((tensor >= 0) & (tensor <= 1)).all()):
        return mixed
    sizes = torch.linspace(1, 30, rows, dtype=mixed.dtype, device=mixed.device)
    return mixed * sizes.view(-1, *[1] * (mixed.ndim - 1))


def _compute_loss(state: State, outputs: Any) -> Any:
    return state.loss_fn(outputs, state.batch)  # type: ignore[misc]


def compare_declared(
    state: State, outputs: Any, loss_of: LossOf, weight_of: Callable[[Any, Any], Any], batch: Any
) -> bool:
    """Compare a loss with two halves' losses, given declared weights; False if a half has none.

    A loss that can't be computed for halves, draws random numbers or writes to its buffers is not
    compared.

    Raises:
        SplitLossError: It is not their weighted mean.
    """

    def seen(rows: list[int]) -> Seen:
        part = compared.rows(rows)
        loss = check_scalar(loss_of(part.state, part.outputs))
        weight = weight_of(part.outputs, select(state, batch, rows))
        return loss, Terms((Term(loss, Divisor(float(weight), ("declared",))),))

    compared = _Comparison(state, outputs, loss_of, Terms())
    try:
        with without_effects(state), torch.no_grad(), refusing_effects(state):
            whole, *parts = map(seen, slices(state))
    except Exception:  # a loss may raise anything for half of a batch
        return True
    try:
        return compare_parts(state, whole, parts, whole[1])  # type: ignore[arg-type]
    except SplitLossError as error:
        raise SplitLossError(
            f"{str(error).removesuffix(ADVICE)}Return by loss_mean_over or loss_weight what the "
            "loss is divided by, or accept an approximation by loss_mean_over='examples'."
        ) from None


def select(state: State, batch: Any, indices: list[int]) -> Any:
    """Select examples of a batch."""
    return state.batch_spec.select(batch, torch.tensor(indices, device=state.device))


def _select_rows(state: State, outputs: Any, indices: list[int], count: int) -> Any:
    """Select the outputs for some of the examples: rows of tensors, or items of a list."""
    listed = is_list(outputs) and len(outputs) == count
    if listed and state.batch_spec.layout_of(state.batch) != "tensors":
        return type(outputs)(outputs[i] for i in indices)
    devices = [tensor.device for tensor in tensors_of(outputs)]
    rows = torch.tensor(indices, device=devices[0] if devices else None)
    return select_examples(outputs, rows, count)


def _mixed(tensor: Tensor, rows: int, *, exact: bool = False) -> Tensor:
    """Mix outputs with numbers between 0 and 1, so that probabilities stay probabilities."""
    if not tensor.is_floating_point() or not tensor.ndim or tensor.shape[0] != rows:
        return tensor
    dtype = compute_dtype(tensor.dtype) if exact else tensor.dtype
    numbers = torch.arange(tensor.numel(), dtype=torch.float64) * 0.6180339887 % 1
    return tensor.to(dtype) * 0.75 + 0.25 * numbers.view(tensor.shape).to(tensor.device, dtype)


# --- the comparison ---


class _OtherFormError(SplitLossError):
    """A part of a batch has a loss that is computed in another way."""


def compare_parts(
    state: State, whole: Seen, parts: list[Seen], like: Terms, *, exact: bool = False
) -> bool:
    """Compare the loss of a batch with its parts' losses; False if not all of them have weight.

    Args:
        state: The state with the loss.
        whole: The loss of the batch.
        parts: The losses of its parts.
        like: Terms of the same form.
        exact: Whether the losses were computed without autocast.

    Raises:
        SplitLossError: They differ.
    """
    loss, seen = whole[0], [terms for _, terms in (whole, *parts)]
    terms = [one for one in seen if one is not None and one.form == like.form]
    if len(terms) < len(seen):
        raise refused(
            state,
            "is computed in another way for a part of a batch: an option or a factor differs, or "
            "is a new tensor at each call, such as class weights, which have to be created once",
            _OtherFormError,
        )
    if not like.single and any(_counted(term) != _counted(terms[0]) for term in terms):
        raise refused(
            state,
            "takes its targets from a batch by an index or a number that depends on the size of "
            "the batch, such as len(outputs), so that their number in other parts is unknown",
        )
    if not math.isfinite(loss):
        return False
    single = all(term.single for term in terms)
    of_whole, *of_parts = (
        _numbers(one, value, single) for one, (value, _) in zip(terms, (whole, *parts), strict=True)
    )
    products = _products(state, of_whole, of_parts)
    if products is None:
        return False
    if not single:
        products.append(float(like.sum_of_constants))
    expected, size = sum(products), sum(map(abs, products))
    if abs(float(loss) - expected) > _tolerance(state, loss, exact) * max(size, abs(float(loss))):
        values = " and ".join(f"{float(value):.6g}" for value, _ in parts[:2])
        kind = "sum" if like.is_sum else "weighted mean"
        raise refused(
            state,
            f"is {float(loss):.6g} for a batch and {values} for its parts, of which it is not the "
            f"{kind}: it compares the examples of a batch, or divides by another number",
        )
    return True


def _counted(terms: Terms) -> list[Source | None]:
    """Return where the targets come from that are counted in other parts of a batch."""
    divisors = [term.divisor for term in terms.terms]
    return [None if divisor.of_batch is None else divisor.source for divisor in divisors]


Numbers: TypeAlias = list[tuple[float, float | None]]


def _numbers(terms: Terms, loss: Tensor, single: bool) -> Numbers:
    """Return the value and the divisor of each term, or of all in one."""
    divisors = [term.divisor.value for term in terms.terms]
    weights = [None if divisor is None else float(divisor) for divisor in divisors]
    if single:
        return [(float(loss), weights[0])]
    values = [float(term.value.detach()) for term in terms.terms]
    return [*zip(values, weights, strict=True)]


def _products(state: State, whole: Numbers, parts: list[Numbers]) -> list[float] | None:
    """Return what the terms of the parts contribute to the whole; None if one has no weight."""
    products: list[float] = []
    for (_, total), *of_parts in zip(whole, *parts, strict=True):
        weights = [weight for _, weight in of_parts if weight is not None]
        if total is None:
            products += [value for value, _ in of_parts]
            continue
        if not all(weight > 0 for weight in weights):
            return None
        if not math.isclose(sum(weights), total, rel_tol=1e-5):
            shown = " and ".join(f"{weight:.6g}" for weight in weights)
            raise refused(
                state,
                f"is a mean over {total:.6g} terms for a batch and over {shown} for its parts, so "
                "that it does not follow from theirs",
            )
        products += [value * weight / total for value, weight in of_parts]
    return products


def _tolerance(state: State, loss: Tensor, exact: bool) -> float:
    if loss.element_size() == 2 or not (exact or state.precision.name == "fp32"):
        return 1e-2
    return 1e-6 if loss.dtype is torch.float64 else 1e-4


# --- what surrounds a loss ---


@contextmanager
def keeping_buffers(buffers: Iterable[Tensor], *, unless_done: bool = False) -> Iterator[None]:
    """Restore buffers at the end, or only after an error."""
    held = [(buffer, buffer.clone(), buffer._version) for buffer in buffers]
    try:
        yield
        held = [] if unless_done else held
    finally:
        with torch.no_grad():
            for buffer, value, version in held:
                if buffer._version != version:  # a graph may hold those that are as they were
                    buffer.copy_(value)


@contextmanager
def without_effects(state: State) -> Iterator[None]:
    """Restore buffers and random states at the end."""
    buffers = tuple([buffer for module in state.modules.values() for buffer in module.buffers()])
    restored = torch.autograd._unsafe_preserve_version_counter(buffers)  # type: ignore[attr-defined]
    with restored, keeping_buffers(buffers), preserving_generators([state.device]):
        yield


@contextmanager
def refusing_effects(state: State) -> Iterator[None]:
    """Refuse a loss that writes to its buffers, or draws random numbers: one for each part."""
    buffers = [] if state.loss_module is None else list(state.loss_module.buffers())
    generator = default_generator(state.device)
    versions, random = [buffer._version for buffer in buffers], generator.get_state()
    try:
        yield
    finally:  # in place of the error that follows from it
        written = versions != [buffer._version for buffer in buffers]
        if written or not torch.equal(random, generator.get_state()):
            what = "changes its buffers" if written else "draws random numbers"
            raise refused(state, f"{what}, which it would do for each part of a batch")
