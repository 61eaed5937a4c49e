"""What a loss is declared to be a mean over: the weight of each part of a batch."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from composable._support.checks import check_tensor
from composable._support.warn import warn_user
from composable.batches.model_call import shifts_labels
from composable.batches.spec import BatchSpec
from composable.core.state import State
from composable.functional.mixed import MixedTargets, broadcast_weight
from composable.losses.loss import ModelLoss, OutputLoss, TargetLoss

_IGNORED = -100


class LossMeanWarning(UserWarning):
    """A loss that is probably a mean over something else than `loss_mean_over` counts."""


def count_loss_tokens(targets: Any, ignore_index: int = _IGNORED) -> Tensor:
    """Count the targets other than `ignore_index`, as a tensor on their device.

    Class indices below 0 are not labels, whatever value the loss ignores.
    """
    if isinstance(targets, MixedTargets):
        kept, partner = (
            _is_label(tensor, ignore_index).double()
            for tensor in (targets.targets, targets.partner_targets)
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
    return _is_label(targets, ignore_index).sum()


def _is_label(targets: Tensor, ignore_index: int) -> Tensor:
    labeled = targets != ignore_index
    return labeled if targets.is_floating_point() else labeled & (targets >= 0)


@attrs.frozen(eq=False)
class Declared:
    """What `loss_mean_over` declares: a count of the batch, or of the outputs and the batch."""

    by_batch: Callable[[Any], Any] | None = None
    by_outputs: Callable[[Any, Any], Any] | None = None
    by_name: bool = False
    """Whether a name declares it, and not a function of the user."""

    def weight(self, outputs: Any, batch: Any, device: torch.device) -> Any:
        """Return the weight of a part.

        Raises:
            TypeError: It is not a number.
            ValueError: It is negative, not a number, or on another device.
        """
        if self.by_batch is not None:
            return self.by_batch(batch)
        return check_weight("loss_mean_over", self.by_outputs(outputs, batch), device)  # type: ignore[misc]


def declared_by(mean_over: Any, state: State) -> Declared | None:
    """Return what the loss of a batch is declared to be a mean over, or None.

    Args:
        mean_over: "examples", "tokens", "next_tokens", a function of the batch that counts, or one
            of the outputs and the batch. None for the `loss_mean_over` of a model that computes its
            loss.
        state: The state of the run, whose model may shift its labels.

    Raises:
        ValueError: `mean_over` is another value.

    Warns:
        LossMeanWarning: Tokens are counted, and the model shifts its labels.
    """
    spec, model = state.batch_spec, state.model
    if mean_over is None and isinstance(state.loss_fn, (ModelLoss, OutputLoss)):
        mean_over = getattr(model, "loss_mean_over", None)
    if mean_over is None:
        return None
    word = mean_over if isinstance(mean_over, str) else ""
    if word == "examples":
        return Declared(ExampleCounter(spec), by_name=True)
    if word == "tokens":
        _warn_if_shifting(model)
    if word in ("tokens", "next_tokens"):
        start = 1 if word == "next_tokens" else 0
        return Declared(lambda batch: _count_tokens(spec.targets(batch), start), by_name=True)
    if callable(mean_over):
        if takes(mean_over, 2):
            return Declared(by_outputs=mean_over)
        device = state.device
        return Declared(lambda batch: check_weight("loss_mean_over", mean_over(batch), device))
    raise ValueError(
        f"loss_mean_over={mean_over!r} must be 'examples', 'tokens' (targets of at least 0), "
        "'next_tokens' (likewise, without the first token of each example), or a function of the "
        "batch, or of the outputs and the batch, that counts the terms of its loss; without it, "
        "they are found by the loss functions of PyTorch that the loss calls."
    )


def with_count(state: State, declared: Declared | None) -> State:
    """Return the state with a loss that knows what it is declared to be a mean over."""
    loss_fn = state.loss_fn
    if declared is None or not isinstance(loss_fn, (ModelLoss, TargetLoss)):
        return state
    return state.evolve(loss_fn=attrs.evolve(loss_fn, count=declared.by_batch))


def takes(function: Callable[..., Any], count: int) -> bool:
    """Return whether a function has so many parameters that must be given."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [one for one in parameters if one.kind <= one.POSITIONAL_OR_KEYWORD]
    return sum(parameter.default is parameter.empty for parameter in positional) == count


def check_weight(argument: str, weight: Any, device: torch.device) -> Any:
    """Return a declared weight; raise an error unless it is a number of at least 0.

    The value of a tensor on a GPU is not read, since the host would wait for it.

    Raises:
        TypeError: It is not a number.
        ValueError: It is negative or not finite, or a tensor of several elements or on another
            device.
    """
    if isinstance(weight, Tensor):
        if weight.numel() != 1 or weight.device != device:
            raise ValueError(
                f"{argument} returned a tensor of shape {tuple(weight.shape)} on "
                f"{str(weight.device)!r} and must return a number, or a tensor of one element on "
                f"the device of the loss, {str(device)!r}."
            )
        weight = weight.detach().reshape(())
        if device.type != "cpu":
            return weight
    elif isinstance(weight, bool) or not isinstance(weight, (int, float)):
        raise TypeError(
            f"{argument} returned {weight!r} and must return a number, or a tensor of one element."
        )
    if not 0 <= float(weight) < math.inf:
        raise ValueError(
            f"{argument} returned {float(weight)} and must return a finite number of at least 0: "
            "how many terms the loss is a mean over."
        )
    return weight


@attrs.frozen(eq=False)
class ExampleCounter:
    """Counts the examples of a batch."""

    spec: BatchSpec

    def __call__(self, batch: Any) -> int:
        """Count the examples."""
        return self.spec.count(batch)


def _count_tokens(targets: Any, start: int) -> Tensor:
    after = start and isinstance(targets, Tensor)
    return count_loss_tokens(targets[:, start:] if after else targets)


def _warn_if_shifting(model: nn.Module) -> None:
    """Warn about a causal language model of Transformers: its own loss shifts the labels."""
    for module in model.modules():
        if type(module).__name__ == "LogitsModel":  # its loss is a function of logits and labels
            return
        if shifts_labels(module):
            warn_user(
                f"The loss of {type(module).__name__} shifts the labels and excludes the first "
                "token of an example, but loss_mean_over='tokens' counts that token; pass "
                "'next_tokens' if the loss is the model's, or a function of the batch if you "
                "compute it.",
                LossMeanWarning,
            )
            return
