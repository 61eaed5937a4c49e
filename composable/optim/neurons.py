"""The rows of updates, one for each neuron: their norms, and how Muon scales them.

Li et al., "NorMuon: Making Muon more efficient and scalable", 2025,
https://arxiv.org/abs/2510.05491; the floor: records 274 and 328 of modded-nanogpt, 2026,
https://github.com/KellerJordan/modded-nanogpt/pull/328
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from composable._support.devices import compute_dtype
from composable._support.dtensors import local_part


def as_neurons(values: Tensor | None, parameter: Any, dim: int) -> Tensor:
    """Return a value for each neuron of a matrix, sharded as these are.

    Args:
        values: Values, which may be whole, as after a checkpoint is loaded; None for zeros.
        parameter: The matrix.
        dim: The dimension of its neurons.
    """
    if values is None:
        size = parameter.shape[dim]
        values = torch.zeros(size, dtype=parameter.dtype, device=parameter.device)
    if hasattr(values, "device_mesh") or not hasattr(parameter, "device_mesh"):
        return values
    from torch.distributed.tensor import (  # on use: it is slow to import
        Replicate,
        Shard,
        distribute_tensor,
    )

    placements = [Shard(0) if one.is_shard(dim) else Replicate() for one in parameter.placements]
    return distribute_tensor(values, parameter.device_mesh, placements, src_data_rank=None)


def scaled_neurons(
    updates: Sequence[Tensor],
    parameters: Sequence[Tensor],
    averages: Sequence[Tensor] | None,
    *,
    dim: int,
    beta2: float | None,
    floor: float,
    scale: float,
    eps: float,
) -> list[Tensor]:
    """Scale the rows of the updates of equal matrices.

    With averages, each row is divided by the root of its averaged mean square, and the whole is
    scaled to the norm that it had. Then rows are scaled up to a share of the norms of the weights'
    rows.

    Args:
        updates: Updates, of which this process may have a part.
        parameters: The matrices.
        averages: The averages, which are updated, of rows of equal matrices.
        dim: The dimension of the neurons.
        beta2: The share of an average that remains.
        floor: The least ratio of the norms of a row of the update and one of the weights.
        scale: What the updates are multiplied by afterwards.
        eps: The least root of a mean square, and the least norm of a row.
    """
    dtype = compute_dtype(updates[0].dtype)
    stack = torch.stack([update.to(dtype) for update in updates])
    squares = _squares(stack, parameters[0], dim)
    factors = torch.ones_like(squares)
    if averages is not None and beta2 is not None:
        held = torch.stack([local_part(average).to(dtype) for average in averages])
        shape = parameters[0].shape
        held.lerp_(squares / (shape.numel() / shape[dim]), 1 - beta2)
        for average, row in zip(averages, held, strict=True):
            local_part(average).copy_(row)
        factors = 1 / held.sqrt().clamp(min=eps)
        before, after = _totals(squares, squares * factors.square(), parameters[0], dim)
        factors *= (before / after.clamp(min=torch.finfo(dtype).tiny)).sqrt()[:, None]
    if floor:
        weights = torch.stack([local_part(p).to(dtype) for p in parameters])
        least = floor * _squares(weights, parameters[0], dim).sqrt()
        norms = squares.sqrt() * factors * scale
        factors *= (least / norms.clamp(min=eps)).clamp(min=1)
    shape_of_factors = [len(stack), *(1 for _ in stack.shape[1:])]
    shape_of_factors[1 + dim] = -1
    return list((stack * factors.reshape(shape_of_factors)).to(updates[0].dtype))


def _squares(stack: Tensor, parameter: Any, dim: int) -> Tensor:
    """Return the sum of squares of each neuron of matrices, `[matrices, neurons]`."""
    sums = stack.square().movedim(1 + dim, 1).flatten(2).sum(2)
    for group in _groups(parameter, dim, along=False):
        dist.all_reduce(sums, group=group)
    return sums


def _totals(before: Tensor, after: Tensor, parameter: Any, dim: int) -> tuple[Tensor, Tensor]:
    """Return the sums over all neurons of two stacks of squares."""
    # In float64, so that the results of several processes round to the results of one.
    sums = torch.stack([before, after]).sum(2, dtype=torch.float64)
    for group in _groups(parameter, dim, along=True):
        dist.all_reduce(sums, group=group)
    first, second = sums.to(before.dtype)
    return first, second


def _groups(parameter: Any, dim: int, *, along: bool) -> list[Any]:
    """Return the groups of processes that have parts of a `DTensor` along its neurons, or not."""
    if not hasattr(parameter, "device_mesh"):
        return []
    placements = enumerate(parameter.placements)
    return [
        parameter.device_mesh.get_group(i)
        for i, one in placements
        if one.is_shard() and one.is_shard(dim) is along
    ]
