"""Losses of class indices, for targets that an algorithm replaces by class probabilities.

A loss of class indices may divide by class weights or by the number of labels, and skip positions
without a label. Of probabilities it knows neither. `for_probabilities` returns the state with a
loss that does know, so that smoothing or mixing by nothing changes nothing.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional

from composable._support.checks import kind_of
from composable._support.devices import compute_dtype
from composable._support.targets import IGNORE_INDEX, class_probabilities
from composable.batches.spec import BatchSpec
from composable.core.state import State
from composable.functional import MixedTargets
from composable.functional.mixed import broadcast_weight
from composable.losses.confirmation import ByIdentity, select, without_effects
from composable.losses.loss import (
    OutputLoss,
    TargetLoss,
    check_scalar,
    divided_by,
    function_of,
)

Targets = Tensor | MixedTargets

_REGRESSIONS = {
    functional.gaussian_nll_loss: nn.GaussianNLLLoss,
    functional.huber_loss: nn.HuberLoss,
    functional.l1_loss: nn.L1Loss,
    functional.mse_loss: nn.MSELoss,
    functional.poisson_nll_loss: nn.PoissonNLLLoss,
    functional.smooth_l1_loss: nn.SmoothL1Loss,
}


class OncePerLoss:
    """A check that runs once for each loss, since it waits for the device."""

    def __init__(self) -> None:
        """Remember no loss."""
        self._passed, self._pending = ByIdentity(set), ByIdentity(list)

    def __call__(self, state: State, check: Callable[[], None], kind: str = "") -> None:
        """Run a check unless the loss of the state has passed one of its kind, without effects."""
        passed = self._passed.of(state.loss_fn)
        if kind in passed:
            return
        with torch.no_grad(), without_effects(state), state.precision.autocast(state.device):
            check()
        passed.add(kind)

    def read(self, state: State, numbers: Tensor) -> list[Any]:
        """Return the numbers of this batch on the CPU, and of 64 batches at once elsewhere.

        So the host waits for another device once in 64 batches.
        """
        pending = self._pending.of(state.loss_fn)
        pending.append(numbers.detach())
        if numbers.device.type != "cpu" and len(pending) < _AT_ONCE:
            return []
        with torch._C.DisableTorchFunction():  # a loss that reads values may not be split
            values: list[Any] = torch.stack(pending).tolist()
        pending.clear()
        return values


_AT_ONCE = 64
_takes_classes = OncePerLoss()
_takes_probabilities = OncePerLoss()
_is_mean_of_examples = OncePerLoss()


class CrossEntropy(NamedTuple):
    """The options of a cross entropy."""

    weight: Tensor | None = None
    ignore_index: int = IGNORE_INDEX
    reduction: str = "mean"
    label_smoothing: float = 0.0

    @classmethod
    def of(cls, loss_fn: Any) -> "CrossEntropy | None":
        """Return the options of a loss, or None if it is not known to be a cross entropy."""
        function: Any = loss_fn.function if isinstance(loss_fn, TargetLoss) else None
        if isinstance(function, nn.CrossEntropyLoss):
            if type(function).forward is not nn.CrossEntropyLoss.forward:
                return None
            return cls(*[getattr(function, name) for name in cls._fields])
        options: dict[str, Any] = {}
        if isinstance(function, partial) and not function.args:
            function, options = function.func, function.keywords
        if function is not functional.cross_entropy or options.keys() - set(cls._fields):
            return None
        return cls(**options)

    def weights(self, targets: Targets, dtype: torch.dtype) -> Tensor:
        """Return the weight of each position: its label's, or 0 without a label."""
        if isinstance(targets, MixedTargets):
            kept, partner = self.weights(torch.stack(targets[:2]), dtype).unbind()
            return torch.lerp(partner, kept, broadcast_weight(targets.weight, kept))
        indices = targets.long()
        labeled = indices != self.ignore_index
        if self.weight is None:
            return labeled.to(dtype)
        return torch.where(labeled, self.weight[torch.where(labeled, indices, 0)].to(dtype), 0.0)


_UNLABELED = CrossEntropy(ignore_index=-1)
"""The options for indices of which any below 0 is not a label, once they are clamped."""


@attrs.frozen(eq=False)
class ScaledLoss:
    """A loss of class probabilities as a mean over the positions with a label, or as a sum."""

    loss_fn: TargetLoss
    """The loss as a mean over all positions, or as a sum."""
    positions: int
    divisor: Tensor | None
    """The weights of the labels; None for a sum."""
    ignore_index: int
    can_be_split: bool = False
    """Whether the loss of a batch is known to be the weighted mean of its parts' losses."""

    @property
    def base_loss(self) -> TargetLoss:
        """The loss as a mean over all positions."""
        return self.loss_fn

    def __call__(self, outputs: Any, batch: Any) -> Tensor:
        """Compute the loss."""
        loss = self.loss_fn(outputs, batch)
        return loss if self.divisor is None else divided_by(loss, self.positions, self.divisor)

    def per_example(self, outputs: Any, batch: Any) -> Tensor:
        """Compute the terms of the examples, whose mean is the loss."""
        losses = self.loss_fn.per_example(outputs, batch)
        return divided_by(losses, self.positions, self.divisor)


def cross_entropy(
    outputs: Tensor, targets: Tensor, weight: Tensor | None, reduction: str, **options: Any
) -> Tensor:
    """Compute a cross entropy, of whose class probabilities those without a label are all 0."""
    if not targets.is_floating_point():
        return functional.cross_entropy(outputs, targets, weight, reduction=reduction, **options)
    if smoothing := options["label_smoothing"]:  # the sum of a position is kept
        uniform = targets.sum(1, keepdim=True) / outputs.shape[1]
        targets = targets * (1 - smoothing) + uniform * smoothing
    return functional.cross_entropy(outputs, targets, weight, reduction=reduction)


def _scaled(state: State, targets: Targets, options: CrossEntropy | None) -> ScaledLoss:
    """Return the loss of a state, of class probabilities, divided by the weights of labels."""
    loss_fn: Any = state.loss_fn
    if options is not None:
        function = partial(cross_entropy, **options._asdict())
        loss_fn = TargetLoss(function, state.batch_spec)
    known, options = options is not None, options or _UNLABELED
    kept = targets.targets if isinstance(targets, MixedTargets) else targets
    total = options.weights(targets, compute_dtype(state.outputs.dtype)).sum()
    divisor = None if options.reduction == "sum" else total
    return ScaledLoss(loss_fn, kept.numel(), divisor, options.ignore_index, known)


@attrs.frozen
class InterpolatedLoss:
    """A loss for batches whose targets are `MixedTargets`."""

    loss_fn: Any
    spec: BatchSpec

    def __call__(self, outputs: Any, batch: Any) -> Tensor:
        """Interpolate the losses of the two targets."""
        pair: MixedTargets = self.spec.targets(batch)
        if pair.weight.ndim == 0:
            if (count := getattr(self.loss_fn, "count", None)) is not None:
                return self._mean_of_sums(outputs, batch, pair, count)
            return pair.loss(self._of_targets(self.loss_fn, batch), outputs)
        whole = self.loss_fn
        if not hasattr(whole, "divisor"):
            return pair.loss(self._of_targets(whole.per_example, batch), outputs)
        mean = pair.loss(self._of_targets(whole.loss_fn.per_example, batch), outputs)
        return divided_by(mean, whole.positions, whole.divisor)

    @property
    def base_loss(self) -> "InterpolatedLoss | None":
        """The loss, with the losses of the targets as means over all positions."""
        base = getattr(self.loss_fn, "base_loss", None)
        return None if base is None else attrs.evolve(self, loss_fn=base)

    @property
    def can_be_split(self) -> bool:
        """Whether the loss of a batch is known to be the weighted mean of its parts' losses."""
        return getattr(self.loss_fn, "can_be_split", False)

    def _mean_of_sums(
        self, outputs: Any, batch: Any, pair: MixedTargets, count: Callable[[Any], Any]
    ) -> Tensor:
        """Divide the interpolated sums by the interpolated counts.

        In a part of a batch the targets may have fewer labels than their partners. In the whole
        both have the same number, and this is the interpolation of the means.
        """
        loss: Any = 0.0
        total: Any = 0.0
        weighted = (pair.targets, pair.weight), (pair.partner_targets, 1 - pair.weight)
        for targets, weight in weighted:
            part = self.spec.replace(batch, targets=targets)
            share = count(part) * weight
            loss = loss + torch.where(share == 0, 0.0, self.loss_fn(outputs, part) * share)
            total = total + share
        return loss / total  # type: ignore[no-any-return]

    def _of_targets(self, loss_fn: Callable[..., Tensor], batch: Any) -> Callable[..., Tensor]:
        return lambda outputs, targets: loss_fn(outputs, self.spec.replace(batch, targets=targets))


class Layout(NamedTuple):
    """How class indices become probabilities."""

    num_classes: int
    class_dim: int = 1
    ignore_index: int = IGNORE_INDEX


def for_probabilities(state: State, targets: Any, advice: str) -> tuple[Any, Any, Layout]:
    """Return a loss of class probabilities that agrees with the loss of a state for `targets`.

    Args:
        state: The state before the loss.
        targets: The targets of the loss, before an algorithm replaces them by probabilities.
        advice: What to do with a loss for which there is none.

    Returns:
        The loss; the targets, of which those below 0 are clamped to the
        `ignore_index` of the layout if the loss is not a known one; and the layout of the
        probabilities.

    Raises:
        TypeError: The outputs are not one tensor of logits.
        ValueError: The loss is not a known one and differs for one-hot probabilities, or the shapes
            of outputs and targets don't belong together.
    """
    loss_fn: Any = state.loss_fn
    if isinstance(loss_fn, InterpolatedLoss):
        inner = state.evolve(loss_fn=loss_fn.loss_fn)
        found, targets, layout = for_probabilities(inner, targets, advice)
        return attrs.evolve(loss_fn, loss_fn=found), targets, layout
    kept = targets.targets if isinstance(targets, MixedTargets) else targets
    classes, dim = layout_of(state.outputs, kept)
    if isinstance(loss_fn, ScaledLoss):
        return loss_fn, targets, Layout(classes, dim, loss_fn.ignore_index)
    if kept.is_floating_point():
        return loss_fn, targets, Layout(classes, dim)
    options = CrossEntropy.of(loss_fn)
    if options is None:
        _compare_once(state, kept, advice)
        targets = _clamped(targets)
        layout = Layout(classes, dim, _UNLABELED.ignore_index)
        return _scaled(state, targets, None), targets, layout
    if dim != 1:
        raise ValueError(
            f"outputs of shape {tuple(state.outputs.shape)} must have the classes in dimension 1 "
            "for cross_entropy; use outputs.transpose(1, -1)."
        )
    layout = Layout(classes, dim, options.ignore_index)
    return _scaled(state, targets, options), targets, layout


def _clamped(targets: Any) -> Any:
    if isinstance(targets, MixedTargets):
        kept, partner, weight = targets
        return MixedTargets(_clamped(kept), _clamped(partner), weight)
    return targets.long().clamp(min=_UNLABELED.ignore_index)


def per_example(state: State, targets: MixedTargets) -> State:
    """Return the state with a loss whose mean over its `per_example` is the loss.

    Raises:
        ValueError: The loss is not a known one, and differs from that mean.
    """
    kept, loss_fn = targets.targets, state.loss_fn
    options = CrossEntropy.of(loss_fn)
    if options is not None and not kept.is_floating_point():
        return state.evolve(loss_fn=_scaled(state, targets, options))
    if isinstance(loss_fn, ScaledLoss) or (options is not None and options.reduction == "mean"):
        return state

    def agree(state: State, labels: Tensor) -> None:
        batch = state.batch_spec.replace(state.batch, targets=labels)
        whole = check_scalar(loss_fn(state.outputs, batch))  # type: ignore[misc]
        mean = loss_fn.per_example(state.outputs, batch).mean()  # type: ignore[union-attr]
        if whole.isfinite() and not _close(whole, mean):
            raise ValueError(
                f"loss_fn gives {whole:.6g} for a batch, and its examples give {mean:.6g} on "
                "average, so their losses can't be weighted one by one; pass "
                "nn.CrossEntropyLoss(...) itself for its options, or mix with per_sample=False."
            )

    classes = 0
    if not kept.is_floating_point():
        with suppress(TypeError, ValueError):  # a regression has no classes
            classes, _ = layout_of(state.outputs, kept)
    _compare(_is_mean_of_examples, state, kept, classes, agree)
    return state


def layout_of(outputs: Any, targets: Tensor) -> tuple[int, int]:
    """Return the number of classes of the logits, and their dimension: 1, or -1 for the last.

    Raises:
        TypeError: The outputs are not one tensor of logits.
        ValueError: The shapes of outputs and targets don't belong together.
    """
    if not isinstance(outputs, Tensor) or outputs.ndim < 2:
        raise TypeError(
            "outputs must be logits of shape [batch, classes, ...], to get the number of classes, "
            f"not {_shown(outputs)}; return logits from the model, or use interpolate_loss=True "
            "if the algorithm has it."
        )
    shape = outputs.shape
    if targets.is_floating_point():
        dim = 1 if targets.ndim == outputs.ndim else 0
    else:
        layouts = {shape[:-1]: -1, (shape[0], *shape[2:]): 1}
        dim = layouts.get(targets.shape, 0)
    if dim:
        return shape[dim], dim
    raise ValueError(
        f"outputs of shape {tuple(shape)} must be logits [batch, classes, ...] or "
        f"[batch, ..., classes] for targets of {targets.dtype} and shape {tuple(targets.shape)}; "
        "pass class indices [batch, ...], or class probabilities of the shape of the outputs."
    )


def refuse_regression(state: State, targets: Tensor, name: str) -> None:
    """Raise a ValueError unless the targets are classes, of a loss of outputs and targets.

    The values of floating-point targets are read once for each loss.
    """
    loss_fn: Any = state.loss_fn
    if isinstance(loss_fn, OutputLoss):
        raise TypeError(loss_fn.needs_logits(name))
    if isinstance(loss_fn, InterpolatedLoss):
        loss_fn = loss_fn.loss_fn
    function: Any = function_of(loss_fn) if isinstance(loss_fn, TargetLoss) else None
    known = any(function is known for known in _REGRESSIONS)
    if known or isinstance(function, tuple(_REGRESSIONS.values())):
        shown = getattr(function, "__name__", type(function).__name__)
        raise ValueError(
            f"{name} needs a loss of classes, and loss_fn={shown} is one of numbers; train without "
            f"{name}."
        )
    if not targets.is_floating_point() or isinstance(loss_fn, ScaledLoss):
        return

    total = targets.detach().sum(min(1, targets.ndim - 1)).float()
    off = torch.where(total == 0, 0.0, (total - 1).abs()).max()  # a position may have no label
    numbers = torch.stack((targets.detach().float().min(), off, total.min(), total.max()))
    for lowest, most, least, greatest in _takes_classes.read(
        state.evolve(loss_fn=loss_fn), numbers
    ):
        if lowest < 0 or not most <= 0.02:
            raise ValueError(
                f"{name} needs class indices, or class probabilities that sum to 1 over dimension "
                f"1, and targets are numbers of shape {tuple(targets.shape)} with sums from "
                f"{least:.3g} to {greatest:.3g}; train without {name}, or smooth such "
                "targets in the data set."
            )


def _compare_once(state: State, kept: Tensor, advice: str) -> None:
    """Compare the loss of indices with the loss of the same classes as probabilities."""
    loss_fn: Any = state.loss_fn
    classes, dim = layout_of(state.outputs, kept)

    def agree(state: State, kept: Tensor) -> None:
        replace = partial(state.batch_spec.replace, state.batch)
        expected = check_scalar(loss_fn(state.outputs, replace(targets=kept)))
        if not expected.isfinite():  # the mean over no labels
            return
        if kept.max() >= classes:
            raise ValueError(
                f"targets of {kept.dtype} are class indices, here up to {kept.max()}, and outputs "
                f"of shape {tuple(state.outputs.shape)} have {classes} classes; if the targets are "
                "numbers, return targets.float() from the dataset."
            )
        kept = _clamped(kept)
        dense = class_probabilities(
            kept, classes, class_dim=dim, ignore_index=_UNLABELED.ignore_index
        ).to(state.outputs.dtype)
        total = _UNLABELED.weights(kept, compute_dtype(state.outputs.dtype)).sum()
        try:
            found = loss_fn(state.outputs, replace(targets=dense))
            found = divided_by(found, kept.numel(), total)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"loss_fn takes class indices, and fails for class probabilities of shape "
                f"{tuple(dense.shape)} ({type(error).__name__}: {error}); {advice}"
            ) from error
        if not _close(expected, found):
            raise ValueError(
                f"loss_fn gives {expected:.6g} for class indices and {found:.6g} for the same "
                f"classes as probabilities, so it would train something else; {advice}"
            )

    _compare(_takes_probabilities, state, kept, classes, agree)


def _compare(
    once: OncePerLoss,
    state: State,
    kept: Tensor,
    classes: int,
    agree: Callable[[State, Tensor], None],
) -> None:
    """Compare a loss for the labels of a batch and of every class, and later without some labels.

    So the labels of the first batch decide nothing about the others.
    """
    given = kept
    if classes and kept.numel() == 1:  # a mean over one label does not show its weight
        batch = select(state, state.batch, [0, 0])
        state = state.evolve_unchecked(batch=batch, outputs=torch.cat([state.outputs] * 2))
        kept = torch.cat((kept, kept))
    count = kept.numel()

    def labels_from(start: int) -> Tensor:
        """Return class 0, with whose weight all others are compared, and some of the others."""
        labels = torch.arange(start - 1, start - 1 + count, device=kept.device) % classes
        labels[0] = 0
        return labels.view(kept.shape).to(kept.dtype)

    def agree_for_every_class() -> None:
        agree(state, kept)
        for start in range(1, classes, count - 1):
            agree(state, labels_from(start))

    once(state, agree_for_every_class)
    lowest = min(once.read(state, given.min()), default=0) if classes else 0
    if lowest < 0:
        at = torch.arange(count, device=kept.device).view(kept.shape)
        some = (at % 2 == 1) & (at <= count // 2)  # so examples keep unequal numbers of labels
        once(
            state,
            lambda: agree(state, torch.where(some, lowest, labels_from(1))),
            "without some labels",
        )


def _close(left: Tensor, right: Tensor) -> bool:
    exact = left.dtype in (torch.float32, torch.float64)
    return torch.allclose(left.float(), right.float(), rtol=1e-3 if exact else 0.03, atol=1e-5)


def _shown(outputs: Any) -> str:
    if isinstance(outputs, Tensor):
        return f"a tensor of shape {tuple(outputs.shape)}"
    return kind_of(outputs)
