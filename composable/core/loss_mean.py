"""What the loss of a batch is a mean over: its weight in an accumulated batch or an evaluation."""

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from composable.core._notes import add_note
from composable.core._warnings import warn_user
from composable.core.batch import count_examples, tensors_of
from composable.core.batch_spec import BatchSpec
from composable.core.evaluation_mode import evaluation_mode
from composable.core.loss import ModelLoss, OutputLoss
from composable.core.model_call import is_transformers_model
from composable.core.precision import Precision
from composable.core.state import State
from composable.functional._checks import check_tensor
from composable.functional.mixed import MixedTargets, broadcast_weight

__all__ = ["LossMeanWarning", "count_loss_tokens"]

_IGNORED = -100
_SHIFTING = ("ForCausalLM", "LMHeadModel")
_INTEGERS = (torch.int64, torch.int32)


class LossMeanWarning(UserWarning):
    """A loss that is probably a mean over something else than `loss_mean_over` counts."""


def count_loss_tokens(targets: Any, ignore_index: int = _IGNORED) -> Tensor:
    """Count the targets other than `ignore_index`, as a tensor on their device."""
    if isinstance(targets, MixedTargets):
        kept, partner = (
            (one != ignore_index).double() for one in (targets.targets, targets.partner_targets)
        )
        return torch.lerp(partner, kept, broadcast_weight(targets.weight, kept)).sum()
    if not isinstance(targets, Tensor):
        raise TypeError(
            "loss_mean_over='tokens' needs targets that are a tensor; got "
            f"{type(targets).__name__}; pass a function of the batch that counts them instead."
        )
    if type(ignore_index) is not int or not -(2**63) <= ignore_index < 2**63:
        raise TypeError(f"ignore_index={ignore_index!r} must be an integer of 64 bits.")
    check_tensor("targets", targets)
    return (targets != ignore_index).sum()


def weigher(mean_over: Any, state: State) -> Callable[[Any], Any]:
    """Build the function that counts the terms over which the loss of a batch is the mean.

    Args:
        mean_over: "examples", "tokens", "next_tokens", "trial" for the first of them that is right
            for two examples of the first batch, or a function of the batch that counts. None for
            the `loss_mean_over` of a model with a loss of its own, "trial" for a model that
            computes the loss in its forward pass, and "examples" otherwise.
        state: The state of the run, whose model may shift its labels.

    Raises:
        ValueError: `mean_over` is another value.

    Warns:
        LossMeanWarning: Examples are counted, and targets hold -100; tokens are counted, and the
            model shifts its labels; or the loss is not a mean.
    """
    spec, model = state.batch_spec, state.model
    if mean_over is None and isinstance(state.loss_fn, (ModelLoss, OutputLoss)):
        own = "trial" if isinstance(state.loss_fn, OutputLoss) else "examples"
        mean_over = getattr(model, "loss_mean_over", own)
    word = mean_over if isinstance(mean_over, str) else ""
    if word == "trial":
        return TrialCounter(state)
    if word == "examples" or mean_over is None:
        return ExampleCounter(spec)
    if word == "tokens":
        _warn_if_shifting(model)
    if word in ("tokens", "next_tokens"):
        return _token_counter(word, spec)
    if callable(mean_over):
        return lambda batch: _as_count(mean_over(batch))
    raise ValueError(
        f"loss_mean_over={mean_over!r} must be 'examples', 'tokens' (targets other than -100), "
        "'next_tokens' (likewise, without the first token of each example), 'trial' (what two "
        "examples of the first batch show), or a function of the batch that counts the terms of "
        "its loss."
    )


@attrs.define(eq=False)
class ExampleCounter:
    """Counts the examples of a batch, and warns if targets of the first batch are ignored.

    It looks at the first batch only, since it has to wait for a device that is not the CPU.
    """

    spec: BatchSpec
    _looking: bool = True

    def __call__(self, batch: Any) -> int:
        """Count the examples."""
        if self._looking:
            self._looking = False
            self._look(batch)
        return self.spec.count(batch)

    def _look(self, batch: Any) -> None:
        try:
            targets = self.spec.targets(batch)
        except ValueError:
            targets = batch
        classes = [t for t in tensors_of(targets) if t.dtype in _INTEGERS]
        if any(bool((tensor == _IGNORED).any()) for tensor in classes):
            warn_user(
                "Targets hold -100, which losses ignore, and loss_mean_over='examples' weights the "
                "loss of a microbatch or of an evaluated batch by its examples; pass "
                "loss_mean_over='tokens' if the loss is a mean over the other targets.",
                LossMeanWarning,
            )


def _token_counter(word: str, spec: BatchSpec) -> Callable[[Any], Tensor]:
    if word == "tokens":
        return lambda batch: count_loss_tokens(spec.targets(batch))
    return lambda batch: count_loss_tokens(_after_first(spec.targets(batch)))


def _after_first(targets: Any) -> Any:
    return targets[:, 1:] if isinstance(targets, Tensor) else targets


def _warn_if_shifting(model: nn.Module) -> None:
    """Warn about a causal language model of Transformers: its own loss shifts the labels."""
    for module in model.modules():
        if type(module).__name__ == "LogitsModel":  # its loss is a function of logits and labels
            return
        if _shifts_by_name(type(module)):
            warn_user(
                f"The loss of {type(module).__name__} shifts the labels and excludes the first "
                "token of an example, but loss_mean_over='tokens' counts that token; pass "
                "'next_tokens' if the loss is that of the model, or a function of the batch if you "
                "compute it.",
                LossMeanWarning,
            )
            return


def _shifts_by_name(kind: type) -> bool:
    """Return whether a class is probably a causal language model of Transformers."""
    return kind.__name__.endswith(_SHIFTING) and is_transformers_model(kind)


def _as_count(count: Any) -> Tensor:
    if isinstance(count, Tensor):
        return count
    if isinstance(count, bool) or not isinstance(count, (int, float)):
        raise TypeError(
            f"loss_mean_over returned {count!r} and must return a number, or a tensor of one "
            "element."
        )
    return torch.tensor(count)


# --- the trial ---


_IN_TRIAL = (
    "raised by loss_mean_over='trial', which evaluates two examples with labels of -100; pass what "
    "the loss is a mean over instead, such as loss_mean_over='examples'."
)


@attrs.define(eq=False)
class TrialCounter:
    """Counts the terms of a loss that are found by a trial.

    The trial takes two examples of the first batch, in evaluation mode: the loss of both must be
    the weighted mean of their losses. A resumed run repeats it.
    """

    _state: State | None
    _count: Callable[[Any], Any] = count_examples

    def __call__(self, batch: Any) -> Any:
        """Count the terms."""
        if self._state is not None:
            try:
                self._count = _decide(self._state.evolve(batch=batch))
            except (IndexError, RuntimeError) as error:
                add_note(error, _IN_TRIAL)
                raise
            self._state = None  # it holds a model, which a surgery may replace
        return self._count(batch)


def _decide(state: State) -> Callable[[Any], Any]:
    """Return the count by which the losses of single examples add up to that of both."""
    whole, parts = _two_examples(state)
    with evaluation_mode(state.model):
        counts = _candidates(state.evolve(batch=whole))
        expected, *losses = (_loss_of(state, batch) for batch in (whole, *parts))
    for count in counts.values():
        mean = _mean(losses, [count(part) for part in parts])
        if _close(expected, mean, state.precision):
            return count
    if _close(expected, torch.stack(losses).sum(), state.precision):
        return _once  # a sum, such as that of connectionist temporal classification
    warn_user(
        f"The loss of {type(state.model).__name__} for two examples, {expected:.6g}, is not a mean "
        f"of their losses, {losses[0]:.6g} and {losses[1]:.6g}, weighted by {' or '.join(counts)}. "
        "So the losses of microbatches or of evaluated batches don't add up to that of all "
        "examples: contrastive and auxiliary losses don't. Train without grad_accum and "
        f"microbatch_size, or accept the weights by loss_mean_over={next(iter(counts))!r}.",
        LossMeanWarning,
    )
    return next(iter(counts.values()))


def _two_examples(state: State) -> tuple[Any, list[Any]]:
    """Return the examples with the fewest and the most labels, together and one by one.

    A batch of one example gives it twice.
    """
    spec, batch = state.batch_spec, state.batch
    count = spec.count(batch)
    indices = torch.tensor([0, count - 1])
    targets = _targets(state)
    if isinstance(targets, Tensor) and targets.ndim and len(targets) == count:
        labels = (targets != _IGNORED).reshape(count, -1).sum(1)
        indices = torch.stack([labels.argmin(), labels.argmax()])
        if indices[0] == indices[1]:
            indices = torch.tensor([0, count - 1])
    both = _with_unequal_counts(state, spec.select(batch, indices.to(state.device)))
    return both, spec.split(both, [1, 1])


def _with_unequal_counts(state: State, both: Any) -> Any:
    """Ignore half of the labels of the first example if both have as many of them.

    Otherwise a mean over tokens would equal one over examples.
    """
    labels = _targets(state.evolve(batch=both))
    if not _can_replace_labels(state, labels):
        return both
    labeled = labels != _IGNORED
    counts = labeled.sum(1)
    if counts[0] != counts[1]:
        return both
    excess = labeled[0].cumsum(0) > counts[0] - counts[0] // 2
    fewer = torch.stack([labels[0].masked_fill(excess, _IGNORED), labels[1]])
    return state.batch_spec.replace(both, targets=fewer)


def _candidates(state: State) -> dict[str, Callable[[Any], Any]]:
    """Return the counts that the loss may be a mean over, the most probable first."""
    spec, targets = state.batch_spec, _targets(state)
    examples: dict[str, Callable[[Any], Any]] = {"examples": spec.count}
    if isinstance(targets, tuple):
        return {"answers": lambda batch: _count_answers(spec, batch), **examples}
    if not isinstance(targets, Tensor) or targets.dtype not in _INTEGERS:
        return examples
    words = ["tokens"]
    if targets.ndim == 2:
        words = (
            ["next_tokens", *words] if _excludes_first(state, targets) else [*words, "next_tokens"]
        )
    return {word: _token_counter(word, spec) for word in words} | examples


def _excludes_first(state: State, labels: Tensor) -> bool:
    """Return whether the label of the first token is not a term of the loss.

    A model that shifts its labels has no terms if there is no other label: their mean is NaN.
    """
    known = labels[labels != _IGNORED]
    if not _can_replace_labels(state, labels) or not len(known):
        return _shifts_by_name(type(state.model))
    alone = torch.full_like(labels, _IGNORED)
    alone[:, 0] = known[0]
    loss = _loss_of(state, state.batch_spec.replace(state.batch, targets=alone))
    return not loss.isfinite() or not loss.any()


def _can_replace_labels(state: State, labels: Any) -> bool:
    """Return whether the labels are those of tokens, and can be replaced in a batch."""
    tokens = isinstance(labels, Tensor) and labels.dtype in _INTEGERS and labels.ndim == 2
    return tokens and not callable(state.batch_spec.target_key)


def _targets(state: State) -> Any:
    try:
        return state.targets
    except ValueError:
        return None


def _loss_of(state: State, batch: Any) -> Tensor:
    """Return the loss of a batch, in the precision of the run."""
    with state.precision.autocast(state.device):
        outputs = state.evolve(batch=state.precision.cast(batch)).forward()
        return state.loss_fn(outputs, batch)  # type: ignore[misc]


def _mean(losses: list[Tensor], counts: list[Any]) -> Tensor:
    weights = torch.stack([torch.as_tensor(count, device=losses[0].device) for count in counts])
    terms = torch.where(weights > 0, torch.stack(losses), 0.0)  # the mean over no tokens is NaN
    return (terms * weights).sum() / weights.sum()


def _close(left: Tensor, right: Tensor, precision: Precision) -> bool:
    exact = left.dtype in (torch.float32, torch.float64) and precision.name == "fp32"
    return torch.allclose(left.double(), right.double(), rtol=1e-3 if exact else 0.02)


def _once(batch: Any) -> int:
    return 1


def _count_answers(spec: BatchSpec, batch: Any) -> Tensor:
    """Count the positions of answers within the sequences; others are ignored."""
    length = spec.inputs(batch).shape[1]
    return torch.stack([(one < length).sum() for one in spec.targets(batch)]).sum()
