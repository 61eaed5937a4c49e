"""Norms of many tensors, computed on their device by fused operations."""

from collections.abc import Sequence

import torch
from torch import Tensor

from composable._support.checks import LOW_PRECISION
from composable._support.dtensors import whole


def l2_norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the L2 norm of each tensor, for 16-bit tensors in float32.

    The norm of a sharded tensor is that of the whole tensor; every process must call the function.

    Args:
        tensors: Dense or sparse tensors of any shape, dtype and device.

    Example:
        >>> from composable.callbacks._norms import l2_norms
        >>> l2_norms([torch.tensor([3.0, 4.0]), torch.zeros(2, 2)])
        [tensor(5.), tensor(0.)]
    """
    norms: list[Tensor] = [torch.empty(0)] * len(tensors)
    for low in (False, True):
        places = [i for i, one in enumerate(tensors) if (one.dtype in LOW_PRECISION) is low]
        if places:
            values = [_values(tensors[i].detach()) for i in places]
            found = torch._foreach_norm(values, 2, dtype=torch.float32 if low else None)
            for i, norm in zip(places, found, strict=True):
                norms[i] = whole(norm)
    return norms


def total_norm(norms: Sequence[Tensor]) -> Tensor:
    """Return the norm of the concatenation of tensors, given the norm of each.

    Args:
        norms: At least one norm; the result is on the device of the first.

    Example:
        >>> from composable.callbacks._norms import total_norm
        >>> total_norm([torch.tensor(3.0), torch.tensor(4.0)])
        tensor(5.)
    """
    device = norms[0].device
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms]))
    return total


def _values(tensor: Tensor) -> Tensor:
    if not tensor.is_sparse:
        return tensor
    return tensor.coalesce().values()
