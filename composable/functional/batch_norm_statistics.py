"""The running statistics of batch norms: read, forgotten, and computed anew for other weights.

Averaged weights need statistics of their own: Izmailov, Podoprikhin, Garipov, Vetrov and Wilson,
"Averaging Weights Leads to Wider Optima and Better Generalization", UAI 2018, section 3.2,
https://arxiv.org/abs/1803.05407
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ._checks import check_count, check_module
from ._surgery import copy_on_write

__all__ = [
    "batch_norm_statistics",
    "recompute_batch_norm_statistics",
    "reset_batch_norm_statistics",
]

Model = TypeVar("Model", bound=nn.Module)


def batch_norm_statistics(model: nn.Module) -> dict[str, Shaped[Tensor, " ..."]]:
    """Give the running statistics of a model's batch norms, by the names of `state_dict`.

    Args:
        model: Any module.

    Returns:
        Copies of each norm's mean, variance and count of batches; nothing for a norm without
        running statistics.

    Raises:
        TypeError: `model` is not a module.

    Example:
        >>> sorted(batch_norm_statistics(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))))
        ['1.num_batches_tracked', '1.running_mean', '1.running_var']
    """
    check_module("model", model)
    return {
        f"{name}.{kind}".lstrip("."): buffer.detach().clone()
        for name, norm in _norms(model)
        for kind, buffer in norm.named_buffers(recurse=False)
    }


def reset_batch_norm_statistics(model: Model) -> Model:
    """Forget the running statistics: mean 0, variance 1, no batch seen.

    Args:
        model: Any module; it is left as it was. The result shares its parameters.

    Returns:
        A new model.

    Raises:
        TypeError: `model` is not a module.
        ValueError: The model is wrapped for distributed training.

    Example:
        >>> norm = nn.BatchNorm1d(2)
        >>> _ = norm(torch.randn(8, 2))
        >>> reset_batch_norm_statistics(norm).running_mean
        tensor([0., 0.])
    """
    check_module("model", model)
    new = copy_on_write(model)
    for _, norm in _norms(new):
        norm.reset_running_stats()
    return new


def recompute_batch_norm_statistics(
    model: Model, batches: Iterable[Any], *, seen: int = 0
) -> Model:
    """Compute the running statistics of batch norms anew: their plain mean over some batches.

    Weights that no training step has used, such as averaged ones, need it: their activations have
    other means and variances than those of any model along the training.

    Batch norms act as in training, each on the statistics of the batch, and where one acts on a
    batch repeatedly, their mean counts. Everything else acts as in evaluation. So dropout is off:
    the statistics are those of the activations that an evaluation will see, and nothing is drawn.
    A norm in evaluation mode inside a model in training mode is a frozen one, and stays what it is.

    Args:
        model: Any module; it is left as it was. The result shares its parameters.
        batches: What the model is called with, one after the other: the inputs alone where it
            takes no targets, as in `(inputs for inputs, _ in loader)`. Statistics are better over
            larger batches; a few hundred examples will do.
        seen: How many batches the statistics at hand are the mean of, each of which weighs as much
            as a new one: to go on where an earlier call ended. At 0 they are forgotten.

    Returns:
        A new model, each of its modules in the mode that it had.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: There is no batch, `seen` is negative, or the model is wrapped for distributed
            training.

    Example:
        >>> norm, batch = nn.BatchNorm1d(1), torch.tensor([[1.0], [3.0]])
        >>> new = recompute_batch_norm_statistics(norm, [batch, batch + 10])
        >>> new.running_mean, new.running_var
        (tensor([7.]), tensor([2.]))
    """
    check_module("model", model)
    check_count("seen", seen)
    if not isinstance(batches, Iterable):
        raise TypeError(
            f"batches is a {type(batches).__name__}, but must be an iterable of what the model is "
            "called with."
        )
    new = copy_on_write(model)
    modes = [(module, module.training) for module in new.modules()]
    norms = [norm for _, norm in _norms(new) if norm.training or not new.training]
    new.eval()
    means = [_Mean(norm, seen) for norm in norms if norm.running_mean is not None]
    empty = True
    with torch.no_grad():
        for batch in batches:
            empty = False
            new(batch)
            for mean in means:
                mean.take_in()
    if empty:
        raise ValueError("batches is empty, and statistics need at least one batch.")
    for mean in means:
        mean.finish()
    for module, training in modes:
        module.training = training
    return new


class _Mean:
    """The statistics of a norm: their mean over batches, in each of which it may act repeatedly."""

    def __init__(self, norm: Any, seen: int) -> None:
        self.norm, self.momentum, self.count, self.uses = norm, norm.momentum, seen, 0
        self.before: list[Tensor] = []
        self.hook = norm.register_forward_pre_hook(self.follow)
        norm.training = True
        if not seen:
            norm.reset_running_stats()

    @property
    def statistics(self) -> list[Tensor]:
        return [self.norm.running_mean, self.norm.running_var]

    def follow(self, *_: Any) -> None:
        """Let the norm take its next input into the mean over the batch."""
        if not self.uses:
            self.before = [one.clone() for one in self.statistics]
        self.uses += 1
        # Not None, with which the layer would read its own count from the device.
        self.norm.momentum = 1 / self.uses

    def take_in(self) -> None:
        """Take the batch into the mean over all, if the norm had a part in it."""
        if self.uses:
            self.count, self.uses = self.count + 1, 0
            for mean, before in zip(self.statistics, self.before, strict=True):
                mean.copy_(before.lerp(mean, 1 / self.count))

    def finish(self) -> None:
        self.hook.remove()
        self.norm.momentum = self.momentum


def _norms(model: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            yield name, module
