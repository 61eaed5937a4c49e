"""The running statistics of batch norms: read, reset, and recompute them for other weights.

Averaged weights need new statistics: Izmailov, Podoprikhin, Garipov, Vetrov and Wilson, "Averaging
Weights Leads to Wider Optima and Better Generalization", UAI 2018, section 3.2,
https://arxiv.org/abs/1803.05407
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from composable._support.checks import check_count, check_module, kind_of
from composable._support.surgery import copy_on_write

Model = TypeVar("Model", bound=nn.Module)


def batch_norm_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics of the batch norms of a model, by the names of `state_dict`.

    Args:
        model: Any module.

    Returns:
        Copies of the mean, variance and number of batches of each norm that tracks them.

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
    """Reset the running statistics of batch norms to mean 0, variance 1 and no batches.

    Args:
        model: Any module. It is not modified. The result shares its parameters.

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
    """Recompute the running statistics of batch norms, as their mean over batches.

    Batch norms run in training mode, on the statistics of each batch; a norm that is used several
    times per batch contributes the mean of its uses. All other modules run in evaluation mode, so
    dropout is off, and the statistics match the activations of an evaluation. A batch norm in
    evaluation mode inside a model in training mode is frozen, and not changed.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        batches: Arguments of the model, such as `(inputs for inputs, _ in loader)` for a model of
            the inputs. Larger batches give better statistics; a few hundred examples suffice.
        seen: Number of batches in the current statistics, to continue an earlier call. Each counts
            as much as a new batch. 0 resets the statistics.

    Returns:
        A new model, with the modes of the modules of `model`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `batches` is empty, `seen` is negative, or the model is wrapped for distributed
            training.

    Example:
        >>> norm, batch = nn.BatchNorm1d(1), torch.tensor([[1.0], [3.0]])
        >>> new = recompute_batch_norm_statistics(norm, [batch, batch + 10])
        >>> new.running_mean, new.running_var
        (tensor([7.]), tensor([2.]))
    """
    check_module("model", model)
    check_count("seen", seen)
    if not isinstance(batches, Iterable) or isinstance(batches, str):
        raise TypeError(
            f"batches must be an iterable of arguments of the model, not {kind_of(batches)}."
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
                mean.add_batch()
    if empty:
        raise ValueError("batches must not be empty; pass at least one batch.")
    for mean in means:
        mean.finish()
    for module, training in modes:
        module.training = training
    return new


class _Mean:
    """The mean of the statistics of a batch norm over batches, and over its uses per batch."""

    def __init__(self, norm: Any, seen: int) -> None:
        self.norm, self.momentum, self.count, self.uses = norm, norm.momentum, seen, 0
        self.before: list[Tensor] = []
        self.hook = norm.register_forward_pre_hook(self.count_use)
        norm.training = True
        if not seen:
            norm.reset_running_stats()

    @property
    def statistics(self) -> list[Tensor]:
        return [self.norm.running_mean, self.norm.running_var]

    def count_use(self, *_: Any) -> None:
        """Set the momentum with which the norm adds its next input to the mean of the batch."""
        if not self.uses:
            self.before = [statistic.clone() for statistic in self.statistics]
        self.uses += 1
        # Not None: the layer would read its number of batches from the device.
        self.norm.momentum = 1 / self.uses

    def add_batch(self) -> None:
        """Add the batch to the mean, if the batch used the norm."""
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
