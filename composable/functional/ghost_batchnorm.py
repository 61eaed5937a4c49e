"""Ghost batch normalisation: normalise by the statistics of small slices of the batch.

Hoffer, Hubara and Soudry, "Train longer, generalize better", NeurIPS 2017,
https://arxiv.org/abs/1705.08741; Dimitriou and Arandjelovic, "A New Look at Ghost
Normalization", 2020, https://arxiv.org/abs/2007.08554
"""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from composable._support.checks import check_count, checked, minimum
from composable._support.spatial import laid_out_like

from ._reclass import keeps_forward_of, reclass, refuse_lazy
from .replace_modules import replace_or_report


@checked(ghost_batch_size=minimum(1))
def ghost_batchnorm(model: nn.Module, *, ghost_batch_size: int = 32) -> nn.Module:
    r"""Replace batch norms, in 1 to 3 dimensions, by ones over slices of the batch.

    In training, example $i$ is normalised with the mean and variance of its slice $s(i)$ of
    `ghost_batch_size` examples that follow one another:

    $$y_i = \gamma \frac{x_i - \mu_{s(i)}}{\sqrt{\sigma^2_{s(i)} + \epsilon}} + \beta$$

    The last slice is shorter if the size does not divide the batch. If it would hold a single
    value for each channel, which has no variance, it is merged with the slice before it. A batch
    of `ghost_batch_size` examples or fewer is one slice: the plain batch norm, to the bit.

    The running statistics are updated once a batch, as by a batch norm, with the average over the
    slices of their means and unbiased variances, weighted by their sizes.

    `BatchNormAct2d` of timm is replaced as well, and keeps its activation. Other subclasses that
    override `forward` are skipped, and so are ghost norms, whatever their size. Keys of the state
    dict, shapes, dtype, device, mode, hooks and subclasses stay.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        ghost_batch_size: How many examples a slice has, 1 or more.

    Returns:
        The new model; `model` itself where there was nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `ghost_batch_size` is below 1, a batch norm is lazy and does not know its
            channels yet, or the model is wrapped for distributed training.

    Warns:
        NoEffectWarning: Nothing was found, or a replacement may be bypassed.

    Example:
        >>> norm = ghost_batchnorm(nn.BatchNorm1d(1, affine=False), ghost_batch_size=2)
        >>> norm(torch.tensor([[0.0], [2.0], [10.0], [30.0]])).T.round(decimals=3)
        tensor([[-1.,  1., -1.,  1.]])
    """

    def rule(name: str, module: nn.Module) -> nn.Module:
        refuse_lazy(name, module, GHOSTS, "ghost_batchnorm")
        for plain, ghost in KINDS.items():
            if keeps_forward_of(plain, module):
                new: _Ghost = reclass(module, ghost, prefix="Ghost")
                new.ghost_batch_size = ghost_batch_size
                return new
        return module

    sought = "BatchNorm1d, BatchNorm2d and BatchNorm3d, and timm's BatchNormAct2d, with their own "
    sought += "forward method"
    return replace_or_report(model, rule, _Ghost, "ghost_batchnorm", sought, training_only=True)


def _one_by_one(inputs: Tensor) -> bool:
    """Check whether a call for each slice is faster: on a CPU, where no channels are then moved.

    Elsewhere, and in a graph, all slices are one operation, however many.
    """
    # Of channels-last inputs the values of a channel would be summed in another order.
    return (
        inputs.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_batchedtensor(inputs)
        and inputs.is_contiguous()
    )


class _Ghost(_BatchNorm):
    """The base class of the layers: a batch norm with a `ghost_batch_size`."""

    ghost_batch_size: int
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any

    def __init__(self, *args: Any, ghost_batch_size: int = 32, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_count("ghost_batch_size", ghost_batch_size, 1)
        self.ghost_batch_size = ghost_batch_size

    def forward(self, inputs: Tensor) -> Tensor:
        batch, size = inputs.shape[0], self.ghost_batch_size
        by_running_statistics = not self.training and self.running_mean is not None
        if by_running_statistics or batch <= size:
            return super().forward(inputs)
        self._check_input_dim(inputs)  # type: ignore[no-untyped-call]
        rest = batch % size
        if rest and inputs[:rest, 0].numel() == 1:
            rest += size
        if rest == batch:
            return super().forward(inputs)
        normalize = self._each if _one_by_one(inputs) else self._together
        # Not by slices, whose gradients are copied into zeros of the size of the batch.
        whole, *shorter = inputs.split_with_sizes([batch - rest, rest]) if rest else [inputs]
        outputs, mean, var = normalize(whole, (batch - rest) // size)
        for part in shorter:
            last, last_mean, last_var = normalize(part, 1)
            outputs += last
            mean = mean.lerp(last_mean, rest / batch)
            var = var.lerp(last_var, rest / batch)
        if self.training and self.track_running_stats:
            self._follow(mean, var)
        joined = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        return self._finish(laid_out_like(joined, inputs))

    def _finish(self, outputs: Tensor) -> Tensor:
        """Compute what the layer computes after the norm: nothing, in the layers of torch."""
        return outputs

    def _each(self, inputs: Tensor, count: int) -> tuple[list[Tensor], Tensor, Tensor]:
        """Normalize slices of one size one by one; return their average mean and variance, too."""
        mean, var, weight, bias = self._for_slices(inputs, count)
        outputs = [
            batch_norm(part, of_mean, of_var, of_weight, of_bias, True, 1.0, self.eps)
            for part, of_mean, of_var, of_weight, of_bias in zip(
                inputs.chunk(count), mean, var, weight, bias, strict=True
            )
        ]
        return outputs, mean.mean(0), var.mean(0)

    def _together(self, inputs: Tensor, count: int) -> tuple[list[Tensor], Tensor, Tensor]:
        """Normalize slices of one size in one call; return their average mean and variance, too."""
        mean, var, weight, bias = self._for_slices(inputs, count)
        # The slices of a channel become as many channels.
        slices = rearrange(inputs, "(slice n) channel ... -> n (slice channel) ...", slice=count)
        weight, bias = (None if part[0] is None else part.flatten() for part in (weight, bias))
        outputs = batch_norm(
            slices, mean.flatten(), var.flatten(), weight, bias, True, 1.0, self.eps
        )
        outputs = rearrange(outputs, "n (slice channel) ... -> (slice n) channel ...", slice=count)
        return [outputs], mean.mean(0), var.mean(0)

    def _for_slices(self, inputs: Tensor, count: int) -> tuple[Tensor, Tensor, Any, Any]:
        """Allocate statistics, and repeat the parameters: `[count, channels]`, or as many None.

        With a momentum of 1, a batch norm writes the statistics of the batch itself.
        """
        like = inputs if self.running_mean is None else self.running_mean
        size = (count, self.num_features)
        mean, var = (inputs.new_zeros(size, dtype=like.dtype) for _ in range(2))
        weight, bias = (
            [None] * count if part is None else part.repeat(count).view(size)
            for part in (self.weight, self.bias)
        )
        return mean, var, weight, bias

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor) -> None:
        """Update the running statistics as a batch norm does."""
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        share: Any = self.momentum
        if share is None:
            share = self.num_batches_tracked.to(mean).reciprocal()  # int would wait
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(var, share)

    def extra_repr(self) -> str:
        own: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{own}, ghost_batch_size={self.ghost_batch_size}"


class GhostBatchNorm1d(_Ghost, nn.BatchNorm1d):
    """A `BatchNorm1d` over slices of the batch: takes its arguments, and `ghost_batch_size`."""


class GhostBatchNorm2d(_Ghost, nn.BatchNorm2d):
    """A `BatchNorm2d` over slices of the batch: takes its arguments, and `ghost_batch_size`.

    Example:
        >>> layer = GhostBatchNorm2d(3, ghost_batch_size=16)
        >>> layer(torch.rand(40, 3, 8, 8)).shape
        torch.Size([40, 3, 8, 8])
        >>> list(layer.state_dict())
        ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
    """


class GhostBatchNorm3d(_Ghost, nn.BatchNorm3d):
    """A `BatchNorm3d` over slices of the batch: takes its arguments, and `ghost_batch_size`."""


class _GhostBatchNormAct2d(GhostBatchNorm2d):
    """The same with dropout and an activation, as in the layer of timm."""

    drop: Any
    act: Any

    def _finish(self, outputs: Tensor) -> Tensor:
        activated: Tensor = self.act(self.drop(outputs))
        return activated


GHOSTS: dict[type[nn.Module], type[_Ghost]] = {
    nn.BatchNorm1d: GhostBatchNorm1d,
    nn.BatchNorm2d: GhostBatchNorm2d,
    nn.BatchNorm3d: GhostBatchNorm3d,
}
KINDS: dict[type[nn.Module] | str, type[_Ghost]] = {
    **GHOSTS,  # type: ignore[dict-item]
    "timm.layers.norm_act.BatchNormAct2d": _GhostBatchNormAct2d,
}
